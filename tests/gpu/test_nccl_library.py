"""NCCL as it is installed: the wrapper's tables, its calls by ctypes, its structures.

The first part needs CuPy and NCCL but no driver; the rest one GPU, on which a communicator has one rank.
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ccbench.backends import open_backend
from ccbench.backends.base import CannotRun
from ccbench.backends.nccl import ALGORITHMS, CTA_POLICIES
from ccbench.backends.nccl.collectives import BY_CUPY, Amounts, Call, prepared
from ccbench.backends.nccl.dialects import NCCL
from ccbench.backends.nccl.library import (
    Communicator,
    Library,
    LibraryFailed,
    communicator_of,
    open_by_cupy,
)
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import numpy_dtype
from ccbench.errors import CcbenchError
from tests.backends.nccl.record import RECORDED, cupy_facts

TO_DEVICE, TO_HOST = 1, 2

FLOAT8_CAPABILITY = 90
"""Compute capability from which NCCL reduces float8: 9.0 (its documentation, "ncclDataType_t")."""

Array = NDArray[Any]


@pytest.fixture(scope="module")
def nccl() -> Library:
    """NCCL by the installed CuPy, or a skip with the reason."""
    try:
        return open_by_cupy()
    except CcbenchError as error:
        pytest.skip(str(error))


def test_the_library_has_the_functions_of_its_version(nccl: Library) -> None:
    for name, row in NCCL.functions.items():
        assert hasattr(nccl.native, name) == (nccl.version >= row.since), name


def test_the_library_is_the_one_that_cupy_loaded(nccl: Library) -> None:
    assert "libnccl.so" in nccl.path
    assert nccl.native.ncclGetErrorString(4).startswith(b"invalid argument")


def test_unique_ids_have_their_size_and_differ(nccl: Library) -> None:
    one, other = nccl.unique_id(), nccl.unique_id()
    assert len(one) == len(other) == 128
    assert one != other


def test_the_installed_cupy_has_the_calls_as_recorded(nccl: Library) -> None:
    facts = cupy_facts()
    newest = json.loads(sorted(RECORDED.glob("cupy-*"))[-1].read_text(encoding="utf-8"))
    for name in BY_CUPY.values():
        assert facts["methods"][name] == newest["methods"][name]
    assert facts["cublas"] in ({}, newest["cublas"])
    same = RECORDED / f"cupy-{facts['cupy']}.json"
    if same.exists():
        assert facts["methods"] == json.loads(same.read_text(encoding="utf-8"))["methods"]
    if not facts["cublas"]:
        pytest.skip("everything but cuBLAS is as recorded, which is not installed")


def test_the_library_tells_the_value_in_effect_of_a_variable_that_is_set(
    nccl: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any communicator, and in a process of its own: NCCL reads a variable once."""
    monkeypatch.setenv("NCCL_DEBUG", "warn")
    monkeypatch.setenv("NCCL_SET_THREAD_NAME", "1")
    program = (
        "import os; from ccbench.backends.nccl.library import open_by_cupy; "
        "print(open_by_cupy().settings(os.environ))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    text = "{'NCCL_DEBUG': 'WARN', 'NCCL_SET_THREAD_NAME': 'TRUE'}"
    assert done.stdout.strip() == (text if nccl.has("ncclParamGetParameter") else "{}")


def test_flags_of_policies_are_the_installed_headers(nccl: Library) -> None:
    header = Path(nccl.path).parents[1] / "include" / "nccl.h"
    if not header.exists():
        pytest.skip(f"no {header}")
    text = header.read_text(encoding="utf-8")
    for name, policy in CTA_POLICIES.items():
        declared = re.search(rf"#define NCCL_CTA_POLICY_{name.upper()} +(\S+)", text)
        assert (declared is not None) == (
            nccl.version >= policy.since[0] * 10_000 + policy.since[1] * 100
        )
        assert declared is None or int(declared[1], 16) == policy.flag


def local_function(path: str, native: ctypes.CDLL, mangled: str) -> int:
    """The address of a function that the wheels' library names and does not export; 0 for none."""
    lines = subprocess.run(
        ["nm", path], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    offsets = {
        name: int(at, 16) for at, _, name in (line.split() for line in lines if line[0] != " ")
    }
    exported = ctypes.cast(native.ncclGetVersion, ctypes.c_void_p).value or 0
    return exported - offsets["ncclGetVersion"] + offsets[mangled] if mangled in offsets else 0


BITS = {
    "ring": 0b111 << 3,
    "tree": 0b111,
    "collnet": 0x900,
    "collnetdirect": 0x100,
    "collnetchain": 0x800,
    "nvls": 0x4000,
    "nvlstree": 0x20000,
    "pat": 0x100000,
}
"""Three bits an algorithm, in the order of NCCL_ALGO_TREE and its like: LL, LL128, Simple."""


SELECTIONS = {
    **{row.selection: BITS[name] for name, row in ALGORITHMS.items()},
    "TREE_LL128": 0b010,
    "TREE_SIMPLE": 0b100,
    "RING_LL128": 0b010 << 3,
    "RING_SIMPLE": 0b100 << 3,
    # Not LL alone, which is why no call asks for it.
    "RING_LL": 0b011 << 3,
}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_library_parses_the_algorithm_of_a_call_as_meant(
    nccl: Library, selection: str
) -> None:
    if nccl.version < 23102 or not shutil.which("nm"):
        pytest.skip(
            f"NCCL {nccl.version_text} takes no algorithm with a call, or there is no nm"
        )
    address = local_function(nccl.path, nccl.native, "_Z12ncclAlgParsePKcPm")
    if not address:
        pytest.skip(f"{nccl.path} is stripped of its local names")
    parse = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))(
        address
    )
    bits = ctypes.c_uint64(0)
    assert (parse(selection.encode(), ctypes.byref(bits)), bits.value) == (
        0,
        SELECTIONS[selection],
    )


def dropped(nccl: Library) -> None:
    with nccl.group():
        raise ZeroDivisionError


def dropped_inside(nccl: Library) -> None:
    with nccl.group(), suppress(ZeroDivisionError):
        dropped(nccl)


def test_a_group_ends_and_one_that_is_dropped_fails_at_every_depth_and_no_later_one(
    nccl: Library,
) -> None:
    with pytest.raises(ZeroDivisionError):
        dropped(nccl)
    with pytest.raises(LibraryFailed, match="ncclInvalidArgument"):
        dropped_inside(nccl)
    with nccl.group(), nccl.group():
        pass


# -- one GPU, one rank -----------------------------------------------------------------------------------


@pytest.fixture
def alone(nccl: Library) -> Iterator[Communicator]:
    """A communicator of one rank on the first device."""
    reason = open_backend("cuda").unavailable()
    if reason:
        pytest.skip(reason)
    made = communicator_of(nccl, 1, nccl.unique_id(), 0, 0)
    yield made
    made.destroy()


def moved(comm: Communicator, call: Call, values: Array) -> Array:
    """What is in the call's target afterwards."""
    runtime = comm.library.runtime
    stream = runtime.streamCreateWithFlags(1)
    runtime.memcpyAsync(call.source, values.ctypes.data, values.nbytes, TO_DEVICE, stream)
    prepared(comm, call, stream)()
    result = np.empty_like(values)
    runtime.memcpyAsync(result.ctypes.data, call.target, result.nbytes, TO_HOST, stream)
    runtime.streamSynchronize(stream)
    runtime.streamDestroy(stream)
    return result


@pytest.mark.parametrize("name", [name for name, row in COLLECTIVES.items() if row.moves_data])
def test_a_rank_alone_gets_its_own_elements(alone: Communicator, name: str) -> None:
    runtime = alone.library.runtime
    source, target = runtime.malloc(1 << 16), runtime.malloc(1 << 16)
    amounts = Amounts((1000,), (1000,)) if name == "all_to_all_v" else None
    for dtype in NCCL.dtypes:
        if dtype.startswith("float8") and int(_capability(alone.library)) < FLOAT8_CAPABILITY:
            continue
        try:
            alone.library.dtype_number(dtype)
        except CannotRun:
            continue
        values = (np.arange(1000) % 7).astype(numpy_dtype(dtype))
        for op in NCCL.ops if COLLECTIVES[name].reduces else ("none",):
            if dtype.startswith("float8") and op == "avg":
                continue  # NCCL multiplies none where a communicator has one rank (ncclLaunchOneRank)
            call = Call(name, source, target, len(values), dtype, op, 0, amounts=amounts)
            assert np.array_equal(moved(alone, call, values), values), (dtype, op)
    for address in (source, target):
        runtime.free(address)


def _capability(nccl: Library) -> int:
    return 10 * int(nccl.runtime.deviceGetAttribute(75, 0)) + int(
        nccl.runtime.deviceGetAttribute(76, 0)
    )


def test_premulsum_multiplies(alone: Communicator) -> None:
    runtime = alone.library.runtime
    address = runtime.malloc(4096)
    op = alone.premultiplied(3.0, "float32")
    values = np.arange(100, dtype=np.float32)
    seen = moved(alone, Call("all_reduce", address, address, 100, "float32", op), values)
    assert np.array_equal(seen, 3 * values)
    alone.release(op)
    runtime.free(address)


@pytest.mark.parametrize("symmetric", [False, True])
def test_memory_of_nccl_is_registered(alone: Communicator, symmetric: bool) -> None:
    name = "ncclCommWindowRegister" if symmetric else "ncclCommRegister"
    if not alone.library.has(name):
        pytest.skip(f"NCCL {alone.library.version_text} has no {name}")
    address = alone.library.allocate(1 << 21)
    held = alone.register(address, 1 << 21, symmetric)
    values = np.arange(100, dtype=np.float32)
    assert np.array_equal(
        moved(alone, Call("all_reduce", address, address, 100, "float32", "sum"), values),
        values,
    )
    alone.deregister(held, symmetric)
    alone.library.free(address)


def test_a_part_of_one_rank_is_a_communicator(alone: Communicator) -> None:
    part = alone.split(0, 0)
    assert part is not None
    assert (part.rank, part.ranks, part.failure()) == (0, 1, "")
    part.destroy()


def test_an_estimate_is_positive_or_absent(alone: Communicator) -> None:
    address = alone.library.runtime.malloc(1 << 20)
    call = Call("all_reduce", address, address, 1 << 18, "float32", "sum")
    seconds = alone.library.simulate([prepared(alone, call, 0)])
    assert seconds is None or 0 < seconds < 1
    alone.library.runtime.free(address)


def test_an_invalid_root_is_refused_in_nccls_words(alone: Communicator) -> None:
    enqueue = prepared(alone, Call("broadcast", 0, 0, 1, "int32", root=5), 0)
    with pytest.raises(LibraryFailed, match="ncclBroadcast: ncclInvalidArgument") as caught:
        enqueue()
    assert caught.value.refused


def test_an_aborted_communicator_is_gone_and_others_are_not(
    nccl: Library, alone: Communicator
) -> None:
    other = communicator_of(nccl, 1, nccl.unique_id(), 0, 0)
    other.abort()
    other.destroy()  # of one that is gone does nothing
    assert alone.failure() == ""
