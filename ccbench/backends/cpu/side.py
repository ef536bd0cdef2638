"""One rank's side of one collective: which schedule, what data, where they lie. A case has one, or two beside
each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ccbench.backends.cpu.execution import Buffers, Bystander, Launcher, Pace
from ccbench.backends.cpu.memory import Arena, Control, Word, buffer_offsets
from ccbench.backends.cpu.program import CompiledCase
from ccbench.backends.faults import Fault
from ccbench.cases import DEFAULT, UNEVEN, Case
from ccbench.collectives import collective, sent_elements
from ccbench.dtypes import item_bytes, numpy_dtype
from ccbench.model.rank_subset import schedule_of
from ccbench.schedules.placement import Amounts, Layout, Place, Space
from ccbench.verification import GROUP_SEEDS, Array, Mismatch, Part, part_of, poison

ONE_SHOT_LIMIT_BYTES = 32 * 1024
"""Up to here one synchronisation less is worth reading every buffer whole (docs/overhead.md)."""


def default_algorithm(collective: str, size_bytes: int) -> str:
    """In shared memory every rank reaches every other at the same cost, so direct schedules win."""
    if collective == "all_reduce":
        return "one_shot" if size_bytes <= ONE_SHOT_LIMIT_BYTES else "two_shot"
    return {"send_recv": "shift", "barrier": "dissemination"}.get(collective, "direct")


def amounts_of(case: Case) -> Amounts:
    """Of uneven blocks, [source][target]; () where all are of one size."""
    if case.collective != UNEVEN or not case.traffic:
        return ()
    return tuple(map(tuple, sent_elements(case.traffic, case.count, case.group_ranks).tolist()))


@dataclass(frozen=True)
class Plan:
    """Where one rank's buffers are in its arena: elements and byte offsets by space, and their end."""

    elements: tuple[int, ...]
    offsets: tuple[int, ...]
    end_bytes: int


class Side:
    """One rank's part in one collective.

    case: as the team sees it. fault: what this rank does wrong in it. seeds: how far its data are from those
    of the collective that it runs beside.
    """

    def __init__(self, case: Case, rank: int, fault: Fault | None, seeds: int = 0) -> None:
        self.case = case
        self.rank = rank
        default = default_algorithm(case.collective, case.size_bytes)
        schedule = schedule_of(case, default if case.algorithm == DEFAULT else case.algorithm)
        self.layout = Layout(schedule, case.count, case.in_place, amounts_of(case))
        self.part: Part | None = part_of(case, rank)
        self.fault = fault if fault and fault.matches(case, rank) else None
        self.launcher: Launcher | Bystander | None = None
        self._seeds = seeds
        self._input = self._output = self._whole_output = np.empty(0, np.uint8)

    @property
    def group_rank(self) -> int | None:
        """This rank's number in its group, None where it stands by."""
        return self.part.group_rank if self.part else None

    @property
    def label(self) -> str:
        """What a suite would write to get the algorithm that runs."""
        schedule = self.layout.schedule
        return f"{schedule.algorithm}:{schedule.parameter}" if schedule.parameter else schedule.algorithm

    # -- memory --------------------------------------------------------------------------------------------

    def plans(self, compiled: CompiledCase, begin_bytes: int) -> list[Plan]:
        """Of every rank of a group, buffers from ``begin_bytes`` of their ranks' arenas on."""
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
        self, compiled: CompiledCase, plans: list[Plan], arenas: list[Arena], control: Control, pace: Pace
    ) -> None:
        """Map the buffers of this rank's group, and bind its program to them."""
        if self.part is None:
            self.launcher = Bystander(self.rank, compiled.stride, control, pace)
            return
        dtype = numpy_dtype(self.case.dtype)
        buffers: Buffers = {
            (group_rank, space): arenas[rank].view(plan.offsets[space], plan.elements[space], dtype)
            for group_rank, (rank, plan) in enumerate(zip(self.part.members, plans, strict=True))
            for space in Space
        }
        group_rank = self.part.group_rank
        self._whole_output = buffers[(group_rank, Space.OUTPUT)]
        self._input = _span(buffers, self.layout.input_places(group_rank))
        self._output = _span(buffers, self.layout.output_places(group_rank))
        waits = self.fault is None or self.fault.kind != "unsynchronised"
        self.launcher = Launcher(
            compiled, group_rank, buffers, self.case.op, control, pace, self.part.members, waits=waits
        )

    # -- data ----------------------------------------------------------------------------------------------

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill the input with the data of ``seed``."""
        if self.part:
            self.part.fill(self._input, seed + self._seeds, launches)

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        poison(self._whole_output)

    def check(self, seed: int, launches: int, control: Control) -> Mismatch | None:
        """Compare the output with what is right."""
        if self.fault:
            self.fault.spoil(self._output)
        if not collective(self.case.collective).moves_data:
            return self._check_arrivals(seed, control)
        return self.part.check(self._output, seed + self._seeds, launches) if self.part else None

    def _check_arrivals(self, seed: int, control: Control) -> Mismatch | None:
        """After a barrier every rank must have come as far as this one: each wrote its seed before."""
        members = self.part.members if self.part else ()
        arrived = {rank: control.read(rank, Word.ARRIVED) for rank in members}
        late = [rank for rank, seen in arrived.items() if seen < seed]
        if not late:
            return None
        return Mismatch(self.rank, len(late), late[0], f"{arrived[late[0]]} (rank had not come)", str(seed))


def sides_of(case: Case, rank: int, fault: Fault | None) -> tuple[Side, ...]:
    """The case's own collective, and the one beside it where there is one."""
    main = Side(case, rank, fault)
    other = case.concurrent_case
    if other is None:
        return (main,)
    # Numbered after the case's own groups: what strays from one collective into the other is seen.
    return main, Side(other, rank, fault, len(case.members) * GROUP_SEEDS)


def _span(buffers: Buffers, places: list[Place]) -> Array:
    """Neighbouring places of one buffer as one view."""
    if not places:
        return np.empty(0, np.uint8)
    first, last = places[0], places[-1]
    return buffers[(first.rank, first.space)][first.offset : last.offset + last.elements]
