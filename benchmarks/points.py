"""What is compared: contenders, points, and one visit of a contender to a point."""

from __future__ import annotations

from dataclasses import dataclass

from ccbench.cases.axes import NO_OP, NO_ROOT, Case
from ccbench.cases.measurement import Sampling
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes

CCBENCH = "ccbench"
OPENMPI = "openmpi"
MPICH = "mpich"
INTELMPI = "intelmpi"
GLOO = "gloo"
MEMCPY = "memcpy"
"""Not a contender: independent copies on every processor, the physical limit of the same run."""

MPIS = (OPENMPI, MPICH, INTELMPI)
PEERS = (*MPIS, GLOO)
TITLES = {
    CCBENCH: "ccbench",
    OPENMPI: "Open MPI",
    MPICH: "MPICH",
    INTELMPI: "Intel MPI",
    GLOO: "Gloo",
    MEMCPY: "memcpy",
}

DTYPE = "float32"
PRIVATE, SHARED = "private", "shared"
"""Kinds of memory that the copies run in."""

KIB, MIB = 1 << 10, 1 << 20
COPY_BYTES = 256 * MIB
LARGE_BYTES = 32 * MIB
"""From here on a visit takes the fewest samples."""

QUICK_LIMIT_BYTES = MIB
FEW_SAMPLES, MANY_SAMPLES = 7, 21


@dataclass(frozen=True)
class Point:
    """A collective at a size (nccl-tests' size, bytes) and placement, measured by every contender."""

    collective: str
    size_bytes: int
    in_place: bool = False


ALL_REDUCE_SIZES_BYTES = (8, KIB, 32 * KIB, MIB, 64 * MIB, 256 * MIB)
COPY_SIZES_BYTES = (MIB, 64 * MIB)
POINTS = (
    *(Point("all_reduce", size) for size in ALL_REDUCE_SIZES_BYTES),
    *(Point("all_gather", size) for size in COPY_SIZES_BYTES),
    *(Point("broadcast", size, in_place=True) for size in COPY_SIZES_BYTES),
)
OWN_POINTS = tuple(Point("broadcast", size) for size in COPY_SIZES_BYTES)
"""Only ccbench can do these: no MPI has a broadcast out of place at the root."""


@dataclass(frozen=True)
class Visit:
    """What one contender gave at one point in one round. Times in seconds, one per sample, per call.

    status: as in ccbench.cases.measurement.Status. memory: kind of memory of a copy, else ''.
    wall_seconds: of the whole visit, with taking and filling memory, warming up and checking.
    core_latency_seconds: half a flag's round trip between ranks 0 and 1 just before; None where they
        share a processor.
    """

    contender: str
    ranks: int
    point: Point
    round_number: int
    status: str
    samples_seconds: tuple[float, ...] = ()
    calls_per_sample: int = 0
    algorithm: str = ""
    memory: str = ""
    detail: str = ""
    core_latency_seconds: float | None = None
    other_cpu_share: float | None = None
    steal_share: float | None = None
    wall_seconds: float = 0.0


COPY_POINT = Point("send_recv", COPY_BYTES)
"""What the copies are filed under."""


def points(quick: bool) -> tuple[Point, ...]:
    """All points, or only those that take no time."""
    return tuple(
        point for point in POINTS if not quick or point.size_bytes <= QUICK_LIMIT_BYTES
    )


def own_points(quick: bool) -> tuple[Point, ...]:
    """Points of ccbench alone."""
    return tuple(
        point for point in OWN_POINTS if not quick or point.size_bytes <= QUICK_LIMIT_BYTES
    )


def case_for(contender: str, point: Point, ranks: int) -> Case:
    """The point as a case. Gloo has only an in-place all_reduce, so that is what it is asked for."""
    row = collective(point.collective)
    count = row.count_for(point.size_bytes, ranks, item_bytes(DTYPE))
    return Case(
        suite="benchmarks/cpu",
        backend="cpu",
        collective=point.collective,
        algorithm="default",
        dtype=DTYPE,
        op="sum" if row.reduces else NO_OP,
        size_bytes=row.size_bytes(count, ranks, item_bytes(DTYPE)),
        count=count,
        ranks=ranks,
        root=0 if row.rooted else NO_ROOT,
        in_place=point.in_place or (contender == GLOO and row.reduces),
    )


def copy_case(memory: str) -> Case:
    """One process copying from a buffer of its own to another: a send_recv among one rank."""
    count = COPY_BYTES // item_bytes(DTYPE)
    return Case(
        "benchmarks/cpu", "cpu", "send_recv", memory, DTYPE, NO_OP, COPY_BYTES, count, ranks=1
    )


def sampling_for(size_bytes: int) -> Sampling:
    """A fixed number of samples of at least two milliseconds, the same for every contender."""
    samples = FEW_SAMPLES if size_bytes >= LARGE_BYTES else MANY_SAMPLES
    return Sampling(
        minimum_samples=samples,
        maximum_samples=samples,
        minimum_sample_seconds=0.002,
        warmup_seconds=0.02,
        budget_seconds=60.0,
        time_limit_seconds=90.0,
    )
