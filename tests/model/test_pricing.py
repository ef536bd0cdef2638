from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import Case
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import CPU_DTYPES, item_bytes
from ccbench.errors import ScheduleError
from ccbench.model.loads import step_loads
from ccbench.model.machine import Machine, RatePoint, Rates
from ccbench.model.pricing import bound_seconds, compulsory, predict, price_sizes
from ccbench.schedules import algorithms_of, schedule_for
from ccbench.schedules.schedule import Phase, Schedule

from .machines import machines, price, toy

FLAG, CHECK, YIELD, CALL = 1e-6, 1e-7, 1e-5, 2e-6
COPY, ADD = 1e-9, 2e-9
"""Seconds per byte on one core of the toy."""


def edges(ranks: int) -> float:
    """Entry and exit: each rank hears from all others."""
    return 2 * (FLAG + (ranks - 2) * CHECK)


@pytest.mark.parametrize("ranks", [2, 3, 4, 131_072])
def test_ring_and_two_shot_all_reduce_cost_their_closed_forms(ranks: int) -> None:
    # Each rank adds p - 1 blocks and passes on as many. A ring waits for its neighbour before all steps but
    # the first; two-shot needs no flag between its halves.
    count, steps = 12 * ranks, ranks - 1
    work = edges(ranks) + 2 * steps * CALL + steps * 48 * (ADD + COPY)
    machine = toy(cores=max(4, ranks))
    ring = price(schedule_for("all_reduce", "ring", ranks, prove=False), count, 4, machine)
    assert ring.predicted_seconds == pytest.approx(work + (2 * steps - 1) * FLAG, rel=1e-9)
    if ranks <= 4:
        two_shot = price(schedule_for("all_reduce", "two_shot", ranks), count, 4, machine)
        assert two_shot.predicted_seconds == pytest.approx(work, rel=1e-12)


def test_a_ring_of_131072_ranks_is_looked_at_as_one_step_many_times() -> None:
    schedule = schedule_for("all_reduce", "ring", 131_072, prove=False)
    assert len(step_loads(schedule, 131_072, in_place=False)) <= 2 * len(schedule.phases)


def test_ranks_that_share_a_core_take_turns_on_it() -> None:
    # Four ranks on two cores: work per core doubles, and every wait hands each core round once.
    count, ranks = 4_000_000, 4
    block = count * 4 / ranks
    wait = FLAG + (ranks - 2) * CHECK + 2 * YIELD
    expected = 2 * wait + 2 * (6 * CALL + 3 * block * (ADD + COPY))
    priced = price(schedule_for("all_reduce", "two_shot", ranks), count, 4, toy(cores=2))
    assert priced.predicted_seconds == pytest.approx(expected, rel=1e-12)


def test_out_of_place_each_rank_also_copies_what_it_keeps() -> None:
    schedule = schedule_for("all_gather", "direct", 4)
    out, within = (
        price(schedule, 1000, 4, toy(), in_place=in_place).predicted_seconds
        for in_place in (False, True)
    )
    assert out - within == pytest.approx(CALL + 4000 * COPY, rel=1e-9)


def test_the_roots_own_copy_happens_while_others_pull() -> None:
    schedule = schedule_for("scatter", "direct", 4)
    out, within = (
        price(schedule, 10**6, 4, toy(), in_place=in_place).predicted_seconds
        for in_place in (False, True)
    )
    assert out == pytest.approx(within)


def test_between_steps_without_a_wait_only_the_busiest_ranks_sum_counts() -> None:
    # In place the root has nothing to pull but three pieces to push, the others one to pull, two to push.
    count = 4_000_000
    expected = edges(4) + 3 * CALL + 3 * count * COPY
    priced = price(schedule_for("broadcast", "direct", 4), count, 4, toy(), in_place=True)
    assert priced.predicted_seconds == pytest.approx(expected, rel=1e-12)


def test_the_two_parts_add_up_and_zero_bytes_are_latency_alone() -> None:
    schedule = schedule_for("all_reduce", "ring", 4)
    full, empty = price(schedule, 10**6, 4, toy()), price(schedule, 0, 4, toy())
    assert full.latency_seconds + full.bandwidth_seconds == pytest.approx(
        full.predicted_seconds
    )
    assert empty.bandwidth_seconds == 0.0
    assert (
        empty.predicted_seconds == empty.latency_seconds == pytest.approx(full.latency_seconds)
    )


def test_the_bottleneck_names_the_largest_term() -> None:
    schedule = schedule_for("all_reduce", "ring", 4)
    assert price(schedule, 10**7, 4, toy()).bottleneck.startswith("adding through memory: 67%")
    assert price(schedule, 0, 4, toy()).bottleneck.startswith(
        "fixed cost of array operations: 62%"
    )
    assert price(schedule, 0, 4, toy(cores=1)).bottleneck.startswith("7 waits for flags")


def test_a_barrier_moves_no_bytes_whatever_its_count() -> None:
    schedule = schedule_for("barrier", "dissemination", 4)
    assert price(schedule, 10**6, 4, toy()) == price(schedule, 0, 4, toy())


def test_a_launch_without_work_still_costs_a_call() -> None:
    for in_place in (False, True):
        priced = price(schedule_for("all_reduce", "ring", 1), 0, 4, toy(), in_place=in_place)
        assert priced.predicted_seconds == CALL


@pytest.mark.parametrize("in_place", [False, True])
def test_predict_takes_size_type_operation_and_place_from_the_case(in_place: bool) -> None:
    schedule, machine = schedule_for("all_reduce", "ring", 4), toy(arithmetic=HALF)
    case = Case(
        "s", "cpu", "all_reduce", "ring", "float16", "avg", 2000, 1000, 4, in_place=in_place
    )
    asked = {"in_place": in_place, "dtype": "float16", "op": "avg"}
    assert predict(case, machine, schedule) == price(schedule, 1000, 2, machine, **asked)


def test_many_sizes_at_once_cost_what_each_costs_alone() -> None:
    schedule = schedule_for("broadcast", "binomial", 7)
    counts = [0, 3, 1000, 10**8]
    together = price_sizes(schedule, counts, 4, toy())
    alone = [price(schedule, count, 4, toy()) for count in counts]
    assert [together.prediction(i) for i in range(4)] == alone


def difference(
    schedule: Schedule, count: int, item_bytes: int, machine: Machine, **asked: Any
) -> float:
    """Seconds that an average takes beyond a sum."""
    total, mean = (
        price(schedule, count, item_bytes, machine, op=op, **asked).predicted_seconds
        for op in ("sum", "avg")
    )
    return mean - total


HALF = {"float16 sum": 1e8, "float16 average": 2e8, "int8 average": 2.5e8, "float32 sum": 1e12}
"""Rates of types of a toy whose memory adds 5e8 bytes a second."""


def test_a_reduction_takes_what_its_type_or_memory_allows_whichever_is_slower() -> None:
    schedule, machine = schedule_for("all_reduce", "two_shot", 4), toy(arithmetic=HALF)
    block = 3_000_000 * 2 / 4
    expected = edges(4) + 6 * CALL + 3 * block * (1 / 1e8 + COPY)
    priced = price(schedule, 3_000_000, 2, machine, dtype="float16", op="sum")
    assert priced.predicted_seconds == pytest.approx(expected, rel=1e-12)
    assert priced.bottleneck.startswith("arithmetic of float16 sum: 91%")
    # Memory is slower than the arithmetic of float32, and of float16's max nothing is known.
    for dtype, op in (("float32", "sum"), ("float16", "max"), ("float64", "sum")):
        plain = price(schedule, 3_000_000, 4, toy())
        assert price(schedule, 3_000_000, 4, machine, dtype=dtype, op=op) == plain


@pytest.mark.parametrize(
    ("name", "algorithm", "slots"),
    # In quarters of a rank's buffer: only what no later step adds to is averaged, by the busiest rank.
    [
        ("all_reduce", "ring", 1),
        ("all_reduce", "two_shot", 1),
        ("all_reduce", "one_shot", 4),
        ("all_reduce", "recursive_doubling", 4),
        ("all_reduce", "halving_doubling", 1),
        ("reduce", "chain", 4),
        ("reduce", "binomial", 4),
        ("reduce", "direct", 1),
    ],
)
@pytest.mark.parametrize(("dtype", "calls", "rate"), [("float16", 1, 2e8), ("int8", 3, 2.5e8)])
def test_an_average_adds_one_pass_over_what_is_complete(
    name: str, algorithm: str, slots: int, dtype: str, calls: int, rate: float
) -> None:
    schedule, machine, count = schedule_for(name, algorithm, 4), toy(arithmetic=HALF), 4_000_000
    more = difference(schedule, count, 1, machine, dtype=dtype)
    assert more == pytest.approx(calls * CALL + slots * count / 4 / rate, rel=1e-9)


def test_an_average_of_unknown_rate_costs_a_copy_and_one_rank_averages_nothing() -> None:
    schedule = schedule_for("reduce_scatter", "ring", 4)
    assert difference(schedule, 10**6, 4, toy()) == pytest.approx(CALL + 4e6 * COPY, rel=1e-9)
    alone = schedule_for("all_reduce", "ring", 1)
    assert price(alone, 10**6, 4, toy(), op="avg") == price(alone, 10**6, 4, toy())


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_ranks_that_share_a_core_average_one_after_another(cores: int) -> None:
    schedule, machine = schedule_for("all_reduce", "ring", 4), toy(cores, HALF)
    assert difference(schedule, 4_000_000, 2, machine, dtype="float16") == pytest.approx(
        4 / cores * (CALL + 2_000_000 / 2e8), rel=1e-9
    )


def test_what_moves_without_reducing_costs_the_same_in_every_type() -> None:
    schedule = schedule_for("all_gather", "ring", 4)
    priced = price(schedule, 10**6, 2, toy(arithmetic=HALF), dtype="float16", op="none")
    assert priced == price(schedule, 10**6, 2, toy())


def test_a_fan_in_is_the_work_of_the_slots_owner_even_where_it_is_pushed() -> None:
    whole = [np.array(numbers, dtype=np.int32) for numbers in ((1, 2, 3), (0, 0, 0), (1, 1, 1))]
    source, zero, width = whole
    for fan_in, expected in ((True, [[0, 3], [0, 3]]), (False, [[0, 1], [0, 1]])):
        phase = Phase(source, zero, zero, zero, width, reduces=True, fan_in=fan_in, pushed=True)
        assert phase.executed_by_source is not fan_in
        (load,) = step_loads(
            Schedule("reduce", "made-up", 4, 1, 1, (phase,), root=0), 4, in_place=True
        )
        assert [load.operations.tolist(), load.reduced.tolist()] == expected


def two_steps(second_source: list[int], second_slot: list[int], pushed: bool) -> Schedule:
    """Rank i pulls slot i of its right neighbour, then whatever is said."""

    def whole(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.array(numbers, dtype=np.int32)

    first = Phase(
        whole(1, 2, 0), whole(0, 1, 2), whole(0, 1, 2), whole(0, 1, 2), whole(1, 1, 1)
    )
    slots = whole(*second_slot)
    second = Phase(
        whole(*second_source), whole(2, 0, 1), slots, slots, whole(1, 1, 1), pushed=pushed
    )
    return Schedule("all_reduce", "made-up", 3, 3, 3, (first, second))


@pytest.mark.parametrize(
    ("slots", "pushed", "waits"),
    [
        ([0, 1, 2], False, [False, True]),  # reads what another rank wrote
        ([0, 1, 2], True, [False]),  # pushes what it wrote itself
        (
            [1, 2, 0],
            True,
            [False, True],
        ),  # rank 2 pushes into slot 0 of rank 1, which rank 0 read
    ],
)
def test_a_step_waits_for_what_other_ranks_did_and_not_for_its_own(
    slots: list[int], pushed: bool, waits: list[bool]
) -> None:
    loads = step_loads(two_steps([0, 1, 2], slots, pushed=pushed), 4, in_place=True)
    assert [load.waits for load in loads] == waits
    assert len(loads) == 2 or loads[0].operations.tolist() == [2]


def any_schedule(data: st.DataObject) -> Schedule | None:
    name = data.draw(st.sampled_from(sorted(COLLECTIVES)))
    algorithm = data.draw(st.sampled_from(algorithms_of(name)))
    try:
        return schedule_for(name, algorithm, data.draw(st.integers(1, 9)))
    except ScheduleError:
        return None


@given(machines(), st.data())
def test_more_bytes_never_cost_less(machine: Machine, data: st.DataObject) -> None:
    schedule = any_schedule(data)
    if schedule is None:
        return
    counts = [0, *np.unique(np.geomspace(1, 1e9, 60).astype(int)).tolist()]
    seconds = price_sizes(schedule, counts, 4, machine).seconds
    assert np.all(np.diff(seconds) >= -1e-9 * seconds[1:])


def scaled(rates: Rates, factor: float) -> Rates:
    return Rates(
        *(
            tuple(RatePoint(p.working_set_bytes, factor * p.bytes_per_second) for p in points)
            for points in (rates.one_process, rates.all_cores)
        )
    )


@given(machines(), st.data(), st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower(
    machine: Machine, data: st.DataObject, factor: float
) -> None:
    schedule = any_schedule(data)
    if schedule is None:
        return
    fabric = machine.fabric
    quicker = replace(
        fabric,
        copy=scaled(fabric.copy, factor),
        reduce=scaled(fabric.reduce, factor),
        peak_traffic=scaled(fabric.peak_traffic, factor),
    )
    before = price_sizes(schedule, [0, 10, 10**6], 4, machine)
    after = price_sizes(schedule, [0, 10, 10**6], 4, replace(machine, fabric=quicker))
    assert np.all(after.seconds <= before.seconds * (1 + 1e-9))
    assert np.all(after.bound <= before.bound * (1 + 1e-9))


COUNTS = (0, 1, 7, 1000, 1 << 20, 1 << 28)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("root", [0, 1])
def test_compulsory_elements_agree_with_a_count_over_all_ranks(
    name: str, ranks: int, root: int
) -> None:
    row = COLLECTIVES[name]
    read: set[tuple[int, int]] = set()
    written = 0
    for rank in range(ranks):
        for index in range(len(row.outputs(rank, ranks, ranks, root))):
            origins = row.origins(rank, index, ranks, root)
            if any(origin != rank for origin, _ in origins):
                written += 1
                read.update(origins)
    unit = (1.0 if row.blocked else 1 / ranks) * row.moves_data
    found = compulsory(row, ranks, root)
    assert found[0] == pytest.approx(len(read) * unit)
    assert found[1] == pytest.approx(written * unit)


def test_the_bound_is_traffic_over_peak_when_large_and_one_flag_when_small() -> None:
    row = COLLECTIVES["all_reduce"]
    small, large = bound_seconds(row, 4, [1, 1_000_000], 4, toy())
    assert small == pytest.approx(5e-7)
    assert large == pytest.approx(2 * 4 * 4e6 / 8e9)


def test_one_rank_has_no_bound_above_zero() -> None:
    assert bound_seconds(COLLECTIVES["all_reduce"], 1, 1024, 4, toy()) == 0.0


@given(
    machines(),
    st.sampled_from(sorted(COLLECTIVES)),
    st.integers(1, 9),
    st.data(),
    st.booleans(),
)
def test_no_schedule_is_priced_below_the_bound(
    machine: Machine, name: str, ranks: int, data: st.DataObject, in_place: bool
) -> None:
    algorithm = data.draw(st.sampled_from(algorithms_of(name)))
    root = data.draw(st.integers(0, ranks - 1)) if COLLECTIVES[name].rooted else 0
    try:
        schedule = schedule_for(name, algorithm, ranks, root)
    except ScheduleError:
        return
    dtype, op = (
        data.draw(st.sampled_from(CPU_DTYPES)),
        data.draw(st.sampled_from(("sum", "max", "avg"))),
    )
    prices = price_sizes(
        schedule, COUNTS, item_bytes(dtype), machine, in_place, dtype=dtype, op=op
    )
    assert np.all(prices.bound <= prices.seconds * (1 + 1e-9))
