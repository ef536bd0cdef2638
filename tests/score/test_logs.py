from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.score.contradictions import contradictions, other_gpu
from benchmarks.score.logs import LogPoints, points_of
from benchmarks.score.manifest import ManifestEntry
from benchmarks.score.notices import learned_from, notices
from benchmarks.score.teams import Team, team_of
from ccbench.readers.benchmarks.log import DeviceLine, ImportedLog, ImportedRow, ImportedTable
from ccbench.results.loading import load_published
from tests.score.corpora import SIZES, all_reduce_text, entry, log, row


def points(words: ManifestEntry, rows: list[ImportedRow], **changes: Any) -> LogPoints:
    def read(path: Path) -> ImportedLog:
        return log(rows, **changes)

    return points_of(words, Path("anywhere"), read)


def test_a_log_of_nccl_tests_becomes_observations_in_and_out_of_place(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(all_reduce_text(lambda size: 30 + size / 1e5))
    points = points_of(entry(), tmp_path)
    assert [observation.request.in_place for observation in points.observations] == [
        False,
        True,
    ]
    for observation in points.observations:
        assert observation.request.size_bytes == SIZES
        assert observation.seconds == pytest.approx(
            [(30 + size / 1e5) * 1e-6 for size in SIZES], abs=1e-8
        )
        assert observation.system.ranks == 8
    assert points.left_out == ()


def test_element_types_are_apart() -> None:
    rows = [row(64, 1e-5), row(64, 2e-5, dtype="float8_e4m3"), row(128, 3e-5)]
    observed = points(entry(), rows)
    assert [observation.seconds for observation in observed.observations] == [
        (1e-5, 3e-5),
        (2e-5,),
    ]
    assert [observation.request.floating_8_bit for observation in observed.observations] == [
        False,
        True,
    ]


def test_rows_of_size_zero_and_rows_without_a_time_are_left_out_and_counted() -> None:
    observed = points(entry(), [row(0, 1e-6), row(0, 1e-6), row(64, None), row(128, 1e-5)])
    assert [observation.request.size_bytes for observation in observed.observations] == [(128,)]
    assert any("size 0 (2 times)" in reason for reason in observed.left_out)
    assert any("without a time" in reason for reason in observed.left_out)


def test_rows_that_contradict_themselves_are_left_out() -> None:
    wrong = row(1 << 20, 1e-3, algbw=500.0, half_units=(5e-9, 0.005, None))
    observed = points(entry(), [wrong, row(1 << 20, 1e-4)])
    assert [observation.seconds for observation in observed.observations] == [(1e-4,)]
    assert any("algbw_contradicts_time" in reason for reason in observed.left_out)


def test_a_rate_stands_in_for_a_time_when_it_is_printed_precisely() -> None:
    rows = [
        row(1 << 30, None, algbw=200.0, half_units=(None, 0.05, None)),
        row(1 << 30, None, busbw=350.0, half_units=(None, None, 0.05)),
        row(1 << 10, None, algbw=0.02, half_units=(None, 0.005, None)),
    ]
    (one,) = points(entry(), rows).observations
    assert one.seconds == pytest.approx([2**30 / 200e9, 2**30 * 1.75 / 350e9])


def test_flags_are_those_of_the_team_and_not_of_a_stray_device_line() -> None:
    factor = 2 * 95 / 96
    rows = [
        row(
            1 << 30,
            2**30 / rate / 1e9,
            algbw=rate,
            busbw=rate * factor,
            half_units=(5e-9, 5e-6, 5e-6),
        )
        for rate in (181.23456, 192.87654)
    ]
    observed = points(entry(nodes=(8,), network="ib-ndr-400x8"), rows, ranks=64)
    assert observed.systems[0].nodes == 12
    assert sum(len(observation.seconds) for observation in observed.observations) == 2


@pytest.mark.parametrize(
    ("network", "forced", "adds"),
    [
        ("ib-ndr-400x8", "IB SHARP enabled by the job", True),
        ("ib-ndr-400x8 with IB SHARP", "none known", True),
        ("ib-ndr-400x8", "none known", False),
    ],
)
def test_sharp_is_a_word_of_what_was_forced_or_of_the_network(
    network: str, forced: str, adds: bool
) -> None:
    (system,) = points(
        entry(nodes=(2,), network=network, forced=forced), [row(64, 1e-5)]
    ).systems
    assert system.network is not None
    assert system.network.in_network_reduction is adds


@pytest.mark.parametrize(
    ("words", "rows", "reason"),
    [
        (entry(gpu="RTX 5090 (2 ranks on one GPU)"), [row(64, 1e-5)], "share one GPU"),
        (entry(gpus_per_node=(1,)), [row(64, 1e-5)], "one rank"),
        (
            entry(nodes=(2,), network="roce (speed not stated)"),
            [row(64, 1e-5)],
            "does not say how fast",
        ),
        (entry(), [], "without rows"),
    ],
)
def test_what_cannot_be_modelled_is_a_reason(
    words: ManifestEntry, rows: list[ImportedRow], reason: str
) -> None:
    observed = points(words, rows)
    assert observed.observations == ()
    assert any(reason in text for text in observed.left_out)


def test_a_file_that_is_not_there_or_is_no_log_is_a_reason(tmp_path: Path) -> None:
    absent = points_of(entry(), tmp_path)
    assert absent.observations == ()
    assert "cannot be read" in absent.left_out[0]
    (tmp_path / "log.txt").write_text("nothing that a tool would print")
    assert points_of(entry(), tmp_path).left_out


@pytest.mark.parametrize(
    ("dtype", "words", "item_bytes", "floating_8_bit"),
    [
        ("float32", "", 4, False),
        ("bfloat16", "", 2, False),
        ("float8_e4m3", "", 1, True),
        ("", "half", 2, False),
        ("", "12 types in one run (-d all)", 4, False),
    ],
)
def test_elements_are_the_rows_own_else_the_manifests(
    dtype: str, words: str, item_bytes: int, floating_8_bit: bool
) -> None:
    (one,) = points(entry(datatype=words), [row(8, 1e-5, dtype=dtype)]).observations
    request = one.request
    assert (request.item_bytes, request.floating_8_bit) == (item_bytes, floating_8_bit)


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


def published() -> dict[int, float]:
    rows = load_published("hgx-h100").table.to_pylist()
    return {
        row["size_bytes"]: row["median_seconds"]
        for row in rows
        if (row["collective"], row["source"]) == ("all_reduce", rows[0]["source"])
    }


def test_a_log_whose_figures_ship_was_learned_from() -> None:
    seen = log_of("seen.txt", published())
    unseen = log_of("unseen.txt", {size: time * 1.37 for size, time in published().items()})
    assert learned_from([seen, unseen]) == ("seen.txt",)
    (line,) = notices([seen, unseen], ("seen.txt",))
    assert "learned from at least 1 of these 2 logs" in line
    assert "--holdout" in line


def test_new_logs_need_no_notice() -> None:
    new = log_of("new.txt", {1 << 20: 33.3e-6, 1 << 24: 123.4e-6})
    assert learned_from([new]) == ()
    assert notices([new], ()) == ()


def test_logs_that_do_not_say_how_they_were_launched_are_counted() -> None:
    unsaid = points(entry(), [row(1 << 20, 33.3e-6)], facts={})
    assert [observation.request.launch_known for observation in unsaid.observations] == [False]
    (line,) = notices([unsaid, log_of("new.txt", {1 << 20: 33.3e-6})], ())
    assert line.startswith("1 logs do not say how many GPUs one thread launched on")


def test_pairwise_points_whose_shared_links_are_not_priced_are_counted() -> None:
    on_pcie = {
        "gpu": "L40S",
        "interconnect": "pcie4",
        "gpus_per_node": (4,),
        "collective": "all_to_all",
    }
    rows = [row(1 << 20, 1e-3), row(1 << 24, 9e-3)]
    apart = points(entry(**on_pcie), rows, collective="all_to_all")
    assert apart.observations, apart.left_out
    (line,) = notices([apart], ())
    assert line.startswith("2 points of all_to_all")
    board = points(entry(collective="all_to_all"), rows, collective="all_to_all")
    assert notices([board], ()) == ()


def table(rows: list[ImportedRow], **changes: Any) -> ImportedTable:
    return ImportedTable("all_reduce", tuple(rows), **changes)


def rated(ranks: int, flags: tuple[str, ...] = ()) -> list[ImportedRow]:
    """Rows whose rates fit an all-reduce on so many ranks only."""
    factor = 2 * (ranks - 1) / ranks
    return [
        row(
            1 << 30,
            1.0,
            algbw=rate,
            busbw=rate * factor,
            half_units=(None, 5e-6, 5e-6),
            flags=flags,
        )
        for rate in (181.23456, 192.87654)
    ]


@pytest.mark.parametrize(
    ("words", "shown", "expected", "origin"),
    [
        (
            entry(nodes=(4,)),
            table([row(8, 1e-5)]),
            (8, 4),
            "",
        ),  # the manifest, where the log says nothing
        (entry(nodes=(8,), network="ib-ndr-400x8"), table(rated(96)), (8, 12), "busbw"),
        (
            entry(gpus_per_node=(4,), nodes=(36,)),
            table(rated(128, ("busbw_contradicts_algbw",))),
            (4, 32),
            "busbw",
        ),
        (entry(gpus_per_node=(4, 5, 6), nodes=(1,)), table([], ranks=5), (5, 1), ""),
        (entry(nodes=(1, 4)), table([row(8, 1e-5)], nodes=4), (8, 4), ""),
        (entry(nodes=()), table([], ranks=128), (8, 16), ""),
    ],
)
def test_rates_count_more_than_the_manifest_and_of_its_numbers_the_one_that_the_log_shows(
    words: ManifestEntry, shown: ImportedTable, expected: tuple[int, int], origin: str
) -> None:
    team = team_of(words, shown)
    assert isinstance(team, Team), team
    assert (team.gpus_per_node, team.nodes) == expected
    assert origin in team.origin


def test_a_range_of_nodes_is_its_middle_and_said_to_be_assumed() -> None:
    rows = [row(1 << 30, 1.0, algbw=50.0, busbw=99.92, half_units=(None, 0.004, 0.004))]
    team = team_of(entry(gpus_per_node=(16,), nodes=()), table(rows))
    assert isinstance(team, Team)
    assert team.origin.startswith("assumed")
    assert 1000 < team.nodes * 16 < 1600  # 2 (p - 1) / p = 1.9984


def test_what_stays_open_is_a_reason() -> None:
    for one, shown in (
        (entry(nodes=()), table([row(8, 1e-5)])),
        (entry(gpus_per_node=()), table([], ranks=8)),
        (entry(nodes=(1, 4)), table([row(8, 1e-5)])),
        (entry(gpus_per_node=(8,), nodes=()), table([], ranks=12)),
    ):
        assert isinstance(team_of(one, shown), str)
