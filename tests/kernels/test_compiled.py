"""Every kernel compiled for GPUs: it fits, does not spill, and synchronises as often as it should.

The whole matrix (every entry, type, op and architecture) takes minutes. So: every entry with every type and
op sum for sm_90, and for the other architectures few programs in which every two of entry, op and
architecture, and of type, op and architecture, meet. Entries that only copy are compiled by element size.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import pytest

from ccbench.kernels.abi import COPY_TYPES, MAX_LANES, OPS, TYPES
from ccbench.kernels.sources import Program, entries, entry_named, program
from tests.kernels import nvrtc

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason=nvrtc.ABSENT)

EXPECTED = Path(__file__).with_name("synchronisation.yaml")
MAIN_ARCHITECTURE = 90
OTHER_ARCHITECTURES = (75, 80, 100)
"""Turing is the oldest that NVRTC 13 knows; it is the nearest to Volta, which has the same memory model."""

REGISTERS = 65_536 // MAX_LANES
"""A multiprocessor of these architectures has 65,536 (CUDA C++ Programming Guide, technical specifications),
so that a block of MAX_LANES with more could not be launched."""

FORBIDDEN = re.compile(
    r"\b(?:membar|fence\.sc|atom|(?<!bar\.)red)\b[.\w]*|\b(?:ld|st|fence)\.(?:\w+\.)*(?:gpu|cta|cluster)\b[.\w]*"
)
"""Stronger than needed (fence.sc), or of a scope that ends at the own GPU. bar.red is a block's barrier."""

REDUCING = sorted(name for name, entry in entries().items() if entry.reduces)
COPYING = sorted(name for name, entry in entries().items() if not entry.reduces)


@dataclass(frozen=True)
class Instance:
    """One program for one architecture."""

    entry: str
    dtype: str
    op: str
    architecture: int


@dataclass(frozen=True)
class Facts:
    """What is asserted of a compiled instance. other: fences and accesses that kernels must not have."""

    registers: int
    spill_bytes: int
    fences: int
    acquires: int
    other: tuple[str, ...]


def main_instances() -> list[Instance]:
    types = [(name, dtype) for name in REDUCING for dtype in TYPES]
    types += [(name, dtype) for name in COPYING for dtype in COPY_TYPES.values()]
    return [Instance(name, dtype, "sum", MAIN_ARCHITECTURE) for name, dtype in types]


def other_instances() -> list[Instance]:
    types, ops, sizes = list(TYPES), list(OPS), list(COPY_TYPES.values())
    found = []
    for i, j in product(range(max(len(types), len(REDUCING))), range(len(ops))):
        architecture = OTHER_ARCHITECTURES[(i + 2 * j) % len(OTHER_ARCHITECTURES)]
        entry = REDUCING[(i + j) % len(REDUCING)]
        found.append(Instance(entry, types[i % len(types)], ops[j], architecture))
    for (i, entry), (j, architecture) in product(enumerate(COPYING), enumerate(OTHER_ARCHITECTURES)):
        found.append(Instance(entry, sizes[(i + j) % len(sizes)], "sum", architecture))
    return found


def facts_of(instance: Instance) -> Facts:
    return facts(program(entry_named(instance.entry), instance.dtype, instance.op), instance.architecture)


def facts(source: Program, architecture: int) -> Facts:
    made = nvrtc.compiled(source, architecture)
    code = re.sub(r"//[^\n]*", "", made.ptx)
    return Facts(
        made.registers,
        made.spill_bytes,
        len(re.findall(r"\bfence\.acq_rel\.sys\b", code)),
        len(re.findall(r"\bld\.acquire\.sys\b", code)),
        tuple(sorted(set(FORBIDDEN.findall(code)))),
    )


@lru_cache(maxsize=1)
def all_facts() -> dict[Instance, Facts]:
    """As many at a time as there are processors: NVRTC compiles on several threads at once."""
    wanted = [*main_instances(), *other_instances()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(wanted, pool.map(facts_of, wanted), strict=True))


def expected_counts() -> dict[str, dict[str, int]]:
    import yaml

    counts: dict[str, dict[str, int]] = yaml.safe_load(EXPECTED.read_text(encoding="utf-8"))
    return counts


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_instance_fits_without_spilling(name: str) -> None:
    seen = {one: facts for one, facts in all_facts().items() if one.entry == name}
    too_large = {
        one: facts for one, facts in seen.items() if facts.spill_bytes or facts.registers > REGISTERS
    }
    assert seen
    assert not too_large


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_instance_synchronises_as_often_as_it_should(name: str) -> None:
    """A fence more costs time at every step; one fewer loses data."""
    for one, facts in all_facts().items():
        if one.entry == name:
            assert {"fences": facts.fences, "acquires": facts.acquires} == expected_counts()[name], one
            assert facts.other == (), one


def test_the_expected_counts_are_of_kernels_that_there_are() -> None:
    assert sorted(expected_counts()) == sorted(entries())


def test_the_architectures_beside_the_main_one_meet_every_entry_type_and_op() -> None:
    others = other_instances()
    reducing = [one for one in others if one.entry in REDUCING]
    assert {(one.entry, one.op) for one in reducing} == set(product(REDUCING, OPS))
    assert {(one.dtype, one.op) for one in reducing} == set(product(TYPES, OPS))
    assert {(one.dtype, one.architecture) for one in reducing} == set(product(TYPES, OTHER_ARCHITECTURES))
    assert {(one.entry, one.architecture) for one in others} == set(product(entries(), OTHER_ARCHITECTURES))
    copying = {(one.dtype, one.architecture) for one in others if one.entry in COPYING}
    assert copying == set(product(COPY_TYPES.values(), OTHER_ARCHITECTURES))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    fence_system();\n    store_relaxed(flag, value);", "    store_relaxed(flag, value);"),
        ("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64"),
        ("fence.acq_rel.sys;", "fence.acq_rel.gpu;"),
        ("fence.acq_rel.sys;", "fence.sc.sys;"),
        ("st.relaxed.sys.global.u64", "st.relaxed.gpu.global.u64"),
    ],
    ids=[
        "no fence",
        "no acquire",
        "a fence for the own GPU only",
        "a stronger fence",
        "a flag for the own GPU",
    ],
)
def test_a_mistake_in_what_only_gpus_run_is_seen(right: str, wrong: str) -> None:
    """The host engine has its own branch of system.cuh, so that no test on it could see these."""
    barrier = program(entry_named("barrier"), "uint8", "sum")
    system = barrier.headers["system.cuh"]
    assert system.count(right) == 1
    changed = replace(barrier, headers={**barrier.headers, "system.cuh": system.replace(right, wrong)})
    seen = facts(changed, MAIN_ARCHITECTURE)
    counts = {"fences": seen.fences, "acquires": seen.acquires}
    assert counts != expected_counts()["barrier"] or seen.other
