"""Plans for whole cases: by kernel file, with rings from the links where they are known."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends.kernels.plans import (
    PlanRequest,
    channel_orders,
    natural_orders,
    plan_for,
    topology_orders,
)
from ccbench.errors import ScheduleError
from ccbench.topology.catalog import load_catalog

REQUEST = PlanRequest("all_reduce", ranks=8, channels=6)


def test_a_cube_of_direct_links_gives_a_ring_for_every_lane_each_both_ways() -> None:
    topology = load_catalog("dgx-1v")
    names = [gpu.name for gpu in topology.gpus]
    orders = topology_orders(topology, names)
    assert all(sorted(order) == list(range(8)) for order in orders)
    joined = {(link.source, link.target) for link in topology.links}
    for order in orders:
        steps = zip(order, (*order[1:], order[0]), strict=True)
        assert all((names[one], names[other]) in joined for one, other in steps)
    turned = {tuple(reversed(order)) for order in orders}
    same_ring = {tuple(np.roll(order, -order.index(0)).tolist()) for order in turned}
    assert same_ring == {tuple(np.roll(order, -order.index(0)).tolist()) for order in orders}


def test_ranks_may_be_numbered_otherwise_than_gpus() -> None:
    topology = load_catalog("dgx-1v")
    names = [gpu.name for gpu in topology.gpus]
    straight, turned = topology_orders(topology, names), topology_orders(topology, names[::-1])
    assert len(straight) == len(turned) > 0
    assert all(sorted(order) == list(range(8)) for order in turned)


def test_behind_a_switch_and_on_one_gpu_nothing_is_prescribed() -> None:
    topology = load_catalog("hgx-h100")
    names = [gpu.name for gpu in topology.gpus]
    assert topology_orders(topology, names) == ()
    assert topology_orders(topology, names[:1] * 2) == ()
    assert topology_orders(topology, ["unknown", names[0]]) == ()


def test_channels_take_the_rings_in_turn() -> None:
    orders = ((0, 1, 2), (0, 2, 1))
    request = PlanRequest("all_reduce", ranks=3, channels=5, orders=orders)
    assert channel_orders(request) == [list(orders[channel % 2]) for channel in range(5)]
    assert channel_orders(REQUEST) == natural_orders(8, 6)


def test_a_ring_kernel_gets_orders_and_places() -> None:
    found = plan_for("ring.cu", REQUEST)
    assert found.program is None
    assert found.plan is not None
    assert found.plan.shape == (6, 16)
    for row in found.plan:
        assert np.array_equal(row[8:][row[:8]], np.arange(8))


def test_a_kernel_without_a_planner_gets_nothing() -> None:
    found = plan_for("barrier.cu", REQUEST)
    assert (found.plan, found.program) == (None, None)


def test_the_interpreter_gets_a_program_for_its_schedule_alone() -> None:
    ring = plan_for("schedule.cu", PlanRequest("all_reduce", 4, 1, schedule="ring"))
    tree = plan_for(
        "schedule.cu", PlanRequest("all_reduce", 4, 1, schedule="binary_tree", size_bytes=1 << 20)
    )
    assert ring.plan is None
    assert ring.program is not None
    assert tree.program is not None
    assert not np.array_equal(ring.program, tree.program)


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(ScheduleError, match="do not divide 4 ranks"):
        plan_for("schedule.cu", PlanRequest("all_reduce", 4, 1, schedule="hierarchical:3"))
