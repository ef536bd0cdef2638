"""Programs of the schedule interpreter: what they hold, whatever the schedule."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache

import pytest

from ccbench.backends.kernels.programs import (
    HEADER_WORDS,
    MESSAGE_PIECES,
    ROW_WORDS,
    UNIT_WORDS,
    Message,
    PassTraffic,
    Pointee,
    RankProgram,
    compiled_program,
    rank_programs,
)
from ccbench.backends.kernels.sources import plan_for
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


def test_the_ring_costs_one_synchronisation_a_step_and_stores_nothing_on_the_way() -> None:
    """One send, 2(p-1)-1 receipts that are handed on, one that is not: as the ring itself."""
    programs, _ = rank_programs(made("all_reduce", "ring", 8), in_place=False)
    for program in programs:
        assert len(program.units) == 15
        assert program.work_places == 0
        handed_on = [unit for unit in program.units if unit.receives and unit.sends]
        assert len(handed_on) == 13
        stored = [
            unit
            for unit in handed_on
            if any(target.kind is Pointee.OUTPUT for target in unit.targets)
        ]
        assert len(stored) == 7


def test_a_one_shot_is_two_units() -> None:
    programs, _ = rank_programs(made("all_reduce", "one_shot", 8), in_place=False)
    for program in programs:
        first, second = program.units
        assert (len(first.sends), len(second.receives)) == (7, 7)
        (move,) = second.moves
        assert len(move.sources) == 8
        assert move.finishes


@pytest.mark.parametrize(("collective", "name", "ranks"), CASES)
def test_the_words_say_where_units_begin_and_how_long_they_are(
    collective: str, name: str, ranks: int
) -> None:
    words = compiled_program(made(collective, name, ranks)).tolist()
    row_words = words[6]
    assert words[1] == ranks
    assert row_words == ROW_WORDS + 2 * ranks
    end = HEADER_WORDS + ranks * row_words
    for rank in range(ranks):
        row = words[HEADER_WORDS + rank * row_words :][:row_words]
        for begin, length in ((row[2], row[3]), (row[4], row[5])):
            assert begin == end
            while True:
                assert words[end] & 0xFFFF == length
                last = words[end + 1] >> 24
                length, end = words[end] >> 16, end + length
                if last:
                    break
            assert words[begin] & 0xFFFF == length  # the next one of the last is the first one
    assert end == len(words)


def test_a_planner_makes_the_program_of_the_schedule_that_is_asked_for() -> None:
    plan = plan_for(
        "schedule.cu", "broadcast", 4, 2, root=3, size_bytes=1 << 20, schedule="chain:5"
    )
    assert plan.plan is None
    assert plan.program is not None
    expected = compiled_program(schedule_for("broadcast", "chain:5", 4, 3))
    assert plan.program.tolist() == expected.tolist()
    assert plan.program[2] == 5


def test_more_ranks_than_a_block_can_know_are_refused() -> None:
    with pytest.raises(ScheduleError, match="65 ranks: kernels run 64 at most"):
        compiled_program(schedule_for("broadcast", "binomial", 65, 0, size_bytes=1024))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["direct", "pairwise"])
def test_sixty_four_ranks_fit_into_a_block(name: str) -> None:
    programs, _ = rank_programs(
        schedule_for("reduce_scatter", name, 64, prove=False), in_place=False
    )
    assert all(unit.fits for program in programs for unit in program.units)
