"""Benchmarks on PyTorch: torch's all-reduce bench and PARAM."""

from __future__ import annotations

import re

import pytest

from ccbench.readers.benchmarks import readers
from ccbench.units import parse_size
from tests.readers.benchmarks import outputs
from tests.readers.benchmarks.logs import text_of

torch_bench = readers()["torch_bench"]


def test_the_closing_paragraph_gives_both_rates_and_the_ranks() -> None:
    (table,) = torch_bench.read(outputs.TORCH_PARAGRAPH).tables
    (row,) = table.rows
    assert (table.ranks, row.size_bytes, row.seconds) == (16, 4_000_000_000, None)
    assert row.algbw is not None
    assert row.busbw == pytest.approx(row.algbw * 2 * 15 / 16)


def test_the_sweep_takes_its_ranks_from_the_heading() -> None:
    (table,) = torch_bench.read(outputs.TORCH_SWEEP).tables
    assert (table.collective, table.ranks) == ("all_reduce", 8)
    assert [(row.size_bytes, row.algbw, row.busbw) for row in table.rows] == [
        (32768, 1.0, 1.75),
        (2**30, 200.0, 350.0),
    ]


def test_every_payload_of_a_published_sweep_is_read() -> None:
    text = text_of({"file": "awkward_h200_8g_1n_all_reduce_torch_md.txt"})
    printed = re.findall(
        r"^\| +(\d+[KMG]iB) \| +([\d.]+)GBps \| +([\d.]+)GBps \|$", text, re.MULTILINE
    )
    (table,) = torch_bench.read(text).tables
    assert [(row.size_bytes, row.busbw, row.algbw) for row in table.rows] == [
        (parse_size(size), float(busbw), float(algbw)) for size, busbw, algbw in printed
    ]
    assert len(table.rows) == 20
    for row in table.rows:
        assert row.algbw is not None
        assert row.busbw == pytest.approx(row.algbw * 2 * 7 / 8, abs=0.02)


param = readers()["param"]


def test_old_lines_take_their_collective_from_the_command_line() -> None:
    (table,) = param.read(outputs.PARAM_OLD).tables
    assert (table.collective, table.ranks) == ("all_reduce", 4)
    (row,) = table.rows
    assert (row.size_bytes, row.count, row.dtype) == (1048576, 262144, "")
    assert (row.algbw, row.busbw) == (10.486, 15.729)
    assert row.seconds == pytest.approx(100e-6)
    assert row.extra["p95_seconds"] == pytest.approx(102e-6)
    assert row.extra["maximum_seconds"] == pytest.approx(103e-6)


def test_new_lines_name_collective_and_element_type() -> None:
    (table,) = param.read(outputs.PARAM_NEW).tables
    assert (table.collective, table.ranks) == ("all_gather", 8)
    (row,) = table.rows
    assert (row.size_bytes, row.count, row.dtype, row.op) == (1048576, 32768, "float32", "none")


@pytest.mark.parametrize(
    ("text", "factor"), [(outputs.PARAM_OLD, 1.5), (outputs.PARAM_NEW, 7 / 8)]
)
def test_sizes_and_rates_are_those_of_nccl_tests(text: str, factor: float) -> None:
    for row in param.read(text).tables[0].rows:
        assert row.seconds is not None
        assert row.algbw == pytest.approx(row.size_bytes / row.seconds / 1e9, abs=5e-4)
        assert row.algbw is not None
        assert row.busbw == pytest.approx(row.algbw * factor, abs=1e-3)


def test_a_quoted_line_with_both_rates_only_is_read() -> None:
    text = "0: \tCOMMS-RES-all_reduce-float32        1073741824         40.000      75.000\n"
    (table,) = param.read(text).tables
    (row,) = table.rows
    assert (table.collective, row.dtype, row.size_bytes) == ("all_reduce", "float32", 2**30)
    assert (row.seconds, row.algbw, row.busbw) == (None, 40.0, 75.0)


def test_collectives_of_one_run_are_tables_of_their_own() -> None:
    header, row = outputs.PARAM_NEW.splitlines()[1:]
    second = row.replace("all_gather", "reduce_scatter")
    log = param.read(f"{header}\n{row}\n{row}\n{header}\n{second}\n")
    assert [(table.collective, len(table.rows)) for table in log.tables] == [
        ("all_gather", 2),
        ("reduce_scatter", 1),
    ]


def test_a_line_that_fits_no_header_is_told() -> None:
    log = param.read("\tCOMMS-RES-all_reduce-float32  1 2 3 4 5\n")
    assert log.tables == ()
    assert [warning.kind for warning in log.warnings] == ["damaged_line"]
