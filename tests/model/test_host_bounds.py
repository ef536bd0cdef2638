from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import CPU_DTYPES, item_bytes
from ccbench.errors import ScheduleError
from ccbench.model.machine import Machine
from ccbench.model.pricing import bound_seconds, compulsory, price_sizes
from ccbench.schedules import algorithms_of, schedule_for

from .machines import machines, toy

COUNTS = (0, 1, 7, 1000, 1 << 20, 1 << 28)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("root", [0, 1])
def test_compulsory_elements_agree_with_a_count_over_all_ranks(name: str, ranks: int, root: int) -> None:
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


@pytest.mark.parametrize(
    ("name", "read", "written"),
    [
        # p = 8 ranks, in units of the count: every operand once, every foreign result once.
        ("all_reduce", 8, 8),
        ("all_gather", 8, 56),
        ("reduce_scatter", 64, 8),
        ("broadcast", 1, 7),
        ("reduce", 8, 1),
        ("all_to_all", 56, 56),
        ("gather", 7, 7),
        ("scatter", 7, 7),
        ("send_recv", 8, 8),
        ("barrier", 0, 0),
    ],
)
def test_compulsory_elements_of_every_collective(name: str, read: int, written: int) -> None:
    found = compulsory(COLLECTIVES[name], 8, 0)
    assert found == pytest.approx((read, written))


def test_the_bound_is_traffic_over_peak_when_large_and_one_flag_when_small() -> None:
    row = COLLECTIVES["all_reduce"]
    small, large = bound_seconds(row, 4, [1, 1_000_000], 4, toy())
    assert small == pytest.approx(5e-7)
    assert large == pytest.approx(2 * 4 * 4e6 / 8e9)


def test_one_rank_has_no_bound_above_zero() -> None:
    assert bound_seconds(COLLECTIVES["all_reduce"], 1, 1024, 4, toy()) == 0.0


@settings(max_examples=40, deadline=None)
@given(machines(), st.sampled_from(sorted(COLLECTIVES)), st.integers(1, 9), st.data(), st.booleans())
def test_no_schedule_is_priced_below_the_bound(
    machine: Machine, name: str, ranks: int, data: st.DataObject, in_place: bool
) -> None:
    algorithm = data.draw(st.sampled_from(algorithms_of(name)))
    root = data.draw(st.integers(0, ranks - 1)) if COLLECTIVES[name].rooted else 0
    try:
        schedule = schedule_for(name, algorithm, ranks, root)
    except ScheduleError:
        return
    dtype, op = data.draw(st.sampled_from(CPU_DTYPES)), data.draw(st.sampled_from(("sum", "max", "avg")))
    prices = price_sizes(schedule, COUNTS, item_bytes(dtype), machine, in_place, dtype=dtype, op=op)
    assert np.all(prices.bound <= prices.seconds * (1 + 1e-9))
