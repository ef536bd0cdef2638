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


@pytest.mark.parametrize(
    ("shape", "factor", "ranks"),
    [
        ({"gpus": 4}, 1.5, 4),
        ({"nodes": 1, "ranks": 2, "ranksPerNode": 2, "gpusPerRank": 4}, 1.75, 8),
        ({"nodes": 1, "ranks": 8, "ranksPerNode": 8, "gpusPerRank": 4}, 1.75, 8),
    ],
)
def test_ranks_are_gpus_as_the_rates_count_them(
    shape: dict[str, int], factor: float, ranks: int
) -> None:
    log = checked(read(as_list(records(shape, factor))))
    assert log.tables[0].ranks == ranks
    assert not any(row.flags for row in log.tables[0].rows)


def test_checks_that_were_off_are_no_count() -> None:
    unchecked = [record | {"wrong": "N/A"} for record in records(MPI, 1.875)]
    unquoted = as_list(unchecked).replace('"N/A"', "N/A")
    for text in (as_csv(unchecked), as_list(unchecked), unquoted):
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
    assert log.outcome is LogOutcome.CUT
    assert [warning.kind for warning in log.warnings] == ["damaged_line"]


def test_records_of_other_tools_are_not_taken() -> None:
    assert not recognises(
        '{"name":"allreduce", "kernel":6, "algBw":3.98, "busBw":6.96, "size":24576, "time":6.18}\n'
    )


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


def test_a_whole_document_gives_everything_it_says() -> None:
    text = document_text()
    assert recognises(text)
    log = read(text)
    (table,) = log.tables
    assert (log.tool, log.outcome, log.versions) == (
        "nccl-tests",
        LogOutcome.COMPLETE,
        {"NCCL": "2.30.7"},
    )
    assert log.environment == {"NCCL_ALGO": "Ring"}
    assert (table.collective, table.ranks, table.nodes) == ("all_reduce", 8, 2)
    assert (log.devices[5].host, log.devices[5].device, log.devices[5].model) == (
        "box1",
        1,
        "NVIDIA H100",
    )
    first, second = table.rows[:2]
    assert (first.size_bytes, first.count, first.dtype) == (1 << 20, 1 << 18, "float32")
    assert (first.op, first.root) == ("sum", -1)
    assert (first.seconds, first.wrong_elements, second.wrong_elements) == (1e-4, 0, None)
    assert first.samples_seconds == tuple(time / 1e6 for time in TIMES)
    assert (first.extra["min_us"], "cv_pct" in first.extra) == (99.0, False)
    assert (second.in_place, second.samples_seconds) == (True, ())
    assert checked(log) == log


def test_a_placement_that_was_not_run_and_figures_that_are_none() -> None:
    first = result(1 << 20, 100.0) | {"out_of_place": None}
    second = result(1 << 20, 100.0)
    second["in_place"] = {"cpu_time": "nan", "alg_bw": "nan", "bus_bw": "nan", "nwrong": None}
    rows = read(document_text(results=[first, second])).tables[0].rows
    assert [row.in_place for row in rows] == [True, False, True]
    assert (rows[2].seconds, rows[2].algbw) == (None, None)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"graph": 0, "blocking_collectives": "true"}, "isolated"),
        ({"graph": 4, "blocking_collectives": "true"}, "graph"),
        ({}, "streaming"),
    ],
)
def test_the_mode_is_read_from_flags_that_are_strings(
    config: dict[str, Any], mode: str
) -> None:
    assert read(document_text(config=config)).tables[0].mode == mode


def test_processes_list_only_their_first_device() -> None:
    devices = [
        {"rank": rank, "group": 0, "pid": rank, "hostname": f"box{rank}"} for rank in (0, 8)
    ]
    table = read(document_text(config={"nthreads": 1, "ngpus": 8, "devices": devices})).tables[
        0
    ]
    assert (table.ranks, table.nodes) == (16, 2)


def test_without_a_name_the_figures_name_the_collective() -> None:
    nameless = [
        {**result_document, "experiment_name": ""} for result_document in document()["results"]
    ]
    assert (
        read(document_text(args=["a.out"], results=nameless)).tables[0].collective
        == "all_reduce"
    )
    assert read(document_text(args=["a.out"])).tables[0].collective == "all_reduce"


def test_a_document_that_ends_early_gives_the_whole_results_before_the_end() -> None:
    text = document_text()
    end = text.rindex('"in_place":{')
    log = read(text[:end])
    assert log.outcome is LogOutcome.CUT
    assert [warning.kind for warning in log.warnings] == ["truncated"]
    assert [(row.size_bytes, row.in_place) for row in log.tables[0].rows] == [
        (1 << 20, False),
        (1 << 20, True),
        (1 << 21, False),
    ]


def test_an_error_without_a_closing_average_is_a_crash() -> None:
    broken = document(errors=["unhandled cuda error"])
    del broken["end_time"]
    log = read(json.dumps(broken))
    assert (log.outcome, log.detail) == (LogOutcome.CRASHED, "unhandled cuda error")


def test_a_document_of_wrong_shapes_gives_a_log_without_rows() -> None:
    wrong = {"results": 5, "config": [], "env": {}, "args": [1]}
    for name, shape in (*wrong.items(), ("results", [[], 1, {}])):
        log = read(document_text(**{name: shape}))
        assert all(row.size_bytes for table in log.tables for row in table.rows)


@pytest.mark.parametrize(
    ("text", "value", "whole"),
    [
        ('{"a": [1, 2]}', {"a": ["1", "2"]}, True),
        ('{"a": [1, 2], "b": {"c": 1', {"a": ["1", "2"]}, False),
        ('{"a": [1, 2], "b": {"c": 1, "d', {"a": ["1", "2"], "b": {"c": "1"}}, False),
        ('{"a": "x, y", "b": 12', {"a": "x, y"}, False),
        ("[" * 100_000, None, False),
    ],
)
def test_what_is_whole_of_broken_json_is_kept(text: str, value: object, whole: bool) -> None:
    assert loaded(text) == (value, whole)
