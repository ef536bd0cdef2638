"""One small case of any kernel entry, or some in a row, run on any build of its file."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ccbench.backends.kernels.abi import NONE_DIFFERS, OPS, TYPES
from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostCall, HostOptions, KernelFailed
from ccbench.backends.kernels.programs import compiled_program
from ccbench.backends.kernels.sources import (
    OUT_OF_PLACE,
    channel_orders,
    channel_trees,
    entries,
    ring_plan,
    split_name,
    tree_plan,
)
from ccbench.collectives import collective
from ccbench.schedules import ALGORITHMS
from ccbench.verification import Piece
from tests.backends.kernels.checked import CheckedWorld, HostOutput, KernelRace
from tests.backends.kernels.orders import Array
from tests.backends.kernels.references import (
    ordered_reference,
    packets_bytes,
    ring_reference,
    tree_reference,
)
from tests.backends.kernels.schedule_reference import (
    chunk_bytes,
    schedule_of,
    schedule_reference,
)
from tests.backends.kernels.worlds import Prepared, Reference, Trial, check, prepare


@dataclass(frozen=True)
class KernelCase:
    """Some launches in a row, with different data.

    algorithm: what ``schedule`` interprets; pieces: its parameter, 0 for the usual one. shuffled: rings and
    trees over ranks in any order. packets: of one sender in one round. then: the entry of every
    second launch, if another; then_root, then_count: its root and elements, if others. chained: a launch's
    inputs are the outputs of the one before. overwrites: its outputs are the inputs of the one before. away:
    ranks that do not take part, so that nobody may get through; limit_nanoseconds: then of one wait, 0 for
    none.
    """

    entry: str
    algorithm: str = ""
    dtype: str = "float32"
    op: str = "sum"
    ranks: int = 3
    channels: int = 2
    lanes: int = 4
    count: int = 157
    root: int = 1
    slots: int = 2
    slot_bytes: int = 64
    packets: int = 16
    launches: int = 2
    iterations: int = 1
    misalignment: int = 0
    in_place: bool = False
    drifting: bool = True
    then: str = ""
    then_root: int = -1
    then_count: int = 0
    chained: bool = False
    overwrites: bool = False
    away: Sequence[int] = ()
    limit_nanoseconds: int = 0
    pieces: int = 0
    shuffled: bool = False
    staging_bytes: int = 1 << 16

    @property
    def kernel_file(self) -> str:
        """Where the entry is."""
        return entries()[self.entry].file


def collective_of(case: KernelCase, entry: str) -> str:
    """Which collective an entry computes."""
    if case.algorithm:
        return case.algorithm.split()[0]
    _, _, collective = entry.partition("_")
    return re.sub("^(one_shot|two_shot|pull)_", "", collective)


def world_for(case: KernelCase) -> CheckedWorld:
    """A communicator with room for the case."""
    return CheckedWorld(
        case.ranks,
        case.channels,
        slots=case.slots,
        slot_bytes=case.slot_bytes,
        packets_bytes=packets_bytes(case.ranks, case.packets),
        staging_bytes=case.staging_bytes,
    )


def run_case(case: KernelCase, build: Build, seed: int) -> None:
    """Launch, and compare every output with NumPy's; AssertionError or what the engine raises."""
    world = world_for(case)
    options = HostOptions(
        lanes=case.lanes, seed=seed, devices=case.ranks if case.drifting else 1
    )
    if case.entry == "barrier":
        _run_barrier(case, world, build, options)
        return
    if case.entry == "compare":
        _run_compare(case, world, build, seed)
        return
    launched: list[tuple[Prepared, Reference]] = []
    for number in range(case.launches):
        prepared, reference = prepared_launch(case, world, number, seed)
        launched.append((_joined(case, prepared, launched), reference))
    world.run(build, [prepared.call for prepared, _ in launched], options)
    for prepared, reference in launched:
        if case.overwrites and prepared is not launched[-1][0]:
            prepared = replace(prepared, call=replace(prepared.call, inputs=[0] * case.ranks))
        check(world, prepared, reference)


def _run_compare(case: KernelCase, world: CheckedWorld, build: Build, seed: int) -> None:
    """Two pieces, as they should be and with some elements changed."""
    pieces = [Piece(0, 50, np.arange(7)), Piece(50, case.count - 50, np.arange(11))]
    size = pieces[0].period.itemsize * case.count
    output = HostOutput(
        world, world.view(world.allocate(size), size).view(pieces[0].period.dtype), build
    )
    output.output[:] = np.concatenate(
        [values for piece in pieces for _, values in piece.parts()]
    )
    assert output.differing(pieces) == NONE_DIFFERS
    changed = random.Random(seed).sample(range(case.count), 40)
    output.output[changed] ^= 1
    assert output.differing(pieces) == (40, min(changed))


def _run_barrier(
    case: KernelCase, world: CheckedWorld, build: Build, options: HostOptions
) -> None:
    nothing = [0] * case.ranks
    call = HostCall("barrier", "uint8", 0, nothing, nothing, iterations=case.iterations)
    if not case.away:
        world.run(build, [call] * case.launches, options)
        return
    message, idle = "", replace(call, iterations=0)
    limited = replace(options, limit_nanoseconds=case.limit_nanoseconds)
    try:
        world.run(build, [call], limited, instead=dict.fromkeys(case.away, idle))
    except KernelRace:
        raise
    except KernelFailed as error:
        message = str(error)
    for rank in set(range(case.ranks)) - set(case.away):
        named = f"rank {rank}, channel" if case.limit_nanoseconds else f"rank {rank} block"
        assert named in message, (
            f"rank {rank} got through a barrier without {case.away}, or says nothing: {message}"
        )


def trial_of(case: KernelCase, entry: str, seed: int) -> Trial:
    """A launch of ``entry`` as the case has it."""
    same = "dtype op count root in_place misalignment iterations"
    values = {name: getattr(case, name) for name in same.split()}
    return Trial(entry, collective_of(case, entry), **values, seed=seed)


def prepared_launch(
    case: KernelCase, world: CheckedWorld, number: int, seed: int
) -> tuple[Prepared, Reference]:
    """Launch ``number`` of the case: its buffers filled, and what NumPy makes of them."""
    second = bool(case.then) and number % 2 == 1
    trial = trial_of(case, case.then if second else case.entry, seed + 1000 * number)
    if second and case.then_count:
        trial = replace(trial, count=case.then_count)
    if second and case.then_root >= 0:
        trial = replace(trial, root=case.then_root)
    return launch_of(case, world, trial)


def launch_of(
    case: KernelCase, world: CheckedWorld, trial: Trial
) -> tuple[Prepared, Reference]:
    """A launch of ``trial.entry`` on ``case.channels`` of the world's channels, and its reference.

    Out of place where the entry knows nothing else.
    """
    if split_name(trial.entry)[0] in OUT_OF_PLACE:
        trial = replace(trial, in_place=False)
    stem = Path(entries()[trial.entry].file).stem
    assert stem in _LAUNCHES, (
        f"kernels/{stem}.cu has no line in _LAUNCHES of {__file__}; add a function there that "
        "prepares one launch (buffers, plan, program) and says what NumPy makes of the inputs, as _mesh does"
    )
    return _LAUNCHES[stem](case, world, trial)


def _joined(
    case: KernelCase, prepared: Prepared, before: list[tuple[Prepared, Reference]]
) -> Prepared:
    """``one`` with buffers of the launch before it, where the case says so."""
    if not before:
        return prepared
    last, reference = before[-1]
    if case.chained:
        made: list[Array] = reference(last.trial, last.inputs)
        prepared = replace(
            prepared, inputs=made, call=replace(prepared.call, inputs=last.call.outputs)
        )
    if case.overwrites:
        prepared = replace(prepared, call=replace(prepared.call, outputs=last.call.inputs))
    return prepared


def _orders(case: KernelCase, trial: Trial) -> list[list[int]]:
    if not case.shuffled:
        return channel_orders(case.ranks, case.channels)
    generator = random.Random(trial.seed)
    return [generator.sample(range(case.ranks), case.ranks) for _ in range(case.channels)]


def _ring(case: KernelCase, world: CheckedWorld, trial: Trial) -> tuple[Prepared, Reference]:
    orders = _orders(case, trial)
    return prepare(world, trial, ring_plan(orders), case.channels), ring_reference(
        orders, case.slot_bytes
    )


def _tree(case: KernelCase, world: CheckedWorld, trial: Trial) -> tuple[Prepared, Reference]:
    root = None if trial.collective == "all_reduce" else trial.root
    trees = channel_trees(
        case.ranks, case.channels, root, _orders(case, trial) if case.shuffled else ()
    )
    return prepare(world, trial, tree_plan(trees), case.channels), tree_reference(trees)


def _unplanned(
    case: KernelCase, world: CheckedWorld, trial: Trial
) -> tuple[Prepared, Reference]:
    return prepare(world, trial, None, case.channels), ordered_reference


def _schedule(
    case: KernelCase, world: CheckedWorld, trial: Trial
) -> tuple[Prepared, Reference]:
    made = schedule_of(case.algorithm, case.ranks, trial.root, case.pieces)
    assert made is not None, f"no {case.algorithm} on {case.ranks} ranks"
    prepared = prepare(world, trial, None, case.channels)
    prepared = replace(prepared, call=replace(prepared.call, program=compiled_program(made)))
    chunk = chunk_bytes(
        made, case.channels, case.slot_bytes, case.staging_bytes, trial.in_place
    )
    return prepared, schedule_reference(made, case.channels, chunk)


_LAUNCHES: dict[
    str, Callable[[KernelCase, CheckedWorld, Trial], tuple[Prepared, Reference]]
] = {
    "ring": _ring,
    "tree": _tree,
    "mesh": _unplanned,
    "put": _unplanned,
    "ll": _unplanned,
    "schedule": _schedule,
}
"""Kernel file -> how one launch of it is made. ``_run_barrier`` runs the barrier, which moves nothing."""


# -- launches in a row, each other than the one before: what every kernel file is put through --------------

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
    "ll.cu": {
        "packets": [16, 256, 4096],
        "channels": [1, 2, 3, 17],
    },  # one more than there are boxes for
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
    names = sorted(
        name for name, row in entries().items() if row.file == file and name != entry
    )
    return names[number % len(names)] if names else entry


def trials_of(case: KernelCase, seed: int) -> list[Trial]:
    """Four launches: as asked, of few elements, of another entry, and with another root."""
    first = replace(trial_of(case, case.entry, seed), root=case.ranks // 2)
    between = replace(first, count=min(case.count, MOST_IN_BETWEEN), seed=seed + 2)
    name = other_entry(case.entry, seed)
    return [
        first,
        replace(first, count=min(case.count, 31), root=0, seed=seed + 1),
        replace(between, entry=name, collective=collective_of(case, name)),
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
    world.run(
        build or Build(case.kernel_file), [prepared.call for prepared, _ in launched], options
    )
    for prepared, reference in launched:
        if collective(prepared.trial.collective).moves_data:
            check(world, prepared, reference)
    return True
