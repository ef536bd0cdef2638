"""Bounds of graphs: published optima to the printed digit, brute force over all cuts, and the explanation."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model.bounds import LIMITS, cut_bound
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from tests.model.graphs import CUBE_MESH, FULL_MESH, GB, boxes, meshed, mi250, topology

P100 = tuple(tuple(min(1, count) for count in row) for row in CUBE_MESH)


def gigabytes(rate: Fraction) -> float:
    return float(rate) / GB


# The first five are what the authors' own program (github.com/liangyuRain/ForestColl) prints.
@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (boxes(2, 8, 300, 25, 2), "346.667"),
        (boxes(4, 8, 300, 25, 2), "266.667"),
        (meshed(mi250(), 50), "342.857"),
        (meshed(mi250(), 50, 2, 16), "354.133"),
        (meshed(mi250(), 50, 4, 16), "341.333"),
        (meshed(CUBE_MESH, 25), "171.43"),
        (meshed(P100, 20), "91.43"),
        (boxes(2, 8, 450, 50), "533.3"),
        (boxes(16, 8, 450, 50), "426.7"),
        (boxes(8, 72, 900, 50), "951.7"),
    ],
)
def test_all_gather_reaches_the_published_optimum(machine: Topology, expected: str) -> None:
    bound = cut_bound("all_gather", machine)
    decimals = len(expected.partition(".")[2])
    assert f"{gigabytes(bound):.{decimals}f}" == expected


def test_a_thousand_gpus_take_less_than_two_seconds() -> None:
    machine = boxes(128, 8, 450, 50)
    start = time.process_time()
    bound = cut_bound("all_gather", machine)
    assert time.process_time() - start < 2
    assert bound == Fraction(8 * 50 * 10**9 * 1024, 1024 - 8)  # 403.15 GB/s


def test_reduce_scatter_looks_at_what_leaves_and_all_gather_at_what_arrives() -> None:
    slow_out = topology(
        3,
        [("gpu0", "s", 1), ("gpu1", "s", 10), ("gpu2", "s", 10), *(("s", f"gpu{r}", 10.0) for r in range(3))],
        both_ways=False,
    )
    scattered, gathered = cut_bound("reduce_scatter", slow_out), cut_bound("all_gather", slow_out)
    assert gigabytes(gathered) == 3  # gpu0's shard leaves at 1 GB/s
    assert gigabytes(scattered) == 1.5  # two partial shards leave gpu0


@st.composite
def random_graphs(draw: st.DrawFn) -> Topology:
    gpus, switches = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    names = [f"gpu{rank}" for rank in range(gpus)] + [f"switch{index}" for index in range(switches)]
    pairs = list(itertools.permutations(names, 2))
    rates = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 5.5]), min_size=len(pairs), max_size=len(pairs)))
    edges = [(*pair, rate) for pair, rate in zip(pairs, rates, strict=True) if rate]
    return topology(gpus, edges, both_ways=False)


def every_side(machine: Topology) -> list[set[str]]:
    names = [device.name for device in machine.devices]
    return [set(part) for size in range(1, len(names)) for part in itertools.combinations(names, size)]


def leaving(machine: Topology, side: set[str]) -> Fraction:
    crossing = [link for link in machine.links if link.source in side and link.target not in side]
    return sum((Fraction(link.bytes_per_second or 0) for link in crossing), Fraction(0))


@settings(max_examples=60)
@given(random_graphs())
def test_bounds_equal_the_worst_of_all_cuts(machine: Topology) -> None:
    ranks = {device.name for device in machine.gpus}
    sides = [side for side in every_side(machine) if side & ranks]
    gather_all = min(leaving(machine, s) / len(s & ranks) for s in sides if ranks - s) * len(ranks)
    to_root = min(leaving(machine, s) / len(s & ranks) for s in sides if "gpu0" not in s) * len(ranks)
    from_root = min(leaving(machine, s) for s in sides if "gpu0" in s and ranks - s)
    assert cut_bound("all_gather", machine) == gather_all
    assert cut_bound("gather", machine, 0) == to_root
    assert cut_bound("broadcast", machine, 0) == from_root
    pairwise = min(
        leaving(machine, s) * len(ranks) / (len(s & ranks) * len(ranks - s)) for s in sides if ranks - s
    )
    assert cut_bound("all_to_all", machine) >= pairwise


@settings(max_examples=60)
@given(random_graphs())
def test_turning_all_links_round_swaps_gathering_and_scattering(machine: Topology) -> None:
    links = tuple(Link(link.target, link.source, link.kind, link.bytes_per_second) for link in machine.links)
    turned = Topology("turned", machine.devices, links)
    for forward, backward in (
        ("all_gather", "reduce_scatter"),
        ("gather", "scatter"),
        ("broadcast", "reduce"),
    ):
        assert cut_bound(forward, machine) == cut_bound(backward, turned)


def two_phases(machine: Topology) -> Fraction:
    """The best that reduce_scatter followed by all_gather can do; not a limit for other algorithms."""
    rates = cut_bound("reduce_scatter", machine), cut_bound("all_gather", machine)
    return Fraction(0) if 0 in rates else 1 / (1 / rates[0] + 1 / rates[1])


@settings(max_examples=60)
@given(random_graphs())
def test_a_limit_of_all_reduce_never_lies_below_what_two_phases_reach(machine: Topology) -> None:
    assert cut_bound("all_reduce", machine) >= two_phases(machine)


@pytest.mark.parametrize(
    "machine", [boxes(1, 8, 300, 0), boxes(4, 8, 300, 25, 2), meshed(CUBE_MESH, 25), meshed(FULL_MESH, 28)]
)
def test_on_symmetric_machines_two_phases_are_the_best_all_reduce(machine: Topology) -> None:
    assert cut_bound("all_reduce", machine) == two_phases(machine)
    assert two_phases(machine) * 2 == cut_bound("all_gather", machine)


def test_four_boxes_all_reduce_at_the_rate_of_their_network() -> None:
    bound = cut_bound("all_reduce", boxes(4, 8, 300, 25, 2))
    assert f"{gigabytes(bound):.1f}" == "133.3"


def test_all_to_all_sees_the_narrow_middle_that_all_gather_does_not() -> None:
    leaves = [(f"gpu{rank}", f"leaf{rank // 8}", 50.0) for rank in range(16)]
    wide = topology(16, [*leaves, ("leaf0", "leaf1", 400.0)])
    narrow = topology(16, [*leaves, ("leaf0", "leaf1", 100.0)])
    assert cut_bound("all_gather", wide) == cut_bound("all_gather", narrow)
    assert gigabytes(cut_bound("all_to_all", wide)) == pytest.approx(50 * 16 / 15)
    bound = cut_bound("all_to_all", narrow)
    assert gigabytes(bound) == 100 * 16 / 64


def test_a_ring_shift_is_bound_by_the_narrowest_rank() -> None:
    bound = cut_bound("send_recv", topology(3, [("gpu0", "s", 9), ("gpu1", "s", 4), ("gpu2", "s", 9)]))
    assert gigabytes(bound) == 4


def test_a_rank_that_nothing_reaches_takes_for_ever() -> None:
    apart = topology(3, [("gpu0", "gpu1", 1)])
    for name in LIMITS:
        assert cut_bound(name, apart) == 0, name


def test_links_that_are_down_carry_nothing() -> None:
    up = boxes(1, 3, 10, 0)
    links = tuple(
        Link(link.source, link.target, link.kind, link.bytes_per_second, state=LinkState.DOWN)
        if "gpu2" in (link.source, link.target)
        else link
        for link in up.links
    )
    assert cut_bound("all_gather", Topology("down", up.devices, links)) == 0


def test_links_that_nobody_could_see_count_in_a_limit_for_they_may_carry_data() -> None:
    up = boxes(1, 3, 10, 0)
    unseen = replace(up, links=tuple(replace(link, state=LinkState.NOT_VISIBLE) for link in up.links))
    for name in ("all_gather", "all_to_all"):
        assert cut_bound(name, unseen) == cut_bound(name, up) > 0


def test_rates_that_do_not_fit_the_solver_still_give_a_true_and_tight_cut() -> None:
    machine = meshed(CUBE_MESH, 25.781000001, 4, 12.345678901)
    bound = cut_bound("all_gather", machine)
    inward = min(6 * 25.781000001 + 12.345678901, 12.345678901 * 8 * 31 / 24)
    assert gigabytes(bound) == pytest.approx(inward * 32 / 31, rel=1e-6)


def test_what_has_no_bound_is_refused() -> None:
    with pytest.raises(MachineError, match="1 GPUs; a bound needs at least two"):
        cut_bound("all_gather", boxes(1, 1, 10, 0))
    with pytest.raises(MachineError, match="'barrier' moves no data"):
        cut_bound("barrier", boxes(1, 4, 10, 0))
    gpus = tuple(Device(f"gpu{rank}", DeviceKind.GPU) for rank in range(2))
    with pytest.raises(MachineError, match="gpu0 -> gpu1 has no rate"):
        cut_bound("all_gather", Topology("x", gpus, (Link("gpu0", "gpu1", LinkKind.PCIE),)))
    with pytest.raises(MachineError, match="root: 8 is not a rank; write 0 to 7"):
        cut_bound("broadcast", boxes(1, 8, 10, 0), 8)
