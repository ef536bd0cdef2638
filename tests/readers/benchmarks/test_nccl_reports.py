from __future__ import annotations

import json
from typing import Any

import pytest

from ccbench.readers.benchmarks.log import LogOutcome, checked
from ccbench.readers.benchmarks.nccl_reports import loaded, read, recognises

SIZES = (1 << 20, 1 << 22)


def records(
    ranks: dict[str, int], factor: float, name: str = "AllReduce", op: str = "sum"
) -> list[dict[str, Any]]:
    """Records of both placements of each size, as a reporter of rccl-tests holds them."""
    made = []
    for size in SIZES:
        for in_place in (0, 1):
            time = 40.123456789012 + size / 1e5 + in_place
            algbw = size / time / 1e3
            rates = {"time": time, "algBw": algbw, "busBw": algbw * factor, "wrong": "0"}
            made.append(
                {
                    "numCycle": 0,
                    "name": name,
                    **ranks,
                    "size": size,
                    "type": "float",
                    "redop": op,
                }
            )
            made[-1] |= {"inPlace": in_place, **rates}
    return made


def as_csv(records_made: list[dict[str, Any]]) -> str:
    titles = {"name": "collective", "wrong": "#wrong"}
    header = ",".join(
        titles.get(key, key if key == "numCycle" else key.lower()) for key in records_made[0]
    )
    return "\n".join(
        [
            header,
            *(",".join(str(value) for value in record.values()) for record in records_made),
            "",
        ]
    )


def as_list(records_made: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(record) for record in records_made) + "\n]\n"


def as_lines(records_made: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records_made)


MPI = {"nodes": 2, "ranks": 16, "ranksPerNode": 8, "gpusPerRank": 1}
REPORTS = tuple(form(records(MPI, 1.875)) for form in (as_csv, as_list, as_lines))
REPORTS += (as_csv(records(MPI, 1.875)).replace("nodes,", "", 1),)  # MPI builds until May 2026


@pytest.mark.parametrize("text", REPORTS)
def test_a_report_of_any_form_gives_the_same_rows(text: str) -> None:
    assert recognises(text)
    log = read(text)
    (table,) = log.tables
    assert (log.tool, log.library, log.outcome) == ("rccl-tests", "RCCL", LogOutcome.UNKNOWN)
    assert (table.collective, table.ranks, table.nodes) == ("all_reduce", 16, 2)
    assert [(row.size_bytes, row.in_place) for row in table.rows] == [
        (s, p) for s in SIZES for p in (False, True)
    ]
    first = table.rows[0]
    assert first.seconds == pytest.approx((40.123456789012 + SIZES[0] / 1e5) / 1e6, rel=1e-12)
    assert (first.dtype, first.op, first.root, first.wrong_elements) == (
        "float32",
        "sum",
        -1,
        0,
    )
    assert text.split("\n")[first.line - 1].count(str(SIZES[0]))
    assert checked(log) == log


TIMES = [101.0, 99.0, 100.0]


def body(
    size: int, time: float, factor: float = 1.75, wrong: float | None = 0.0
) -> dict[str, Any]:
    algbw = size / time / 1e3
    return {
        "time": time,
        "alg_bw": round(algbw, 6),
        "bus_bw": round(algbw * factor, 6),
        "nwrong": wrong,
    }


def result(size: int, time: float) -> dict[str, Any]:
    per_iteration = {
        "skipped_iterations": 0,
        "min_us": 99.0,
        "max_us": 101.0,
        "p99_us": 101.0,
        "cv_pct": "nan",
        "times_us": TIMES,
    }
    words = {"type": "float", "redop": "sum", "root": "    -1"}
    return {
        "size": size,
        "count": size // 4,
        **words,
        "out_of_place": body(size, time),
        "out_of_place_per_iter": per_iteration,
        "in_place": body(size, time * 1.1, wrong=None),
        "actual_iterations": 20,
        "experiment_name": "AllReduce",
    }


def document(**changed: Any) -> dict[str, Any]:
    """A document as version 3 writes it, with two sizes on eight ranks."""
    devices = [
        {
            "rank": rank,
            "group": 0,
            "pid": 100 + rank,
            "hostname": f"box{rank // 4}",
            "device": rank % 4,
            "device_hex": f"0000:{rank % 4 + 16:02x}:00",
            "device_info": "NVIDIA H100",
        }
        for rank in range(8)
    ]
    config = {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": 1 << 20,
        "maximum_bytes": 1 << 21,
        "step_factor": 2,
        "iterations": 20,
        "graph": 0,
    }
    return {
        "version": 3,
        "start_time": "2026-06-01 10:11:12",
        "args": ["build/all_reduce_perf", "-b", "1M", "-e", "2M", "-J", "x.json"],
        "env": ["HOME=/root", "NCCL_ALGO=Ring", "SECRET_TOKEN=abc"],
        "nccl_version": 23007,
        "config": {**config, "blocking_collectives": "false", "devices": devices},
        "results": [result(1 << 20, 100.0), result(1 << 21, 150.0)],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 20.5, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-06-01 10:11:13",
    } | changed


def document_text(**changed: Any) -> str:
    return json.dumps(document(**changed), separators=(",", ":"))


@pytest.mark.parametrize(
    ("text", "value", "whole"),
    [
        ('{"a": [1, 2]}', {"a": ["1", "2"]}, True),
        ('{"a": [1, 2], "b": {"c": 1', {"a": [1, 2]}, False),
        ('{"a": [1, 2], "b": {"c": 1, "d', {"a": [1, 2], "b": {"c": 1}}, False),
        ('{"a": "x, y", "b": 12', {"a": "x, y"}, False),
        ("[" * 100_000, None, False),
    ],
)
def test_what_is_whole_of_broken_json_is_kept(text: str, value: object, whole: bool) -> None:
    assert loaded(text) == (value, whole)
