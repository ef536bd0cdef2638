"""Programs with one wait taken out or one post made early, and the order of events that tells which matter.

An event is a post: a rank entering a launch or finishing a group. Program order and waits order events. A
wait is *implied* when the event that it waits for happens before its group anyway, by program order and the
other waits, in every launch: then taking it out changes no order at all, so such a mutant is no mutant. Every
other wait must show when it is missing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ccbench.backends.cpu.program import CompiledCase, Group, Wait
from ccbench.schedules.placement import Space
from ccbench.verification import Array
from tests.backends.cpu.interpreter import Deadlock, buffers_of, fill, output_of, rank_steps

LAUNCHES = 3
POISON = -99


@dataclass(frozen=True)
class Site:
    """A wait of ``rank``: in its group number ``group``, or before it leaves (``group`` = their number)."""

    rank: int
    group: int
    wait: Wait


def sites(compiled: CompiledCase) -> Iterator[Site]:
    """Every wait of every program."""
    for rank, program in compiled.programs.items():
        for number, group in enumerate(program.groups):
            yield from (Site(rank, number, wait) for wait in group.waits)
        yield from (Site(rank, len(program.groups), wait) for wait in program.exit_waits)


def without(compiled: CompiledCase, site: Site) -> CompiledCase:
    """The same programs, one wait less."""
    program = compiled.programs[site.rank]
    if site.group == len(program.groups):
        changed = replace(
            program, exit_waits=tuple(w for w in program.exit_waits if w != site.wait)
        )
    else:
        group = program.groups[site.group]
        less = replace(group, waits=tuple(wait for wait in group.waits if wait != site.wait))
        groups = list(program.groups)
        groups[site.group] = less
        changed = replace(program, groups=tuple(groups))
    return replace(compiled, programs={**compiled.programs, site.rank: changed})


def posted_early(compiled: CompiledCase, rank: int, number: int) -> CompiledCase:
    """The same programs, but one group posts before it computes: an empty group posts in its stead."""
    program = compiled.programs[rank]
    group = program.groups[number]
    parts = (Group(group.waits, (), group.post), Group((), group.loops, group.post))
    groups = (*program.groups[:number], *parts, *program.groups[number + 1 :])
    changed = replace(program, groups=groups)
    return replace(compiled, programs={**compiled.programs, rank: changed})


# -- which waits matter ------------------------------------------------------------------------------------

Event = tuple[int, int, int]
"""(rank, launch, number): 0 is entering, then one for each group, then leaving."""


def waited_event(compiled: CompiledCase, launch: int, wait: Wait) -> Event:
    """The first post that satisfies a wait."""
    peer, offset = wait
    posts = [0, *(group.post for group in compiled.programs[peer].groups)]
    number = next(number for number, post in enumerate(posts) if post >= offset)
    return peer, launch, number


def _predecessors(compiled: CompiledCase, event: Event, left_out: Site) -> Iterator[Event]:
    rank, launch, number = event
    program = compiled.programs[rank]
    if number > 0:
        yield rank, launch, number - 1
        waits = (
            program.exit_waits
            if number > len(program.groups)
            else program.groups[number - 1].waits
        )
        for wait in waits:
            if Site(rank, number - 1, wait) != left_out:
                yield waited_event(compiled, launch, wait)
    elif launch > 0:
        yield rank, launch - 1, len(program.groups) + 1


def is_implied(compiled: CompiledCase, site: Site) -> bool:
    """See the module: whether the other waits order everything that this one orders."""
    return all(
        waited_event(compiled, launch, site.wait)
        in _ancestors(compiled, (site.rank, launch, site.group + 1), site)
        for launch in range(LAUNCHES)
    )


def is_for_a_rewrite(compiled: CompiledCase, site: Site) -> bool:
    """Whether the wait is for the root of a broadcast in place, beyond its entering.

    There the root's buffer holds the result from the start, and whatever the schedule then writes into it is
    what it held already: no order of reading it and of those writes can show.
    """
    schedule = compiled.layout.schedule
    peer, offset = site.wait
    return (
        schedule.collective == "broadcast"
        and compiled.layout.in_place
        and peer == schedule.root
        and offset > 0
    )


def _ancestors(compiled: CompiledCase, event: Event, left_out: Site) -> set[Event]:
    ancestors: set[Event] = set()
    open_events = [event]
    while open_events:
        for before in _predecessors(compiled, open_events.pop(), left_out):
            if before not in ancestors:
                ancestors.add(before)
                open_events.append(before)
    return ancestors


# -- running against the clock -----------------------------------------------------------------------------


def run_late(
    compiled: CompiledCase, inputs: list[list[Array]], late: int, seed: int
) -> list[list[Array]]:
    """Outputs [launch][rank] when rank ``late`` moves only while nobody else can, the others at random.

    Every launch has inputs of its own: a rank fills them in before it enters, and takes its output away when
    it has left; then all of it is poison. So whoever touches its memory too early or too late is found out.
    """
    chooser = random.Random(seed)
    ranks = list(compiled.programs)
    buffers = buffers_of(compiled, np.int64)
    progress = [0] * len(ranks)
    outputs: list[list[Array]] = [[np.empty(0, np.int64)] * len(ranks) for _ in inputs]

    def steps_of(rank: int) -> Iterator[bool]:
        def enter(launch: int) -> None:
            fill(compiled, rank, buffers, inputs[launch][rank])

        def leave(launch: int) -> None:
            outputs[launch][rank] = output_of(compiled, rank, buffers)
            for space in Space:
                buffers[(rank, space)][:] = POISON

        return rank_steps(compiled, rank, buffers, progress, len(inputs), enter, leave)

    steps = {rank: steps_of(rank) for rank in ranks}
    while steps:
        order = [rank for rank in steps if rank != late]
        chooser.shuffle(order)
        if late in steps:
            order.append(late)
        for rank in order:
            moved = next(steps[rank], None)
            if moved is None:
                del steps[rank]
            if moved is not False:
                break
        else:
            raise Deadlock(f"progress {progress}, unfinished {sorted(steps)}")
    return outputs
