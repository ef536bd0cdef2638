from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.score.contradictions import contradictions, other_gpu
from benchmarks.score.logs import LogPoints, points_of
from benchmarks.score.manifest import ManifestEntry
from benchmarks.score.published import published_logs
from benchmarks.score.teams import team_of
from ccbench.readers.benchmarks.log import DeviceLine, ImportedLog, ImportedRow, ImportedTable
from tests.score.corpora import entry, log, row


def points(words: ManifestEntry, rows: list[ImportedRow], **changes: Any) -> LogPoints:
    def read(path: Path) -> ImportedLog:
        return log(rows, **changes)

    return points_of(words, Path("anywhere"), read)


def test_rows_of_size_zero_and_rows_without_a_time_are_left_out_and_counted() -> None:
    observed = points(entry(), [row(0, 1e-6), row(0, 1e-6), row(64, None), row(128, 1e-5)])
    assert [observation.request.size_bytes for observation in observed.observations] == [(128,)]
    assert any("size 0 (2 times)" in reason for reason in observed.left_out)
    assert any("without a time" in reason for reason in observed.left_out)


def devices(
    hosts: int, per_host: int, model: str = "NVIDIA H100 80GB HBM3"
) -> tuple[DeviceLine, ...]:
    return tuple(
        DeviceLine(rank, host=f"node{rank // per_host}", device=rank % per_host, model=model)
        for rank in range(hosts * per_host)
    )


def test_a_log_of_other_gpus_than_the_manifest_s_is_not_modelled() -> None:
    other = log([row(1 << 20, 30e-6)], devices=devices(1, 8, "NVIDIA A100-SXM4-80GB"))
    points = points_of(entry(), Path(), lambda _: other)
    assert points.observations == ()
    assert points.left_out == (
        "the manifest's gpu is H100 SXM, and the log lists NVIDIA A100-SXM4-80GB; correct the manifest",
    )
    assert other_gpu(entry(gpu="H100 SXM (a100 in another room)"), other)
    assert not other_gpu(entry(gpu="A100-SXM4-40GB (ND96asr_v4)"), other)


def test_another_collective_than_the_manifest_s_is_told() -> None:
    (line,) = contradictions(entry(collective="all_gather"), log([]))
    assert (
        line
        == "the manifest's collective is all_gather, and the log's, which counts, all_reduce"
    )
    assert contradictions(entry(collective=""), log([])) == ()
    assert contradictions(entry(collective="several"), log([])) == ()


def log_of(file: str, seconds: dict[int, float]) -> LogPoints:
    return points(entry(file=file), [row(size, time) for size, time in seconds.items() if size])


def test_results_that_ship_are_logs_of_known_systems() -> None:
    """Published rows that name no system would teach nothing, and nobody would notice."""
    logs = published_logs()
    left_out = {log.left_out for log in logs if not log.observations}
    assert left_out == {
        ("measured with mscclpp: mscclpp is no collective library that the model describes",)
    }
    rows = sum(len(one.seconds) for log in logs for one in log.observations)
    assert rows > 17_000
    launched = {
        one.request.gpus_per_process
        for log in logs
        for one in log.observations
        if "superbenchmark" in log.entry.file
    }
    assert launched == {8}, "its times are of one thread that launches on eight GPUs"


def table(rows: list[ImportedRow], **changes: Any) -> ImportedTable:
    return ImportedTable("all_reduce", tuple(rows), **changes)


def test_what_stays_open_is_a_reason() -> None:
    for one, shown in (
        (entry(nodes=()), table([row(8, 1e-5)])),
        (entry(gpus_per_node=()), table([], ranks=8)),
        (entry(nodes=(1, 4)), table([row(8, 1e-5)])),
        (entry(gpus_per_node=(8,), nodes=()), table([], ranks=12)),
    ):
        assert isinstance(team_of(one, shown), str)
