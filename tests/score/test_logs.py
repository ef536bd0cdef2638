from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.score.logs import LogPoints, points_of
from benchmarks.score.manifest import ManifestEntry
from ccbench.results.importers.log import ImportedLog, ImportedRow
from tests.score.corpora import SIZES, all_reduce_text, entry, log, row


def points(words: ManifestEntry, rows: list[ImportedRow], **changes: Any) -> LogPoints:
    def read(path: Path) -> ImportedLog:
        return log(rows, **changes)

    return points_of(words, Path("anywhere"), read)


def test_a_log_of_nccl_tests_becomes_observations_in_and_out_of_place(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(all_reduce_text(lambda size: 30 + size / 1e5))
    found = points_of(entry(), tmp_path)
    assert [one.request.in_place for one in found.observations] == [False, True]
    for one in found.observations:
        assert one.request.size_bytes == SIZES
        assert one.seconds == pytest.approx([(30 + size / 1e5) * 1e-6 for size in SIZES], abs=1e-8)
        assert one.system.ranks == 8
    assert found.left_out == ()


def test_element_types_are_apart() -> None:
    rows = [row(64, 1e-5), row(64, 2e-5, dtype="float8_e4m3"), row(128, 3e-5)]
    found = points(entry(), rows)
    assert [one.seconds for one in found.observations] == [(1e-5, 3e-5), (2e-5,)]
    assert [one.request.floating_8_bit for one in found.observations] == [False, True]


def test_rows_of_size_zero_and_rows_without_a_time_are_left_out_and_counted() -> None:
    found = points(entry(), [row(0, 1e-6), row(0, 1e-6), row(64, None), row(128, 1e-5)])
    assert [one.request.size_bytes for one in found.observations] == [(128,)]
    assert any("size 0 (2 times)" in reason for reason in found.left_out)
    assert any("without a time" in reason for reason in found.left_out)


def test_rows_that_contradict_themselves_are_left_out() -> None:
    wrong = row(1 << 20, 1e-3, algbw=500.0, half_units=(5e-9, 0.005, None))
    found = points(entry(), [wrong, row(1 << 20, 1e-4)])
    assert [one.seconds for one in found.observations] == [(1e-4,)]
    assert any("algbw_contradicts_time" in reason for reason in found.left_out)


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
        row(1 << 30, 2**30 / rate / 1e9, algbw=rate, busbw=rate * factor, half_units=(5e-9, 5e-6, 5e-6))
        for rate in (181.23456, 192.87654)
    ]
    found = points(entry(nodes=(8,), network="ib-ndr-400x8"), rows, ranks=64)
    assert found.systems[0].nodes == 12
    assert sum(len(one.seconds) for one in found.observations) == 2


@pytest.mark.parametrize(
    ("network", "forced", "adds"),
    [
        ("ib-ndr-400x8", "IB SHARP enabled by the job", True),
        ("ib-ndr-400x8 with IB SHARP", "none known", True),
        ("ib-ndr-400x8", "none known", False),
    ],
)
def test_sharp_is_a_word_of_what_was_forced_or_of_the_network(network: str, forced: str, adds: bool) -> None:
    (system,) = points(entry(nodes=(2,), network=network, forced=forced), [row(64, 1e-5)]).systems
    assert system.network is not None
    assert system.network.in_network_reduction is adds


@pytest.mark.parametrize(
    ("words", "rows", "reason"),
    [
        (entry(gpu="RTX 5090 (2 ranks on one GPU)"), [row(64, 1e-5)], "share one GPU"),
        (entry(gpus_per_node=(1,)), [row(64, 1e-5)], "one rank"),
        (entry(nodes=(2,), network="roce (speed not stated)"), [row(64, 1e-5)], "does not say how fast"),
        (entry(), [], "without rows"),
    ],
)
def test_what_cannot_be_modelled_is_a_reason(
    words: ManifestEntry, rows: list[ImportedRow], reason: str
) -> None:
    found = points(words, rows)
    assert found.observations == ()
    assert any(reason in text for text in found.left_out)


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
