"""Reads what nccl-tests writes with ``-J file.json`` (github.com/NVIDIA/nccl-tests src/util.cu).

Booleans are strings there, numbers that are none are "nan", a placement that was not run is null, and a run
that does not exit in order leaves the document open. Only variables of collective libraries are taken from
the environment, which the file holds whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ccbench.results.importers.log import DeviceLine, ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers import nccl_tests_facts as facts
from ccbench.results.importers.readers import nccl_tests_inference as inference
from ccbench.results.importers.readers.nccl_tests_columns import LARGEST_SIZE, figure
from ccbench.results.importers.readers.words import dtype_name
from ccbench.topology.graph import Notice

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],"]', re.DOTALL)
_CLOSERS = {"{": "}", "[": "]"}
_DEEPEST = 64
"""Levels of nesting that are followed; the tools' documents have six."""


def loaded(text: str) -> tuple[Any, bool]:
    """(value, whole): the JSON value in ``text``; where it is cut or broken, what stands before the break.

    Returns (None, False) where nothing can be taken; raises nothing.
    """
    try:
        return json.loads(text), True
    except json.JSONDecodeError as error:
        sound = text[: error.pos]
    except (ValueError, RecursionError):
        return None, False
    return next(filter(None, (_attempt(_closed(part)) for part in (text, sound))), None), False


def _attempt(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _closed(text: str) -> str:
    """``text`` up to its last whole element, with everything open closed."""
    stack: list[str] = []
    end, open_then = 0, ""
    for piece in _PIECE.finditer(text):
        mark = piece[0]
        if mark == '"' or len(stack) > _DEEPEST:
            break
        if mark in _CLOSERS:
            stack.append(_CLOSERS[mark])
        elif mark in "}]":
            if not stack or stack.pop() != mark:
                break
            end, open_then = piece.end(), "".join(stack)
        elif mark == ",":
            end, open_then = piece.start(), "".join(stack)
    return text[:end] + open_then[::-1]


_START = re.compile(
    r'\s{0,1000}\{\s{0,100}"version"\s{0,9}:\s{0,9}\d{1,4}\s{0,9},\s{0,99}"start_time"\s{0,9}:'
)
_HALF_SECONDS = 0.5e-12
"""Half of the last of six decimals of a microsecond."""
_HALF_RATE = 0.5e-6
_COLUMNS = ("size", "count", "type", "redop", "root")
_STATISTICS = (
    "min_us",
    "max_us",
    "avg_us",
    "p50_us",
    "p95_us",
    "p99_us",
    "stdev_us",
    "cv_pct",
    "skipped_iterations",
)


def recognises(text: str) -> bool:
    """Whether ``text`` starts as nccl-tests' JSON files do."""
    return _START.match(text) is not None


def read(text: str) -> ImportedLog:
    """The log of a JSON file; one that is cut or broken gives what stands before. Raises nothing."""
    value, whole = loaded(text)
    document: Mapping[str, Any] = value if isinstance(value, dict) else {}
    config = _mapping(document.get("config"))
    devices = tuple(_device(one) for one in _list(config.get("devices")) if isinstance(one, dict))
    arguments = [one for one in _list(document.get("args")) if isinstance(one, str)]
    environment: dict[str, str] = {}
    for one in _list(document.get("env")):
        environment |= facts.environment_facts(one) if isinstance(one, str) else {}
    errors = [one for one in _list(document.get("errors")) if isinstance(one, str) and one]
    finished = whole and "end_time" in document and "average_bus_bandwidth" in document
    outcome = Outcome.COMPLETE if finished else Outcome.CRASHED if errors else Outcome.CUT
    table = _table(document, config, devices, arguments, outcome)
    code = _whole(document.get("nccl_version"))
    return ImportedLog(
        tool="nccl-tests",
        library="NCCL",
        tables=(table,) if table else (),
        devices=devices,
        versions={"NCCL": facts.decoded(code)} if code else {},
        environment=environment,
        notices=() if whole else (Notice("truncated", "the JSON document ends before its end or is broken"),),
        outcome=outcome,
        detail=errors[0][:200] if errors else "",
        facts={"started_at": document["start_time"]} if isinstance(document.get("start_time"), str) else {},
    )


def _table(
    document: Mapping[str, Any],
    config: Mapping[str, Any],
    devices: tuple[DeviceLine, ...],
    arguments: list[str],
    outcome: Outcome,
) -> ImportedTable | None:
    results = [one for one in _list(document.get("results")) if isinstance(one, dict)]
    if not results and not config:
        return None
    rows = [row for result in results for row in _rows(result)]
    named = next(filter(None, map(facts.program_collective, _programs(arguments, results))), "")
    ranks = _ranks(config, devices)
    collective = named or inference.likely_collective(rows, _COLUMNS, ranks)
    average = _mapping(document.get("average_bus_bandwidth")).get("bandwidth")
    told = {key: value for key, value in config.items() if key != "devices"}
    bounds = _whole(_mapping(document.get("out_of_bounds")).get("count"))
    if bounds is not None:
        told["out_of_bounds"] = bounds
    return ImportedTable(
        collective,
        tuple(rows),
        ranks,
        inference.nodes_of_devices(devices, ranks) or (len({d.host for d in devices}) or None),
        mode="graph"
        if _whole(config.get("graph"))
        else "isolated"
        if _true(config, "blocking_collectives")
        else "streaming",
        average_busbw=_number(average),
        outcome=outcome,
        facts=told,
    )


def _rows(result: Mapping[str, Any]) -> list[ImportedRow]:
    size = _whole(result.get("size"))
    if size is None:
        return []
    kind, op = str(result.get("type", "")), str(result.get("redop", ""))
    root = str(result.get("root", "-1")).strip()
    rows = []
    for name, in_place in (("out_of_place", False), ("in_place", True)):
        body = result.get(name)
        if not isinstance(body, dict) or "bus_bw" not in body:
            continue
        timing = _mapping(result.get(f"{name}_per_iter"))
        extra: dict[str, Any] = {
            key: timing[key] for key in _STATISTICS if _number(timing.get(key)) is not None
        }
        if _whole(result.get("actual_iterations")) is not None:
            extra["iterations"] = result["actual_iterations"]
        if "cpu_time" in body:
            extra["clock"] = "cpu"
        seconds = _number(body.get("time", body.get("cpu_time")))
        wrong = _number(body.get("nwrong"))
        samples = [_number(one) for one in _list(timing.get("times_us"))]
        rows.append(
            ImportedRow(
                size,
                _whole(result.get("count")),
                dtype_name(kind),
                op,
                int(root) if re.fullmatch(r"-?\d{1,9}", root) else -1,
                in_place,
                None if seconds is None else seconds / 1e6,
                _number(body.get("alg_bw")),
                _number(body.get("bus_bw")),
                None if wrong is None else int(wrong),
                tuple(one / 1e6 for one in samples if one is not None),
                (_HALF_SECONDS, _HALF_RATE, _HALF_RATE),
                extra=extra,
            )
        )
    return rows


def _device(one: Mapping[str, Any]) -> DeviceLine:
    return DeviceLine(
        _whole(one.get("rank")) or 0,
        _whole(one.get("group")),
        _whole(one.get("pid")),
        str(one.get("hostname", "")),
        _whole(one.get("device")),
        str(one.get("device_hex", "")),
        str(one.get("device_info", "")),
    )


def _ranks(config: Mapping[str, Any], devices: tuple[DeviceLine, ...]) -> int | None:
    """The file lists only the first device of each process, so the last one stands for all of its process."""
    if not devices:
        return None
    each = (_whole(config.get("nthreads")) or 1) * (_whole(config.get("ngpus")) or 1)
    if len({device.group for device in devices}) > 1:
        listed = inference.ranks_of_devices(devices)
        return None if listed is None else listed * each
    last = max(device.rank for device in devices)
    return last + (each if all(device.rank % each == 0 for device in devices) else 1)


def _programs(arguments: list[str], results: list[dict[str, Any]]) -> list[str]:
    """What names the collective: the program's name, then that of the first experiment (AllReduce ...)."""
    return [*arguments[:1], *(f"{one.get('experiment_name', '')}_perf".lower() for one in results[:1])]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _true(config: Mapping[str, Any], name: str) -> bool:
    return str(config.get(name, "false")).lower() not in ("false", "0")


def _number(value: Any) -> float | None:
    """A finite number, also where it stands as text; None for "nan", null and anything else."""
    if isinstance(value, str):
        return figure(value.strip())
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30:
        return float(value)
    return None


def _whole(value: Any) -> int | None:
    number = _number(value)
    if number is None or not 0 <= number < LARGEST_SIZE or number != int(number):
        return None
    return int(value) if isinstance(value, (int, str)) and str(value).strip().isdecimal() else int(number)
