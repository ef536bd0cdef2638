"""``ccbench score``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cli.output import as_json, print_json, say

if TYPE_CHECKING:
    from ccbench.scoring.holdout import HoldoutScores
    from ccbench.scoring.logs import LogPoints


@click.command(short_help="Error of the predictions against published logs.")
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option(
    "--holdout",
    is_flag=True,
    help="Also fit: to every other size of each machine, and to all systems but one; errors on the rest. "
    "Takes minutes.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes that fit at once."
)
@as_json
def score(manifest: Path, holdout: bool, jobs: int, as_json: bool) -> int:
    """How far the model is from what others measured: MANIFEST lists logs and the machines they are from.

    Nothing is fitted, unless --holdout asks how good fits would be; but the model's own constants were
    learned from published logs, and a notice says how many of these they are. Logs that are not known to be
    healthy are listed apart; logs that cannot be modelled are listed with the reason.
    """
    from ccbench.scoring.document import document
    from ccbench.scoring.logs import points_of
    from ccbench.scoring.manifest import read_manifest
    from ccbench.scoring.notices import learned_from, notices
    from ccbench.scoring.predictors import first_principles, rivals
    from ccbench.scoring.scores import scored
    from ccbench.scoring.text import lines

    logs = [points_of(entry, manifest.parent) for entry in read_manifest(manifest)]
    scores = scored(logs, first_principles, rivals())
    sizes, systems = _fits(logs, jobs) if holdout else (None, None)
    seen = learned_from(logs)
    told = notices(logs, seen)
    if as_json:
        print_json(document(scores, sizes, systems, told, seen))
    else:
        for line in lines(scores, sizes, systems, told):
            click.echo(line)
    if not any(log.score.overall.points for log in scores.logs):
        say(f"ccbench: error: score: none of the {len(logs)} logs can be modelled; the reasons are above")
        return 2
    return 0


def _fits(logs: list[LogPoints], jobs: int) -> tuple[HoldoutScores, HoldoutScores]:
    from ccbench.scoring.holdout import on_other_sizes, on_other_systems
    from ccbench.scoring.predictors import calibrated, learned

    return on_other_sizes(logs, calibrated, say), on_other_systems(logs, learned, say, jobs)
