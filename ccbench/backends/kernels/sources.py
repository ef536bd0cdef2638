"""The kernels' sources and plans: entries, the algorithms that they are, and what a launch of one needs.

An entry is called ``<algorithm>_<collective>``, or as its collective (``barrier``). One whose name holds no
collective interprets schedules, and stands for an algorithm ``schedule:<name>`` of every schedule there is.

A kernel's header comment says what its plan holds. ``plan_for`` makes it: whoever adds a kernel file whose
plan is not empty adds it there, and backends need no change.

Trees: channels take turns with two trees in which different ranks are inner (P. Sanders, J. Speck and J. L.
Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.kernels.abi import COPY_TYPES, OPS, TYPE_BYTES, TYPES
from ccbench.backends.kernels.programs import compiled_program
from ccbench.backends.kernels.traffic import expected_seconds
from ccbench.cases.axes import ALL_GROUPS, Case
from ccbench.collectives import COLLECTIVES, collective
from ccbench.documents import shipped_folder
from ccbench.dtypes import EXACT_LIMIT
from ccbench.errors import CcbenchError, UsageError
from ccbench.schedules import algorithm_row, algorithms_of, parse_algorithm, schedule_for
from ccbench.schedules.tree import complement, tree_edges

NOBODY = -1


@dataclass(frozen=True)
class Tree:
    """One tree over ranks 0 to n - 1. parents: -1 at the root. children: two at most, in their order."""

    parents: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]

    def depth(self, rank: int) -> int:
        """Steps from ``rank`` up to the root."""
        steps = 0
        while self.parents[rank] != NOBODY:
            rank = self.parents[rank]
            steps += 1
        return steps


def channel_tree(order: Sequence[int], channel: int, root: int | None = None) -> Tree:
    """The tree of one channel over the ranks in ``order``, in which neighbours of the order are near.

    Even channels have the in-order binary tree, odd ones its complement. A ``root`` stands above the tree
    of all others, so that on two channels nobody else is inner twice.
    """
    nodes = [rank for rank in order if rank != root]
    edges = tree_edges(len(nodes))
    # A rank that is inner in one tree is a leaf in the other: together two channels load all links alike.
    if channel % 2 == 1 and len(nodes) > 1:
        edges = complement(edges, len(nodes), 0)
    parents = {
        nodes[child]: nodes[parent]
        for child, parent in zip(edges.child, edges.parent, strict=True)
    }
    if root is not None:
        parents |= {rank: root for rank in nodes if rank not in parents}
    places = {rank: place for place, rank in enumerate(order)}
    children: list[list[int]] = [[] for _ in order]
    for child, parent in parents.items():
        children[parent].append(child)
    return Tree(
        tuple(parents.get(rank, NOBODY) for rank in range(len(order))),
        tuple(tuple(sorted(those, key=places.__getitem__)) for those in children),
    )


def channel_trees(
    ranks: int, channels: int, root: int | None = None, orders: Sequence[Sequence[int]] = ()
) -> list[Tree]:
    """One tree for each channel; every two channels complement each other over the same order of ranks.

    orders: permutations of all ranks, taken in turn; none: by number. root: of all trees; None where any
    will do.
    """
    # A tree and its complement are a pair over one order; the next pair takes the next order.
    rings = orders or [range(ranks)]
    return [
        channel_tree(rings[channel // 2 % len(rings)], channel, root)
        for channel in range(channels)
    ]


def tree_plan(trees: Sequence[Tree]) -> NDArray[np.int32]:
    """The plan of tree kernels, shape (channels, 4 * ranks): parents, first and second children, lags.

    A rank's lag is twice its depth: so many chunks later what it sent up comes back to it.
    """
    rows = []
    for tree in trees:
        ranks = range(len(tree.parents))
        pairs = [(*tree.children[rank], NOBODY, NOBODY)[:2] for rank in ranks]
        # What a rank sends up passes every level twice before it is back.
        lags = [2 * tree.depth(rank) for rank in ranks]
        rows.append(
            [*tree.parents, *(pair[0] for pair in pairs), *(pair[1] for pair in pairs), *lags]
        )
    return np.array(rows, np.int32)


Plan = NDArray[np.int32]
"""Shape (channels, plan_words)."""


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """Tables for Arguments.plan and Arguments.program; None where the kernel reads none."""

    plan: Plan | None = None
    program: NDArray[np.int32] | None = None


def ring_plan(orders: Sequence[Sequence[int]]) -> Plan:
    """The plan of ring kernels: for each channel the order of ranks, then the place of each rank.

    orders: one permutation of all ranks per channel.
    """
    order_of = np.asarray(orders, np.int32)
    return np.concatenate([order_of, np.argsort(order_of, axis=1).astype(np.int32)], axis=1)


def channel_orders(
    ranks: int, channels: int, orders: Sequence[Sequence[int]] = ()
) -> list[list[int]]:
    """One ring for each channel: ``orders`` in turn; none: 0, 1, 2 ... on even channels, backwards on odd."""
    rings = orders or (range(ranks), range(ranks)[::-1])
    return [list(rings[channel % len(rings)]) for channel in range(channels)]


def plan_for(
    kernel_file: str,
    collective_name: str,
    ranks: int,
    channels: int,
    root: int = 0,
    size_bytes: int = 0,
    schedule: str = "",
    orders: Sequence[Sequence[int]] = (),
) -> LaunchPlan:
    """The plan of a kernel for one case. UsageError or ScheduleError where there is none for it.

    schedule: what an interpreting kernel is to run, such as ``chain:8``; empty for all others.
    size_bytes: nccl-tests' size. orders: rings through all ranks that the links between them suggest, best
    first; empty where nothing is known.
    """
    match kernel_file:
        case "ring.cu":
            return LaunchPlan(ring_plan(channel_orders(ranks, channels, orders)))
        case "tree.cu":
            top = root if collective(collective_name).rooted else None
            return LaunchPlan(tree_plan(channel_trees(ranks, channels, top, orders)))
        case "schedule.cu":
            proven = schedule_for(collective_name, schedule, ranks, root, size_bytes=size_bytes)
            return LaunchPlan(program=compiled_program(proven))
    return LaunchPlan()  # other kernels need none


GLOBAL_NAME = "ccb_kernel"
"""Name of the one ``__global__`` function of a program."""

_ENTRY = re.compile(r"^CCB_ENTRY\((\w+), (REDUCES|COPIES)\)$", re.MULTILINE)


@dataclass(frozen=True)
class KernelEntry:
    """One launchable function. reduces: it combines elements, so type and op matter; else only their size."""

    name: str
    file: str
    reduces: bool


@dataclass(frozen=True)
class CompilerInput:
    """Input of a run-time compiler: the text, files it includes by name, options without architecture."""

    text: str
    headers: Mapping[str, str]
    options: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Changes when anything does that the compiled code depends on, architecture and compiler aside."""
        parts = [
            self.text,
            *self.options,
            *(f"{name}\0{self.headers[name]}" for name in sorted(self.headers)),
        ]
        return hashlib.sha256("\1".join(parts).encode()).hexdigest()


def kernel_folder() -> Path:
    """Folder of the sources."""
    return shipped_folder("kernels")


@lru_cache(maxsize=1)
def entries() -> Mapping[str, KernelEntry]:
    """Every entry of every shipped ``.cu`` file, by name; read once."""
    by_name: dict[str, KernelEntry] = {}
    for file in sorted(kernel_folder().glob("*.cu")):
        for name, kind in _ENTRY.findall(file.read_text(encoding="utf-8")):
            by_name[name] = KernelEntry(name, file.name, kind == "REDUCES")
    return by_name


def instance(entry: KernelEntry, dtype: str, op: str) -> tuple[str, str]:
    """The (dtype, op) that ``entry`` is compiled for to serve these: copies need the size only."""
    return (dtype, op) if entry.reduces else (COPY_TYPES[TYPE_BYTES[dtype]], "sum")


def program(
    entry: KernelEntry, dtype: str, op: str, folder: Path | None = None
) -> CompilerInput:
    """The program of one instance. It needs no file on disk: headers are given by name.

    Never add -ftz=true or -use_fast_math: subnormal numbers count.
    """
    folder = folder or kernel_folder()
    dtype, op = instance(entry, dtype, op)
    # All headers go along, included or not: the digest then covers all that the code may depend on.
    files = [*folder.glob("*.cuh"), folder / entry.file]
    headers = {file.name: file.read_text(encoding="utf-8") for file in files}
    text = f'#include "{entry.file}"\nCCB_GLOBAL({entry.name})\n'
    options = ("-std=c++17", f"-DCCB_TYPE={TYPES[dtype]}", f"-DCCB_OP={OPS[op]}")
    return CompilerInput(text, headers, options)


def beside(name: str) -> CompilerInput:
    """The program ``kernels/beside/<name>``, which is no collective; of the headers it may use system.cuh."""
    folder = kernel_folder()
    header = (folder / "system.cuh").read_text(encoding="utf-8")
    text = (folder / "beside" / name).read_text(encoding="utf-8")
    return CompilerInput(text, {"system.cuh": header}, ("-std=c++17",))


INTERPRETED = "schedule"

OUT_OF_PLACE = {
    "mesh_pull": "every rank reads all inputs while outputs are written; write placement: out_of_place, or take "
    "mesh_two_shot",
    "put": "a neighbour may write a rank's output before its input has been read; write placement: out_of_place, or "
    "take ring",
}
"""Algorithms that cannot work in place, with the reason and the way out."""

LARGE_BYTES = 4 << 20
"""Up to here ``default`` is the kernel that is expected to be fastest."""

UNJOINED_BYTES = 64 << 10
"""From here on that holds no more where not every pair of GPUs has NVLinks: the estimate is of Hopper behind
NVSwitches, and in a mesh all pairs' data cross the path between two sockets, a ring's only once. (vLLM takes
its meshes on no more than two GPUs without NVLinks: custom_all_reduce.py, 2026.) Not measured."""

TREE_BYTES = 256 << 10
"""Up to here trees, with 2 log2(n) steps for a ring's 2(n - 1), are ahead of it from four ranks on: over 8 ranks of
an H100 they took 15 and 22 us at 8 B, 28.0 and 29.2 at 256 KiB, 50 and 42 at 2 MiB; over 2 ranks 7.5 and 6.0
at 8 B (results/reference/nvidia-h100-80gb-hbm3/own-kernels, graph). A link's longer steps favour trees."""

EXPECTED = ("mesh_two_shot", "mesh", "ll_two_shot", "ll")
"""Algorithms whose times are compared for small sizes; of equals the first. Not mesh_pull, which by its bytes is
never ahead: vLLM takes its like up to 512 KiB on four GPUs and 256 KiB on eight (csrc/custom_all_reduce.cuh),
but its two-shot has a barrier more, and here none was measured between GPUs."""

PREFERRED = ("mesh_two_shot", "ring", "mesh", "barrier", "tree")
"""Algorithms for large sizes, and where nothing is expected, by preference, where the GPUs are joined: on one
H100 two-shot took 101 and 1522 us of 16 and 256 MiB over 8 ranks, ring 162 and 2456. Over NVSwitches torch's
two-shot, which moves the same bytes, had 254 GB/s of bus bandwidth at 128 MiB on eight H100 (vLLM pull request
42324). That NCCL, whose switches add up, is ahead there (also 24111) says nothing for rings of loads and stores.
Not put: it spares the copy out of a slot, but the first byte waits for the neighbour's permission, a flag's way
between GPUs that a ring with free slots does not take, so that small sizes are expected to be slower; above
neither was measured."""

UNJOINED = ("ring", "mesh_two_shot", "mesh", "barrier", "tree")
"""The same where they are not."""


def default_algorithm(case: Case, algorithms: Sequence[str], joined: bool = True) -> str:
    """Return the algorithm that ``default`` stands for; ``default`` where there is no kernel at all.

    joined: see ``Links``. Emulated ranks and ranks of one GPU, which use no links, count as joined.
    """
    small = case.size_bytes <= LARGE_BYTES if joined else case.size_bytes < UNJOINED_BYTES
    expected = [name for name in EXPECTED if small and name in algorithms]
    if expected:
        return min(
            expected,
            key=lambda name: expected_seconds(
                name, case.collective, case.ranks, case.size_bytes
            ),
        )
    if not joined and case.ranks > 3 and case.size_bytes <= TREE_BYTES and "tree" in algorithms:
        return "tree"
    preferred = PREFERRED if joined else UNJOINED
    return next((name for name in (*preferred, *algorithms) if name in algorithms), "default")


@dataclass(frozen=True)
class KernelChoice:
    """The entry that runs, the algorithm's name in a suite, and the schedule for an interpreting entry."""

    entry: KernelEntry
    algorithm: str
    schedule: str = ""


def split_name(entry_name: str) -> tuple[str, str]:
    """(algorithm, collective) of an entry's name; the collective is empty where the name holds none."""
    if entry_name in COLLECTIVES:
        return entry_name, entry_name
    fitting = [name for name in COLLECTIVES if entry_name.endswith(f"_{name}")]
    if not fitting:
        return entry_name, ""
    longest = max(fitting, key=len)  # ring_all_reduce ends with _reduce too
    return entry_name[: -len(longest) - 1], longest


def kernel_algorithms(collective_name: str) -> tuple[str, ...]:
    """Algorithms that there are kernels for, in the order of their files."""
    own = [algorithm for algorithm, of in map(split_name, entries()) if of == collective_name]
    return (*own, *(f"{INTERPRETED}:{name}" for name in algorithms_of(collective_name)))


def choose(case: Case, joined: bool = True) -> KernelChoice:
    """Choose the kernel for ``case``, ``default`` resolved; UsageError when there is no such kernel.

    joined: as of ``default_algorithm``.
    """
    algorithms = kernel_algorithms(case.collective)
    algorithm = case.algorithm
    if algorithm == "default":
        algorithm = default_algorithm(case, algorithms, joined)
    head, _, schedule = algorithm.partition(":")
    # One kernel interprets every schedule there is: the algorithm then names the schedule behind the colon.
    if schedule and head == INTERPRETED:
        name, parameter = parse_algorithm(schedule)
        if f"{head}:{name}" not in algorithms:
            there_are = ", ".join(
                name for name in algorithms if name.startswith(f"{INTERPRETED}:")
            )
            raise UsageError(
                f"no schedule {name!r} of {case.collective}; there are {there_are}"
            )
        row = algorithm_row(case.collective, name)
        if parameter is not None and not row.parameter:
            raise UsageError(f"{algorithm}: {name} has no parameter; write '{head}:{name}'")
        value = (
            row.default_parameter(case.ranks, case.size_bytes)
            if parameter is None
            else parameter
        )
        reason = row.unsupported(case.ranks, value)
        if reason:
            raise UsageError(f"{algorithm}: {reason}")
        return KernelChoice(entries()[INTERPRETED], algorithm, schedule)
    if algorithm not in algorithms:
        raise UsageError(
            f"no kernel runs {case.collective} as {algorithm!r}; "
            + (
                f"there are {', '.join(algorithms)}"
                if algorithms
                else "there is none for this collective"
            )
        )
    if case.in_place and algorithm in OUT_OF_PLACE:
        raise UsageError(
            f"{algorithm} has no {case.collective} in place: {OUT_OF_PLACE[algorithm]}"
        )
    signature = (algorithm, case.collective)
    return KernelChoice(
        next(entry for entry in entries().values() if split_name(entry.name) == signature),
        algorithm,
    )


def unsupported(case: Case) -> str | None:
    """Reason why no kernel can run ``case``, which the backend's capabilities allow; None where one can."""
    try:
        row = collective(case.collective)
        case = replace(case, ranks=case.group_ranks, groups="", active_group=ALL_GROUPS)
        choose(case)
    except CcbenchError as error:
        return str(error)
    if case.nodes != 1:
        return f"{case.nodes} nodes: these kernels write into each other's memory, on one node"
    if row.reduces and case.op in ("sum", "avg") and case.ranks > EXACT_LIMIT[case.dtype]:
        return f"{case.op} over {case.ranks} ranks cannot be checked: {case.dtype} holds no such number exactly"
    return None
