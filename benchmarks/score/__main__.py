"""Error of the model's predictions against published logs; docs/scoring.md.

python -m benchmarks.score MANIFEST [--holdout] [--json]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cli import main
from ccbench.cli.output import as_json, print_json, say

if TYPE_CHECKING:
    from benchmarks.score.holdout import HoldoutScores
    from benchmarks.score.logs import LogPoints


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    from benchmarks.score.document import document
    from benchmarks.score.logs import points_of
    from benchmarks.score.manifest import read_manifest
    from benchmarks.score.notices import learned_from, notices
    from benchmarks.score.predictors import first_principles, rivals
    from benchmarks.score.scores import scored
    from benchmarks.score.text import lines

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
    from benchmarks.score.holdout import on_other_sizes, on_other_systems
    from benchmarks.score.predictors import calibrated, learned

    return on_other_sizes(logs, calibrated, say), on_other_systems(logs, learned, say, jobs)


if __name__ == "__main__":
    main(command=score)
