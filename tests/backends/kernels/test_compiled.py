"""Every kernel compiled for GPUs: it fits, does not spill, and synchronises as often as it should.

The whole matrix (every entry, type, op and architecture) takes minutes. So: every entry with every type and
op sum for sm_90, the widest with what needs most besides; for the other architectures few programs in which
every two of entry, op and architecture, and of type, op and architecture, meet. Entries that only copy are
compiled by element size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from ccbench.backends.kernels import building
from ccbench.backends.kernels.abi import COPY_TYPES, MAX_LANES, OPS, TYPES
from ccbench.backends.kernels.sources import GLOBAL_NAME, CompilerInput, entries, program
from tests.backends.kernels import nvrtc

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(nvrtc.library() is None, reason=nvrtc.ABSENT),
]

EXPECTED = Path(__file__).with_name("synchronisation.yaml")
MAIN_ARCHITECTURE = 90
OTHER_ARCHITECTURES = (75, 80, 100)
"""Turing is the oldest that NVRTC 13 knows; it is the nearest to Volta, which has the same memory model."""

MORE_ARCHITECTURES = (70, 89, 103, 120)
"""On these the widest kernels alone: V100, of CUDA 12 only, RTX 4090, B300 and RTX 5090."""

SPILLS = {("schedule", 70): 44, ("ring_reduce_scatter", 80): 8}
"""Bytes by (entry, architecture) that do not fit into registers, where any: known, and few. Of avg of 16-bit
floats, and of min and max of int16."""

REGISTERS = 65_536 // MAX_LANES
"""A multiprocessor of these architectures has 65,536 (CUDA C++ Programming Guide, technical specifications),
so that a block of MAX_LANES with more could not be launched."""

FORBIDDEN = re.compile(
    r"\b(?:membar|fence\.sc|atom|(?<!bar\.)red)\b[.\w]*|\b(?:ld|st|fence)\.(?:\w+\.)*(?:gpu|cta|cluster)\b[.\w]*"
)
"""Stronger than needed (fence.sc), or of a scope that ends at the own GPU. bar.red is a block's barrier."""

OWN_STORES = {"st.u32", "st.u64", "st.v2.u32"}
"""Weak stores: of counters and error words, which only the own block touches in a launch."""

OWN_LOADS = {"ld.u8", "ld.u32", "ld.s32", "ld.u64"}
"""Weak loads: of the same, and of tables that the host wrote before the launch (of a plan's word at times the
byte with its sign)."""

NARROW = "float16"
"""A type whose elements nothing else can be taken for: no counter, address or plan is read by 16 bits."""

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
    """What is asserted of a compiled instance. forbidden: fences and accesses that kernels must not have."""

    registers: int
    spill_bytes: int
    fences: int
    acquires: int
    forbidden: tuple[str, ...]


WIDEST = (
    "ring_all_reduce",
    "tree_all_reduce",
    "mesh_one_shot_all_reduce",
    "mesh_two_shot_all_reduce",
    "schedule",
    "ll_all_reduce",
    "put_send_recv",
)
NEEDS_MOST = (
    ("float16", "avg"),
    ("float8_e4m3", "avg"),
    ("float64", "min"),
    ("int16", "min"),
    ("uint8", "avg"),
)
"""Of every file the kernel that keeps most in registers, and types and ops that take most beside."""


def main_instances() -> list[Instance]:
    variants = [(name, dtype, "sum") for name in REDUCING for dtype in TYPES]
    variants += [(name, dtype, "sum") for name in COPYING for dtype in COPY_TYPES.values()]
    variants += [(name, dtype, op) for name in WIDEST for dtype, op in NEEDS_MOST]
    return [Instance(name, dtype, op, MAIN_ARCHITECTURE) for name, dtype, op in variants]


def other_instances() -> list[Instance]:
    types, ops, sizes = list(TYPES), list(OPS), list(COPY_TYPES.values())
    instances = []
    for i, j in product(range(max(len(types), len(REDUCING))), range(len(ops))):
        architecture = OTHER_ARCHITECTURES[(i + 2 * j) % len(OTHER_ARCHITECTURES)]
        entry = REDUCING[(i + j) % len(REDUCING)]
        instances.append(Instance(entry, types[i % len(types)], ops[j], architecture))
    for (i, entry), (j, architecture) in product(
        enumerate(COPYING), enumerate(OTHER_ARCHITECTURES)
    ):
        instances.append(Instance(entry, sizes[(i + j) % len(sizes)], "sum", architecture))
    return instances


def more_instances() -> list[Instance]:
    """Those that NVRTC knows: of CUDA 13 it has left sm_70 behind."""
    architectures = set(building.nvrtc().architectures)
    return [
        Instance(entry, dtype, op, architecture)
        for architecture, entry in product(MORE_ARCHITECTURES, WIDEST)
        for dtype, op in NEEDS_MOST[:1]
        if architecture in architectures
    ]


def facts_of(instance: Instance) -> Facts:
    return facts(
        program(entries()[instance.entry], instance.dtype, instance.op), instance.architecture
    )


def facts(source: CompilerInput, architecture: int) -> Facts:
    made = nvrtc.compiled(source, architecture)
    code = re.sub(r"//[^\n]*", "", made.ptx)
    return Facts(
        made.registers,
        made.spill_bytes,
        len(re.findall(r"\bfence\.acq_rel\.sys\b", code)),
        len(re.findall(r"\bld\.acquire\.sys\b", code)),
        tuple(sorted(set(FORBIDDEN.findall(code)))),
    )


def expected_counts() -> dict[str, dict[str, int]]:
    import yaml

    counts: dict[str, dict[str, int]] = yaml.safe_load(EXPECTED.read_text(encoding="utf-8"))
    return counts


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_instance_fits_without_spilling_and_synchronises_as_often_as_it_should(
    name: str,
) -> None:
    """A fence more costs time at every step; one fewer loses data."""
    every = (*main_instances(), *other_instances(), *more_instances())
    instances = [instance for instance in every if instance.entry == name]
    assert instances
    for instance in instances:
        seen = facts_of(instance)
        assert seen.spill_bytes <= SPILLS.get((name, instance.architecture), 0), instance
        assert seen.registers <= REGISTERS, instance
        counts = {"fences": seen.fences, "acquires": seen.acquires}
        assert counts == expected_counts()[name], instance
        assert seen.forbidden == (), instance


def test_the_expected_counts_are_of_kernels_that_there_are() -> None:
    assert sorted(expected_counts()) == sorted(entries())


def test_the_architectures_beside_the_main_one_meet_every_entry_type_and_op() -> None:
    elsewhere = other_instances()
    reducing = [instance for instance in elsewhere if instance.entry in REDUCING]
    assert {(instance.entry, instance.op) for instance in reducing} == set(
        product(REDUCING, OPS)
    )
    assert {(instance.dtype, instance.op) for instance in reducing} == set(product(TYPES, OPS))
    assert {(instance.dtype, instance.architecture) for instance in reducing} == set(
        product(TYPES, OTHER_ARCHITECTURES)
    )
    assert {(instance.entry, instance.architecture) for instance in elsewhere} == set(
        product(entries(), OTHER_ARCHITECTURES)
    )
    copying = {
        (instance.dtype, instance.architecture)
        for instance in elsewhere
        if instance.entry in COPYING
    }
    assert copying == set(product(COPY_TYPES.values(), OTHER_ARCHITECTURES))


def ptx_of(entry: str) -> str:
    return nvrtc.compiled(program(entries()[entry], "float32", "sum"), MAIN_ARCHITECTURE).ptx


def exposed(source: CompilerInput) -> set[str]:
    """Accesses that may be served from a cache or be reordered, of what is not the own block's alone.

    source: for NARROW elements.
    """
    ptx = re.sub(r"//[^\n]*", "", nvrtc.compiled(source, MAIN_ARCHITECTURE).ptx)
    accesses = set(
        re.findall(r"\b(?:ld\.global\.nc|ldu|atom|(?<!bar\.)red|cp\.async|prefetch)\b", ptx)
    )
    weak = r"\b{}(?:\.global)?(?:\.v\d)?\.[a-z]+\d+\b"
    for kind, own in (("ld", OWN_LOADS), ("st", OWN_STORES)):
        accesses |= {
            instruction.replace(".global", "")
            for instruction in re.findall(weak.format(kind), ptx)
        } - own
    return accesses


def test_a_program_is_one_kernel_of_a_known_name() -> None:
    made = nvrtc.compiled(program(entries()["barrier"], "uint8", "sum"), MAIN_ARCHITECTURE)
    assert re.findall(r"\.entry (\w+)\(", made.ptx) == [GLOBAL_NAME]
    assert made.cubin_bytes > 0


def test_polls_are_relaxed_and_acquire_once_at_the_end() -> None:
    """An acquiring load drops the L1 cache, so it may not be what spins."""
    ptx = ptx_of("barrier")
    assert len(re.findall(r"\bld\.acquire\.sys\b", ptx)) == 1
    assert len(re.findall(r"\bld\.relaxed\.sys\b", ptx)) >= 1


def test_packets_go_in_pairs_of_whole_words() -> None:
    """Elements of a vector may be seen apart, so data and flag of one packet may not be two of them."""
    ptx = ptx_of("ll_all_reduce")
    assert re.findall(r"\bst\.relaxed\.sys\.global\.v2\.u64\b", ptx)
    assert re.findall(r"\bld\.relaxed\.sys\.global\.v2\.u64\b", ptx)
    assert not re.findall(r"\b(?:st|ld)\.(?:relaxed|volatile)\S*\.v[24]\.(?:u32|b32)\b", ptx)


@pytest.mark.parametrize("name", sorted(entries()))
def test_data_that_others_write_or_read_is_never_cached_nor_touched_by_atomics(
    name: str,
) -> None:
    """Message slots, flags and buffers may lie in the host's memory or in another GPU's."""
    assert exposed(program(entries()[name], NARROW, "sum")) == set()


@pytest.mark.parametrize(
    "entry", ["ring_all_reduce", "mesh_all_gather", "ll_all_gather", "schedule"]
)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("return *(const CCB_VOLATILE u16*)address;", "return *(const u16*)address;"),
        ("*(CCB_VOLATILE u16*)address = (u16)value;", "*(u16*)address = (u16)value;"),
        ("ld.volatile.global.v2.u64", "ld.global.v2.u64"),
        ("st.volatile.global.v2.u64", "st.global.v2.u64"),
    ],
    ids=["an element read", "an element written", "vectors read", "vectors written"],
)
def test_data_that_a_cache_may_hold_back_are_seen(entry: str, right: str, wrong: str) -> None:
    """The host engine's accesses are plain ones, so that no test on it could see these."""
    source = program(entries()[entry], NARROW, "sum")
    system = source.headers["system.cuh"]
    assert system.count(right) == 1
    changed = {**source.headers, "system.cuh": system.replace(right, wrong)}
    assert exposed(replace(source, headers=changed)) != set()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            "    fence_system();\n    store_relaxed(flag, value);",
            "    store_relaxed(flag, value);",
        ),
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
    barrier = program(entries()["barrier"], "uint8", "sum")
    system = barrier.headers["system.cuh"]
    assert system.count(right) == 1
    changed = replace(
        barrier, headers={**barrier.headers, "system.cuh": system.replace(right, wrong)}
    )
    changed_facts = facts(changed, MAIN_ARCHITECTURE)
    counts = {"fences": changed_facts.fences, "acquires": changed_facts.acquires}
    assert counts != expected_counts()["barrier"] or changed_facts.forbidden
