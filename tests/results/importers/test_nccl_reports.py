from __future__ import annotations

import json
from typing import Any

import pytest

from ccbench.results.importers.log import Outcome
from ccbench.results.importers.nccl_reports import read, recognises
from ccbench.results.importers.ranks import checked
from tests.results.importers.nccl_tests_outputs import output

SIZES = (1 << 20, 1 << 22)


def records(
    ranks: dict[str, int], factor: float, name: str = "AllReduce", op: str = "sum"
) -> list[dict[str, Any]]:
    """Records of both placements of each size, as a reporter of rccl-tests holds them."""
    found = []
    for size in SIZES:
        for in_place in (0, 1):
            time = 40.123456789012 + size / 1e5 + in_place
            algbw = size / time / 1e3
            rates = {"time": time, "algBw": algbw, "busBw": algbw * factor, "wrong": "0"}
            found.append({"numCycle": 0, "name": name, **ranks, "size": size, "type": "float", "redop": op})
            found[-1] |= {"inPlace": in_place, **rates}
    return found


def as_csv(found: list[dict[str, Any]]) -> str:
    titles = {"name": "collective", "wrong": "#wrong"}
    header = ",".join(titles.get(key, key if key == "numCycle" else key.lower()) for key in found[0])
    return "\n".join([header, *(",".join(str(value) for value in one.values()) for one in found), ""])


def as_list(found: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(one) for one in found) + "\n]\n"


def as_lines(found: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in found)


MPI = {"nodes": 2, "ranks": 16, "ranksPerNode": 8, "gpusPerRank": 1}
REPORTS = tuple(form(records(MPI, 1.875)) for form in (as_csv, as_list, as_lines))


@pytest.mark.parametrize("text", REPORTS)
def test_a_report_of_any_form_gives_the_same_rows(text: str) -> None:
    assert recognises(text)
    log = read(text)
    (table,) = log.tables
    assert (log.tool, log.library, log.outcome) == ("rccl-tests", "RCCL", Outcome.UNKNOWN)
    assert (table.collective, table.ranks, table.nodes) == ("all_reduce", 16, 2)
    assert [(row.size_bytes, row.in_place) for row in table.rows] == [
        (s, p) for s in SIZES for p in (False, True)
    ]
    first = table.rows[0]
    assert first.seconds == pytest.approx((40.123456789012 + SIZES[0] / 1e5) / 1e6, rel=1e-12)
    assert (first.dtype, first.op, first.root, first.wrong_elements) == ("float32", "sum", -1, 0)
    assert text.split("\n")[first.line - 1].count(str(SIZES[0]))
    assert checked(log) == log


@pytest.mark.parametrize(
    ("shape", "factor", "ranks"),
    [
        ({"gpus": 4}, 1.5, 4),
        ({"nodes": 1, "ranks": 2, "ranksPerNode": 2, "gpusPerRank": 4}, 1.75, 8),
        ({"nodes": 1, "ranks": 8, "ranksPerNode": 8, "gpusPerRank": 4}, 1.75, 8),
    ],
)
def test_ranks_are_gpus_as_the_rates_count_them(shape: dict[str, int], factor: float, ranks: int) -> None:
    log = checked(read(as_list(records(shape, factor))))
    assert log.tables[0].ranks == ranks
    assert not any(row.flags for row in log.tables[0].rows)


def test_checks_that_were_off_are_no_count() -> None:
    found = [one | {"wrong": "N/A"} for one in records(MPI, 1.875)]
    unquoted = as_list(found).replace('"N/A"', "N/A")
    for text in (as_csv(found), as_list(found), unquoted):
        assert [row.wrong_elements for row in read(text).tables[0].rows] == [None] * 4


def test_collectives_of_one_file_stay_apart() -> None:
    text = as_lines(records(MPI, 1.875) + records(MPI, 0.9375, "AlltoAll", "none"))
    assert [(table.collective, len(table.rows)) for table in read(text).tables] == [
        ("all_reduce", 4),
        ("all_to_all", 4),
    ]


@pytest.mark.parametrize("text", REPORTS)
def test_a_record_that_is_cut_is_left_out_and_told(text: str) -> None:
    last = text.rstrip().rstrip("]").rstrip()
    log = read(last[: last.rindex(",", 0, len(last) - 40)])
    assert len(log.tables[0].rows) == 3
    assert log.outcome is Outcome.CUT
    assert [notice.kind for notice in log.notices] == ["damaged_line"]


def test_records_of_other_tools_are_not_taken() -> None:
    assert not recognises(
        '{"name":"allreduce", "kernel":6, "algBw":3.98, "busBw":6.96, "size":24576, "time":6.18}\n'
    )
    assert not recognises("size,time\n8,1.0\n")
    assert not recognises(output())
