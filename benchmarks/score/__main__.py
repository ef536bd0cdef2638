"""Error of the model's predictions against published logs; docs/accuracy.md.

python -m benchmarks.score [MANIFEST] [--holdout] [--learn] [--json]
"""

from __future__ import annotations

from pathlib import Path

import click

from ccbench.cli import main
from ccbench.cli.output import as_json, print_json, say


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.argument("manifest", type=click.Path(path_type=Path), required=False)
@click.option(
    "--holdout",
    is_flag=True,
    help="Also learn and calibrate: without each system, without each generation of GPUs, and on every other "
    "size of each machine; errors on the rest. Takes half an hour.",
)
@click.option(
    "--learn",
    is_flag=True,
    help="Learn the model's levels and intervals from the healthy logs, and write them into this checkout. "
    "Takes a quarter of an hour.",
)
@as_json
def score(manifest: Path | None, holdout: bool, learn: bool, as_json: bool) -> int:
    """How far the model is from what others measured: MANIFEST lists logs and the machines they are from.

    Without it the published results that ship are taken, so that anybody can repeat the figures.

    Nothing is fitted, unless --holdout asks how good fits would be; the model's levels were learned from the
    published results. Logs that are not known to be healthy are listed apart; logs that cannot be modelled are
    listed with the reason.
    """
    from benchmarks.score.document import document
    from benchmarks.score.logs import points_of
    from benchmarks.score.manifest import read_manifest
    from benchmarks.score.predictors import first_principles, rivals
    from benchmarks.score.published import published_logs
    from benchmarks.score.scores import scored
    from benchmarks.score.shipping import learn_from
    from benchmarks.score.text import lines
    from benchmarks.score.validation import Validation, shipped_by_system

    logs = (
        published_logs()
        if manifest is None
        else [points_of(entry, manifest.parent) for entry in read_manifest(manifest)]
    )
    if learn:
        learn_from(logs, say)
    scores = scored(logs, first_principles, rivals())
    by_system = shipped_by_system(logs)
    held_out = Validation.of(logs, say) if holdout else None
    told = tuple(f"{log.entry.file}: {line}" for log in logs for line in log.contradictions)
    if as_json:
        print_json(document(scores, by_system, held_out, told))
    else:
        for line in lines(scores, by_system, held_out, told):
            click.echo(line)
    if not any(log.score.overall.points for log in scores.logs):
        say(
            f"ccbench: error: score: none of the {len(logs)} logs can be modelled; the reasons are above"
        )
        return 2
    return 0


if __name__ == "__main__":
    main(command=score)
