"""Programs of the schedule interpreter: what they hold, whatever the schedule."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache

import pytest

from ccbench.backends.kernels.programs import (
    MESSAGE_PIECES,
    UNIT_WORDS,
    Message,
    PassTraffic,
    Pointee,
    RankProgram,
    compiled_program,
    rank_programs,
)
from ccbench.errors import ScheduleError
from ccbench.schedules import ALGORITHMS, schedule_for
from ccbench.schedules.schedule import Schedule

CASES = [(row.collective, row.name, ranks) for row in ALGORITHMS for ranks in (2, 3, 8)]


@cache
def made(collective: str, name: str, ranks: int) -> Schedule:
    return schedule_for(collective, name, ranks, size_bytes=1 << 20)


@cache
def programs_of(
    collective: str, name: str, ranks: int
) -> tuple[list[RankProgram], PassTraffic]:
    return rank_programs(made(collective, name, ranks), in_place=False)


def sent_and_received(
    programs: list[RankProgram],
) -> tuple[dict[tuple[int, int], list[Message]], ...]:
    sent = defaultdict[tuple[int, int], list[Message]](list)
    received = defaultdict[tuple[int, int], list[Message]](list)
    for unit in (unit for program in programs for unit in program.units):
        for by_pair, messages in ((sent, unit.sends), (received, unit.receives)):
            for message in messages:
                by_pair[message.source, message.target].append(message)
    return sent, received


@pytest.mark.parametrize(("collective", "name", "ranks"), CASES)
def test_units_fit_write_no_input_and_receive_what_is_sent_in_the_same_order_in_place_or_not(
    collective: str, name: str, ranks: int
) -> None:
    programs, traffic = programs_of(collective, name, ranks)
    sent, received = sent_and_received(programs)
    assert sent == received
    assert sum(map(len, sent.values())) == len(traffic.entries)
    in_place, _ = rank_programs(made(collective, name, ranks), in_place=True)
    assert sent_and_received(in_place) == (sent, received)
    for unit in (unit for program in programs for unit in program.units):
        assert unit.fits
        assert unit.words <= UNIT_WORDS
        assert all(target.kind is not Pointee.INPUT for target in unit.targets)
    assert traffic.longest <= MESSAGE_PIECES


@pytest.mark.parametrize(("collective", "name", "ranks"), CASES)
def test_a_pass_runs_to_its_end_with_two_messages_in_flight(
    collective: str, name: str, ranks: int
) -> None:
    """Every rank does what it can; two passes, as the second begins before all have ended the first."""
    programs, _ = programs_of(collective, name, ranks)
    position = [0] * ranks
    sent: Counter[tuple[int, int]] = Counter()
    taken: Counter[tuple[int, int]] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            if position[rank] == 2 * len(program.units):
                continue
            unit = program.units[position[rank] % len(program.units)]
            arrived = all(sent[m.source, rank] > taken[m.source, rank] for m in unit.receives)
            room = all(sent[rank, m.target] - taken[rank, m.target] < 2 for m in unit.sends)
            if arrived and room:
                sent.update((rank, m.target) for m in unit.sends)
                taken.update((m.source, rank) for m in unit.receives)
                position[rank] += 1
                moved = True
    assert position == [2 * len(program.units) for program in programs]


def test_more_ranks_than_a_block_can_know_are_refused() -> None:
    with pytest.raises(ScheduleError, match="65 ranks: kernels run 64 at most"):
        compiled_program(schedule_for("broadcast", "binomial", 65, 0, size_bytes=1024))
