"""How often the verdict on published logs is right: ``python -m benchmarks.score.verdicts MANIFEST``.

Each system is judged as ``ccbench report`` judges it, but by intervals and p-values of the other systems. The
levels of the model are those that ship.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import click

from benchmarks.score.logs import points_of
from benchmarks.score.manifest import read_manifest
from ccbench.analysis.speed_verdict import SpeedWord, gravest, table_regimes
from ccbench.errors import MachineError
from ccbench.model import Prediction
from ccbench.model.library import LibrarySystem
from ccbench.model.library.calibration import Observation
from ccbench.model.library.intervals import intervals, residuals, without
from ccbench.model.library.predictor import predict_library
from ccbench.results import Point

HEALTH = {True: "healthy", False: "known not to be healthy", None: "of unknown health"}


def words_of(system: LibrarySystem, collective: str, sweeps: list[Observation]) -> SpeedWord:
    """The gravest word on one collective of ``system``, each of its ``sweeps`` by itself."""
    known = without(system.name, residuals())
    words: list[SpeedWord] = []
    for sweep in sweeps:
        points: list[Point] = []
        made = [
            Prediction(
                0.0,
                at.seconds,
                at.seconds - at.bandwidth_seconds,
                at.bandwidth_seconds,
                at.bottleneck,
            )
            for at in predict_library(system, sweep.request)
        ]
        likely = intervals(system, made, known)
        rows = zip(sweep.request.size_bytes, sweep.seconds, made, likely, strict=True)
        for size, seconds, prediction, edges in rows:
            points.append(
                Point(
                    "log",
                    "nccl",
                    collective,
                    "default",
                    "float32",
                    "none",
                    size,
                    size // 4,
                    system.ranks,
                    median_seconds=seconds,
                    predicted_seconds=prediction.predicted_seconds,
                    predicted_low_80_seconds=edges.low_80_seconds,
                    predicted_high_80_seconds=edges.high_80_seconds,
                    predicted_low_95_seconds=edges.low_95_seconds,
                    predicted_high_95_seconds=edges.high_95_seconds,
                )
            )
        words += [regime.word for regime in table_regimes(system, points, known)]
    return gravest(words)


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
def verdicts(manifest: Path) -> None:
    """Count verdicts on the logs of MANIFEST by their health, and name those that are not NORMAL."""
    logs = [points_of(entry, manifest.parent) for entry in read_manifest(manifest)]
    counts = defaultdict[str, Counter[str]](Counter)
    systems = defaultdict[str, set[str]](set)
    for log in logs:
        health, sweeps = (
            HEALTH[log.entry.healthy],
            defaultdict[tuple[LibrarySystem, str], list[Observation]](list),
        )
        for observation in log.observations:
            sweeps[observation.system, observation.request.collective].append(observation)
        for (system, collective), members in sweeps.items():
            try:
                word = words_of(system, collective, members)
            except MachineError as error:
                click.echo(f"not judged: {log.entry.file}: {error}")
                continue
            counts[health][word.value] += 1
            systems[health].add(system.name)
            if word is not SpeedWord.NORMAL:
                click.echo(f"{word.value}: {log.entry.file}, {collective}, {health}")
    for health, words in counts.items():
        told = ", ".join(f"{count} {word}" for word, count in words.most_common())
        click.echo(
            f"{health}: {words.total()} collectives of {len(systems[health])} systems: {told}"
        )


if __name__ == "__main__":
    verdicts()
