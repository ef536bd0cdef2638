"""The verdict of a hang: the rank that was stopped is named, in generated jobs and in dumps of real ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.traces.events import Communication, GroupProgress, ProcessGroup, Trace
from ccbench.readers.traces.hang import (
    BEFORE,
    CIRCLE,
    IN,
    Hang,
    hang_of,
)
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.hung import hung_job, needs_hung_jobs

Step = tuple[ProcessGroup, str, tuple[int, ...]]
"""(group, collective, its ranks: of a message the sender and the receiver)."""


def job(tp: int, dp: int, pp: int, batches: int) -> dict[int, list[Step]]:
    """Rank -> its steps, of a job that trains with tensor, data and pipeline parallelism."""

    def rank(t: int, d: int, p: int) -> int:
        return (p * dp + d) * tp + t

    programs: dict[int, list[Step]] = {}
    for t, d, p in product(range(tp), range(dp), range(pp)):
        tensor = tuple(rank(i, d, p) for i in range(tp))
        data = tuple(rank(t, i, p) for i in range(dp))
        line = tuple(rank(t, d, i) for i in range(pp))
        in_line = ProcessGroup(f"2{d}{t}", pp, line, "pp")
        reduce_ = (ProcessGroup(f"0{d}{p}", tp, tensor, "tp"), "all_reduce", tensor)
        steps: list[Step] = []
        for _ in range(batches):
            for way in (line, line[::-1]):  # forward and backward
                place = way.index(rank(t, d, p))
                if place:
                    steps.append((in_line, "message", way[place - 1 : place + 1]))
                steps += [reduce_] * 2
                if place + 1 < pp:
                    steps.append((in_line, "message", way[place : place + 2]))
            steps.append((ProcessGroup(f"1{t}{p}", dp, data, "dp"), "all_reduce", data))
        programs[rank(t, d, p)] = [step for step in steps if len(step[2]) > 1]
    return programs


def recorded(programs: dict[int, list[Step]], stop: dict[int, int], ahead: int) -> Trace:
    """What the ranks record when those of ``stop`` make as many steps only; others run ``ahead`` of the device."""
    done = Counter[int]()
    moved = True
    while moved:
        moved = False
        for rank, steps in programs.items():
            if done[rank] >= min(len(steps), stop.get(rank, len(steps))):
                continue
            step = steps[done[rank]]
            if all(
                done[other] < stop.get(other, len(programs[other]))
                and programs[other][done[other] : done[other] + 1] == [step]
                for other in step[2]
            ):
                done.update(step[2])
                moved = True
    calls: list[Communication] = []
    progress: dict[tuple[int, ProcessGroup], GroupProgress] = {}
    for rank, steps in programs.items():
        numbers: Counter[tuple[ProcessGroup, str]] = Counter()
        made = done[rank] + (0 if rank in stop else ahead)
        for at, (group, what, ranks) in enumerate(steps[:made]):
            numbers[group, what] += 1
            sequence, completed = numbers[group, what], at < done[rank]
            state = "completed" if completed else "scheduled"
            call = Communication(rank, what, what, group, sequence=sequence, state=state)
            if what == "message":
                way, peer = ("send", ranks[1]) if ranks[0] == rank else ("recv", ranks[0])
                calls.append(replace(call, collective=way, peer=peer))
                continue
            calls.append(replace(call, start_seconds=float(at), input_bytes=4096))
            before = progress.get(
                (rank, group), GroupProgress(rank, group, "", 0, 0, f"f{rank}")
            )
            progress[rank, group] = replace(
                before,
                enqueued=sequence,
                completed=sequence - (not completed)
                if completed or before.completed == sequence - 1
                else before.completed,
            )
    return Trace(
        ("flight-recorder",),
        (),
        tuple(calls),
        tuple(programs),
        progress=tuple(progress.values()),
    )


@given(st.data())
def test_the_rank_that_was_stopped_is_named_whatever_the_job(data: st.DataObject) -> None:
    tp, dp, pp = (data.draw(st.integers(1, 3), label=name) for name in ("tp", "dp", "pp"))
    programs = job(tp, dp, pp, data.draw(st.integers(1, 3), label="batches"))
    rank = data.draw(st.sampled_from(sorted(programs)), label="rank")
    if not programs[rank]:
        return
    at = data.draw(st.integers(0, len(programs[rank]) - 1), label="at")
    hang = hang_of(recorded(programs, {rank: at}, data.draw(st.integers(1, 4), label="ahead")))
    assert hang is not None
    assert hang.ranks == (rank,)
    assert hang.sentence.startswith(f"rank {rank} stopped before call ")


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_a_job_that_came_to_its_end_does_not_hang(
    tp: int, dp: int, pp: int, batches: int
) -> None:
    assert hang_of(recorded(job(tp, dp, pp, batches), {}, 0)) is None


# -- each kind of cause -------------------------------------------------------------------------------------

WORLD = ProcessGroup("0", 4, (0, 1, 2, 3), "default_pg")
PAIR = ProcessGroup("1", 2, (0, 1), "tp")


def call(
    rank: int, sequence: int, group: ProcessGroup = WORLD, **more: str | int
) -> Communication:
    words: dict[str, Any] = {
        "collective": "all_reduce",
        "state": "scheduled",
        "input_bytes": 4096,
        **more,
    }
    return Communication(rank=rank, name="", group=group, sequence=sequence, **words)


def verdict(
    rows: dict[int, tuple[int, int]],
    *calls: Communication,
    ranks: tuple[int, ...] = (0, 1, 2, 3),
) -> Hang:
    """The verdict of ranks that (made, completed) so many calls of WORLD."""
    progress = tuple(GroupProgress(rank, WORLD, "", *both) for rank, both in rows.items())
    pairs = tuple(
        GroupProgress(call.rank or 0, PAIR, "", call.sequence, (call.sequence or 1) - 1)
        for call in calls
        if call.group == PAIR
    )
    hang = hang_of(Trace((), (), calls, ranks, progress=progress + pairs))
    assert hang is not None
    return hang


def test_groups_used_in_another_order_are_a_circle() -> None:
    calls = [call(0, 5), call(0, 8, PAIR), call(1, 8, PAIR), call(1, 5), call(2, 5), call(3, 5)]
    hang = verdict(dict.fromkeys(range(4), (5, 4)), *calls)
    (cause,) = hang.causes
    assert (cause.kind, cause.ranks) == (CIRCLE, (0, 1))
    assert hang.sentence == (
        "ranks 0-1 wait for each other: rank 0 for rank 1 in call 5 of process group '0' (default_pg), "
        "rank 1 for rank 0 in call 8 of process group '1' (tp)"
    )


@needs_hung_jobs
@pytest.mark.parametrize(
    ("name", "ranks", "group", "kind"),
    [
        ("fr_lock_gil_1st", (9, 14), "'72' (EXPERT_MODEL_PARALLEL_GROUP)", BEFORE),
        ("fr_gpu_error_1st", (12, 14), "'74' (EXPERT_MODEL_PARALLEL_GROUP)", IN),
    ],
)
def test_the_ranks_that_were_stopped_in_a_real_job_are_in_the_first_sentence(
    name: str, ranks: tuple[int, ...], group: str, kind: str
) -> None:
    hang = hang_of(read_traces([hung_job(name)]))
    assert hang is not None
    assert hang.ranks == ranks
    words = f"ranks {ranks[0]}, {ranks[1]} stopped {kind} call"
    assert hang.sentence.startswith(words)
    assert f" of process group {group}" in hang.sentence.partition(":")[0]
    (cause,) = hang.causes
    assert [place.rpartition("_")[2] for place in cause.places] == [str(rank) for rank in ranks]
