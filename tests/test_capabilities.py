"""What the rows of backends say is what the code behind them has, and nobody else knows a backend's name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends import load_entry_point
from ccbench.backends.base import lacked
from ccbench.backends.gloo import REDUCE_OPS
from ccbench.backends.kernels import abi
from ccbench.backends.mpi import calls as mpi_calls
from ccbench.backends.nccl import PROTOCOL_VALUES, TRANSPORTS
from ccbench.cases.axes import AXIS, ONE_PROCESS, PROCESSES, Case
from ccbench.cases.capabilities import DECLARED, backend_names
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import CPU_DTYPES, ITEM_BYTES

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "ccbench"


@pytest.mark.parametrize("name", backend_names())
def test_a_row_has_workers_for_each_process_model_that_cases_may_ask_for(name: str) -> None:
    able = DECLARED[name]
    asked = {model for model in PROCESSES if able.has("processes", model)}
    assert (
        asked == set(able.workers) - {ONE_PROCESS} or able.launched
    )  # which starts a process for each rank
    assert all(callable(load_entry_point(worker)) for worker in able.workers.values())
    for axis, value in able.lacks:
        assert able.has(axis, value)
    assert all(able.values[axis] for axes in able.lacks.values() for axis in axes)


@pytest.mark.parametrize("name", backend_names())
def test_a_row_names_axes_and_values_that_a_suite_can_ask_for(name: str) -> None:
    for axis, values in DECLARED[name].values.items():
        known = AXIS[axis].values
        if isinstance(values, tuple) and known and axis != "in_place":
            assert set(values) <= set(known)
    assert set(DECLARED[name].not_in_place) <= set(COLLECTIVES)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("cpu", {}, None),
        (
            "cpu",
            {"transport": "host"},
            "cpu has no transport host; there is on nccl, cuda, rccl",
        ),
        (
            "cuda",
            {"mode": "overlap"},
            "cuda has no mode overlap; it has streaming, isolated, graph, cold; "
            "there is on cpu, nccl",
        ),
        ("cpu", {"ranks": 256}, None),
        ("cpu", {"ranks": 257}, "257 ranks: cpu has at most 256"),
    ],
)
def test_what_a_row_lacks_is_refused_with_who_has_it(
    name: str, changes: dict[str, Any], said: str | None
) -> None:
    case = Case("s", name, "all_reduce", "default", "float32", "sum", 4096, 1024, 2)
    assert lacked(name, replace(case, **changes)) == said


def listed(name: str, axis: str) -> set[str]:
    values: Any = DECLARED[name].values[axis]
    return set(values)


@pytest.mark.parametrize("name", ["cuda", "cuda-host"])
def test_the_rows_of_kernels_are_what_their_interface_has(name: str) -> None:
    assert listed(name, "op") == set(abi.OPS)
    assert listed(name, "dtype") == set(abi.TYPES) & set(ITEM_BYTES)


def test_the_rows_of_libraries_are_what_their_tables_of_calls_have() -> None:
    assert listed("mpi", "op") == set(mpi_calls.OPS)
    assert listed("mpi", "dtype") == {*mpi_calls.TYPES, *CPU_DTYPES}
    assert listed("gloo", "op") == set(REDUCE_OPS)
    assert listed("nccl", "protocol") == set(PROTOCOL_VALUES)
    assert {"default"} | listed("nccl", "transport") == set(TRANSPORTS)


# -- nobody else knows a backend's name --------------------------------------------------------------------

ALSO_MEANING = {
    "cpu": (4, "a kind of machine in machine files, and of clock"),
    "simulated": (0, "the column that says that times were computed"),
    "nccl": (
        6,
        "what importing takes a tool's output or PyTorch's lines to be of, a version, constants, a model to fit",
    ),
    "rccl": (2, "the same, and tables of constants"),
    "hccl": (1, "what importing takes a tool's output to be of"),
    "mpi": (6, "the same"),
    "gloo": (2, "the same, and the extra that installs torch"),
}
"""Name of a backend -> how often it is written outside ccbench/backends, at most, and what it means there."""


@cache
def written() -> list[tuple[str, str, bool]]:
    """(where, name, compared) of all others; in machines it is a kind of device."""
    apart = ("backends", "topology", "machine")
    files = [file.relative_to(PACKAGE) for file in sorted(PACKAGE.rglob("*.py"))]
    trees = [
        (file, ast.parse((PACKAGE / file).read_text(encoding="utf-8")))
        for file in files
        if file.parts[0] not in apart and file.parts[:2] != ("readers", "machines")
    ]
    return [
        (f"{file}:{node.lineno}", str(node.value), compared)
        for file, tree in trees
        for compared in (False, True)
        for node in constants(tree, compared)
        if node.value in DECLARED
    ]


def quoted(word: str) -> list[str]:
    """Where ``word`` is a text by itself."""
    return [
        place
        for place, name, compared in written()
        if (name, compared) == (word, word == "simulated")
    ]


def constants(tree: ast.AST, compared: bool) -> Iterator[ast.Constant]:
    """All of a module; only those that something is compared with: a column is read, but is no operand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and not compared:
            yield node
        elif isinstance(node, ast.Compare) and compared:
            yield from (one for one in ast.walk(node) if isinstance(one, ast.Constant))


@pytest.mark.parametrize(
    ("text", "compared", "seen"),
    [
        ('row["x"]', False, ["x"]),
        ('row["x"]', True, []),
        ('backend in ("x", "y")', True, ["x", "y"]),
    ],
)
def test_a_name_that_is_written_is_seen(text: str, compared: bool, seen: list[str]) -> None:
    assert [node.value for node in constants(ast.parse(text), compared)] == seen


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", DECLARED)
def test_nobody_but_the_backends_knows_a_backends_name(name: str) -> None:
    most, _ = ALSO_MEANING.get(name, (0, ""))
    assert len(quoted(name)) <= most, quoted(name)


# -- documents ---------------------------------------------------------------------------------------------


LISTED = ("mode", "op", "dtype")


def row_of(name: str) -> str:
    """A backend's line in the table of docs/backends.md."""
    able = DECLARED[name]

    def words(axis: str) -> str:
        values = able.values[axis]
        assert isinstance(values, tuple)
        return ", ".join(values)

    lacking = [dtype for dtype in ITEM_BYTES if not able.has("dtype", dtype)]
    cells = (
        f"`{name}`",
        words("mode"),
        words("op"),
        f"all but {', '.join(lacking)}" if lacking else "all",
        str(able.most_ranks or "-"),
    )
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", backend_names())
def test_the_tables_in_the_document_are_what_the_rows_say(name: str) -> None:
    page = (CHECKOUT / "docs" / "backends.md").read_text(encoding="utf-8")
    assert row_of(name) in page.splitlines()
    table = page.partition("| keys | backends |\n")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if f"`{name}`" in line]
    others = {*LISTED, "collective", "overlap_with", "in_place"}
    keys = [f"`{AXIS[axis].key}`" for axis in DECLARED[name].values if axis not in others]
    assert sorted(re.findall("`.+?`", " ".join(rows))) == sorted(keys)
