"""One rank's part in one collective of a case: its schedule, and its buffers in the ranks' arenas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ccbench.backends.cpu.execution import Buffers, InactiveLauncher, Launcher, Waiter
from ccbench.backends.cpu.memory import Arena, Control, Word, buffer_offsets
from ccbench.backends.cpu.program import CompiledCase
from ccbench.backends.faults import Fault
from ccbench.backends.rank_buffers import OWN, Lane
from ccbench.cases import DEFAULT, UNEVEN, Case
from ccbench.collectives import collective, sent_elements
from ccbench.dtypes import item_bytes, numpy_dtype
from ccbench.model.rank_subset import schedule_of
from ccbench.schedules.placement import Amounts, Layout, Place, Space
from ccbench.verification import Array, Mismatch, poison

ONE_SHOT_LIMIT_BYTES = 32 * 1024
"""Up to here one synchronisation less is worth reading every buffer whole (docs/overhead.md)."""


def default_algorithm(collective: str, size_bytes: int) -> str:
    """Return what ``default`` stands for.

    In shared memory every rank reaches every other at the same cost, so direct schedules win.
    """
    if collective == "all_reduce":
        return "one_shot" if size_bytes <= ONE_SHOT_LIMIT_BYTES else "two_shot"
    return {"send_recv": "shift", "barrier": "dissemination"}.get(collective, "direct")


def amounts_of(case: Case) -> Amounts:
    """Return sizes of uneven blocks, [source][target]; () where all are of one size."""
    if case.collective != UNEVEN or not case.traffic:
        return ()
    return tuple(map(tuple, sent_elements(case.traffic, case.count, case.group_ranks).tolist()))


@dataclass(frozen=True)
class Plan:
    """Places of one rank's buffers in its arena: elements and byte offsets by space, and their end."""

    elements: tuple[int, ...]
    offsets: tuple[int, ...]
    end_bytes: int


class CpuLane(Lane):
    """A lane whose buffers other ranks map too; launcher: runs its program, once memory is bound."""

    def __init__(
        self, case: Case, rank: int, fault: Fault | None, number: int = OWN, seed_offset: int = 0
    ) -> None:
        super().__init__(case, rank, fault, number, seed_offset)
        default = default_algorithm(case.collective, case.size_bytes)
        schedule = schedule_of(case, default if case.algorithm == DEFAULT else case.algorithm)
        self.layout = Layout(schedule, case.count, case.in_place, amounts_of(case))
        self.launcher: Launcher | InactiveLauncher | None = None
        self._whole_output = self.output

    @property
    def label(self) -> str:
        """Name of the algorithm that runs, as a suite would write it."""
        schedule = self.layout.schedule
        return f"{schedule.algorithm}:{schedule.parameter}" if schedule.parameter else schedule.algorithm

    def plans(self, compiled: CompiledCase, begin_bytes: int) -> list[Plan]:
        """Return the buffers of every rank of a group, from ``begin_bytes`` of their ranks' arenas on."""
        size = item_bytes(self.case.dtype)
        plans = []
        for group_rank in range(self.case.group_ranks):
            elements = [
                self.layout.buffer_elements(group_rank, space) for space in (Space.INPUT, Space.OUTPUT)
            ]
            elements.append(compiled.work_elements[group_rank])
            offsets, end = buffer_offsets([count * size for count in elements])
            shifted = tuple(begin_bytes + offset for offset in offsets)
            plans.append(Plan(tuple(elements), shifted, begin_bytes + end))
        return plans

    def bind(
        self, compiled: CompiledCase, plans: list[Plan], arenas: list[Arena], control: Control, waiter: Waiter
    ) -> None:
        """Map the buffers of this rank's group, and bind its program to them."""
        if self.part is None:
            self.launcher = InactiveLauncher(self.rank, compiled.stride, control, waiter)
            return
        dtype = numpy_dtype(self.case.dtype)
        buffers: Buffers = {
            (group_rank, space): arenas[rank].view(plan.offsets[space], plan.elements[space], dtype)
            for group_rank, (rank, plan) in enumerate(zip(self.part.members, plans, strict=True))
            for space in Space
        }
        group_rank = self.part.group_rank
        self._whole_output = buffers[(group_rank, Space.OUTPUT)]
        self.input = _span(buffers, self.layout.input_places(group_rank))
        self.output = _span(buffers, self.layout.output_places(group_rank))
        waits = self.fault is None or self.fault.kind != "unsynchronised"
        self.launcher = Launcher(
            compiled, group_rank, buffers, self.case.op, control, waiter, self.part.members, waits=waits
        )

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill the input with the data of ``seed``."""
        if self.part:
            self.part.fill(self.input, seed + self.seed_offset, launches)

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        poison(self._whole_output)

    def check(self, seed: int, launches: int, control: Control) -> Mismatch | None:
        """Compare the output with what is right."""
        if collective(self.case.collective).moves_data:
            return self.mismatch(self.output, seed, launches)
        # After a barrier every rank must have come as far as this one: each wrote its seed before.
        members = self.part.members if self.part else ()
        arrived = {rank: control.read(rank, Word.ARRIVED) for rank in members}
        late = [rank for rank, seen in arrived.items() if seen < seed]
        if not late:
            return None
        return Mismatch(self.rank, len(late), late[0], f"{arrived[late[0]]} (rank had not come)", str(seed))


def _span(buffers: Buffers, places: list[Place]) -> Array:
    """Return neighbouring places of one buffer as one view."""
    if not places:
        return np.empty(0, np.uint8)
    first, last = places[0], places[-1]
    return buffers[(first.rank, first.space)][first.offset : last.offset + last.elements]
