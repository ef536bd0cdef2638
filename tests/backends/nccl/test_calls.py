"""The tables of NCCL's calls, and its double, beside what released headers, libraries and CuPys declare."""

from __future__ import annotations

import ctypes
import json
from itertools import pairwise
from typing import Any

import pytest

from ccbench.backends.nccl import library as calls
from ccbench.backends.nccl.collectives import BY_CUPY
from ccbench.backends.nccl.dialects import (
    CONFIGURABLE_SINCE,
    NCCL,
    NCCL_FUNCTIONS,
    CollectiveConfig,
    SimulationInfo,
    nccl_version_text,
)
from tests.backends.cuda.emulated import EmulatedRuntime, is_call

from .computing import GEMM
from .cupy_module import MOVING
from .double import Process, World
from .process import OWN_ARGUMENTS
from .record import RECORDED

KINDS = {
    ctypes.c_int: "int",
    ctypes.c_size_t: "size_t",
    ctypes.c_uint: "uint",
    ctypes.c_float: "float",
}


def in_the_header(dtype: str) -> str:
    return f"nccl{dtype.replace('_', '').capitalize()}"


def kind(declared: Any) -> str:
    return KINDS.get(declared, "pointer")


def recorded(prefix: str) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RECORDED.glob(f"{prefix}-*"))
    ]


HEADERS = sorted(recorded("nccl"), key=lambda facts: int(facts["version"]))
CUPYS = recorded("cupy")


def name_of(facts: dict[str, Any]) -> str:
    return nccl_version_text(facts["version"]) if "version" in facts else str(facts["cupy"])


each_header = pytest.mark.parametrize("facts", HEADERS, ids=name_of)
each_cupy = pytest.mark.parametrize("facts", CUPYS, ids=name_of)


def test_old_and_new_releases_are_recorded() -> None:
    versions = [facts["version"] for facts in HEADERS]
    assert versions[0] < 21801
    assert versions[-1] >= 23203
    assert {facts["cupy"].split(".")[0] for facts in CUPYS} == {"13", "14"}


@each_header
def test_a_release_exports_the_functions_of_its_time_and_no_later_ones(
    facts: dict[str, Any],
) -> None:
    expected = {name for name, row in NCCL_FUNCTIONS.items() if facts["version"] >= row.since}
    assert set(facts["exported"]) & set(NCCL_FUNCTIONS) == expected


def test_every_first_version_is_where_the_records_change() -> None:
    versions = [facts["version"] for facts in HEADERS]
    for earlier, later in pairwise(HEADERS):
        for name in (set(later["exported"]) - set(earlier["exported"])) & set(NCCL_FUNCTIONS):
            since = NCCL_FUNCTIONS[name].since
            assert earlier["version"] < since <= later["version"], name
            assert since in versions, f"{name}: record {nccl_version_text(since)} too"


@each_header
def test_arguments_are_passed_as_the_header_declares(facts: dict[str, Any]) -> None:
    for name, row in NCCL_FUNCTIONS.items():
        if facts["version"] >= row.since:
            assert facts["functions"][name] == [kind(type_) for type_ in row.types], name


@each_header
def test_the_configuration_of_a_call_begins_as_the_header_declares(
    facts: dict[str, Any],
) -> None:
    ours = [[str(field[0]), kind(field[1])] for field in CollectiveConfig._fields_]
    declared = facts.get("collective", [])
    if facts["version"] < CONFIGURABLE_SINCE:
        assert declared == []
    elif facts["version"] == CONFIGURABLE_SINCE:
        assert ours == declared
    else:
        assert ours == declared[: len(ours)]


@each_header
def test_numbers_are_the_headers(facts: dict[str, Any]) -> None:
    for name, number in NCCL.dtypes.items():
        has_type = facts["version"] >= NCCL.dtype_since.get(name, 0)
        assert facts["dtypes"].get(in_the_header(name)) == (number if has_type else None), name
    for name, number in NCCL.ops.items():
        assert facts["ops"][f"nccl{name.capitalize()}"] == number
    for number, text in NCCL.results.items():
        assert facts["results"].get(text, number) == number
    for name, number in facts["results"].items():
        if name != "ncclNumResults":
            assert NCCL.results[number] == name
    constants = facts["constants"]
    assert int(constants["config magic"], 16) == calls.CONFIG_MAGIC
    assert calls.UNDEFINED_INT == -(2**31)
    assert (
        constants.get("NCCL_CONFIG_UNDEF_INT", "INT_MIN") == "INT_MIN"
    )  # 2.16 had one field and no name
    if facts["version"] >= NCCL_FUNCTIONS["ncclCommSplit"].since:
        assert int(constants["NCCL_SPLIT_NOCOLOR"]) == calls.NO_COLOUR
    if facts["version"] >= NCCL_FUNCTIONS["ncclCommWindowRegister"].since:
        assert int(constants["NCCL_WIN_COLL_SYMMETRIC"], 16) == calls.WINDOW_SYMMETRIC


@each_header
def test_the_estimates_structure_is_the_headers(facts: dict[str, Any]) -> None:
    if facts["version"] < NCCL_FUNCTIONS["ncclGroupSimulateEnd"].since:
        assert facts["simulation"] == []
        return
    ours = [kind(field[1]) for field in SimulationInfo._fields_]
    assert [text for _, text in facts["simulation"]] == ours
    assert int(facts["constants"]["simulation magic"], 16) == calls.SIMULATION_MAGIC
    assert facts["constants"]["NCCL_UNDEF_FLOAT"] == f"{calls.UNDEFINED_FLOAT}f"


# -- the double ------------------------------------------------------------------------------------------


@each_header
def test_the_double_has_the_functions_of_its_version(facts: dict[str, Any]) -> None:
    native = Process(World(version=facts["version"])).native
    has = {name for name in NCCL_FUNCTIONS if hasattr(native, name)}
    assert has == set(facts["exported"]) & set(NCCL_FUNCTIONS)


@each_cupy
def test_cublas_is_asked_as_cupy_has_it(facts: dict[str, Any]) -> None:
    assert facts["cublas"] == {"create": [], "destroy": ["handle"], "gemmEx": GEMM}


WORDS = {
    "sendbuf": "source",
    "recvbuf": "target",
    "recvcount": "count",
    "datatype": "dtype",
    "root": "peer",
}


@each_cupy
def test_the_double_takes_what_cupy_takes(facts: dict[str, Any]) -> None:
    module = Process(World(), cupy=int(facts["cupy"].split(".")[0])).module
    assert set(BY_CUPY.values()) <= MOVING.keys()
    for name, native in MOVING.items():
        ours = [WORDS.get(word.replace("buff", "buf"), word) for word in facts["methods"][name]]
        assert ours == [*OWN_ARGUMENTS[native].split(), "stream"], name
    assert facts["methods"]["destroy"] == facts["methods"]["abort"] == []
    named = {name for name in dir(module) if not name.startswith("_")}
    assert named <= set(facts["module"])
    assert module.get_build_version() == facts["build_version"]
    assert type(module.get_unique_id()).__name__ == facts["unique_id"]


@each_cupy
def test_the_doubles_runtime_has_only_what_cupys_has(facts: dict[str, Any]) -> None:
    own = {name for name in dir(EmulatedRuntime) if name[0] != "_" and is_call(name)}
    assert "streamSynchronize" in own
    driver = {name for name in own if name.startswith(("module", "launch", "occupancy"))}
    assert own - driver <= set(facts["runtime"])
