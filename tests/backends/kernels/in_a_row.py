"""Launches in a row, each other than the one before: what every kernel file is put through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from ccbench.backends.kernels.abi import OPS, TYPES
from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions
from ccbench.backends.kernels.sources import entries
from ccbench.collectives import collective as collective_row
from ccbench.schedules import ALGORITHMS
from tests.backends.kernels.cases import KernelCase, collective_of, launch_of, world_for
from tests.backends.kernels.schedule_reference import schedule_of
from tests.backends.kernels.worlds import Trial, check

ENTRIES = sorted(set(entries()) - {"barrier", "compare", "schedule"})
SCHEDULES = [f"{row.collective} {row.name}" for row in ALGORITHMS]

REAL_LIMIT_NANOSECONDS = 60_000_000_000
"""Of threads, which cannot see a deadlock."""

MOST_IN_BETWEEN = 257

PARAMETERS: dict[str, list[Any]] = {
    "ranks": [1, 2, 3, 4, 5, 6, 7, 8],
    "channels": [1, 2, 3],
    "lanes": [4, 8, 32],
    "count": [0, 1, "ranks - 1", "ranks", 31, 257, 5003],
    "dtype": list(TYPES),
    "op": list(OPS),
    "in_place": [False, True],
    "misalignment": [0, 1, 3],
    "drifting": [False, True],
    "iterations": [1, 2],
}
"""Of every kernel, with the values that are tried; ``parameters_of`` adds those of single files."""

_CONNECTIONS: dict[str, list[Any]] = {"slots": [2, 4], "slot_bytes": [64, 256, 1024]}

_MORE: dict[str, dict[str, list[Any]]] = {
    "ring.cu": {**_CONNECTIONS, "shuffled": [False, True]},
    "tree.cu": {**_CONNECTIONS, "shuffled": [False, True]},
    "ll.cu": {"packets": [16, 256, 4096], "channels": [1, 2, 3, 5]},  # one more than there are boxes for
    "schedule.cu": {"slots": [2, 4], "slot_bytes": [64, 256, 4096], "pieces": [1, 3]},
}


def parameters_of(file: str) -> dict[str, list[Any]]:
    """What the launches of a kernel file may differ in. A new file gets connections, which most have."""
    return {**PARAMETERS, **_MORE.get(file, _CONNECTIONS)}


def case_of(entry: str, values: dict[str, Any], algorithm: str = "") -> KernelCase:
    """The case with these values of parameters; counts that depend on the ranks are worked out."""
    ranks = values["ranks"]
    count = {"ranks": ranks, "ranks - 1": ranks - 1}.get(values["count"], values["count"])
    if count == 5003 and (values.get("packets") == 16 or values.get("slot_bytes") == 64):
        count = 257  # hundreds of rounds show nothing that a dozen do not
    return KernelCase(entry, algorithm, **{**values, "count": count})


def other_entry(entry: str, number: int) -> str:
    """Another entry of the same file, or the same where there is one only."""
    file = entries()[entry].file
    names = sorted(name for name, one in entries().items() if one.file == file and name != entry)
    return names[number % len(names)] if names else entry


def trials_of(case: KernelCase, seed: int) -> list[Trial]:
    """Four launches: as asked, of few elements, of another entry, and with another root."""
    first = Trial(
        case.entry,
        collective_of(case, case.entry),
        case.dtype,
        case.op,
        case.count,
        case.ranks // 2,
        case.in_place,
        case.misalignment,
        case.iterations,
        seed,
    )
    between = other_entry(case.entry, seed)
    return [
        first,
        replace(first, count=min(case.count, 31), root=0, seed=seed + 1),
        replace(
            first,
            entry=between,
            collective=collective_of(case, between),
            count=min(case.count, MOST_IN_BETWEEN),
            seed=seed + 2,
        ),
        replace(first, root=case.ranks - 1, seed=seed + 3),
    ]


def run_in_a_row(
    case: KernelCase,
    seed: int,
    build: Build | None = None,
    engine: Literal["fibers", "threads"] = "fibers",
    resident: int = 0,
) -> bool:
    """Four launches on one communicator, the second on fewer channels, and then the outputs of all.

    False, with nothing run, where there is no such schedule on so many ranks. AssertionError where an output
    is wrong, else what the engine raises.
    """
    if case.algorithm and schedule_of(case.algorithm, case.ranks, 0, case.pieces) is None:
        return False
    world = world_for(case)
    launched = []
    for number, trial in enumerate(trials_of(case, seed)):
        used = case.channels if number != 1 else max(1, case.channels - 1)
        launched.append(launch_of(replace(case, channels=used), world, trial))
    options = HostOptions(
        engine,
        case.lanes,
        seed,
        resident,
        devices=case.ranks if case.drifting else 1,
        limit_nanoseconds=REAL_LIMIT_NANOSECONDS if engine == "threads" else 0,
    )
    world.run(build or Build(case.kernel_file), [one.call for one, _ in launched], options)
    for one, reference in launched:
        if collective_row(one.trial.collective).moves_data:
            check(world, one, reference)
    return True
