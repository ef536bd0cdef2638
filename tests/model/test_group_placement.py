"""Where groups stand: in closed form as by listing every rank."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from ccbench.errors import UsageError
from ccbench.groups import ORDERS, Layout, parse_groups
from ccbench.model.group_systems import GroupPlacement, axis_placement, placement_of

AXES = ("tp", "cp", "dp", "pp", "ep", "edp", "dp-cp")
NODE_SIZES = (1, 2, 4, 6, 8)


@some.composite
def layouts(draw: some.DrawFn) -> Layout:
    sizes = {name: draw(some.sampled_from((1, 2, 3, 4, 8))) for name in ("tp", "cp", "dp", "pp")}
    order = draw(some.sampled_from((ORDERS["megatron"], "tp-pp-ep-dp-cp")))
    try:
        return Layout(order, ep=draw(some.sampled_from((1, 2))), **sizes)
    except UsageError:
        return Layout(order, **sizes)


@given(layouts(), some.sampled_from(AXES), some.sampled_from(NODE_SIZES))
def test_an_axis_stands_as_its_listed_groups_do(layout: Layout, axis: str, gpus_per_node: int) -> None:
    assume(layout.ranks <= gpus_per_node or layout.ranks % gpus_per_node == 0)
    try:
        found = axis_placement(layout, axis, gpus_per_node)
    except UsageError:
        assume(False)
    listed = placement_of(layout.groups(axis), gpus_per_node)
    assert listed is not None
    assert found.sets[0] == listed.sets[0]
    assert sorted(found.sets) == sorted(listed.sets)
    assert (found.ranks, found.nodes) == (listed.ranks, listed.nodes)


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ("tp", GroupPlacement(4, 4, 1, 2, ((0, 1, 2, 3), (4, 5, 6, 7)))),
        ("dp", GroupPlacement(4, 2, 2, 4, ((0, 4), (1, 5), (2, 6), (3, 7)))),
        ("pp", GroupPlacement(8192, 1, 8192, 8, tuple((gpu,) for gpu in range(8)))),
    ],
)
def test_the_placement_of_131072_ranks_is_a_few_numbers(axis: str, expected: GroupPlacement) -> None:
    assert axis_placement(Layout(tp=4, dp=4, pp=8192), axis, 8) == expected


def test_an_axis_that_nodes_cut_unevenly_is_refused() -> None:
    with pytest.raises(UsageError, match="unevenly"):
        axis_placement(Layout(tp=6, dp=4), "tp", 8)


@pytest.mark.parametrize("text", ["[[0, 1, 2], [3, 8, 9]]", "[[0, 1], [2, 8]]", "[[0, 8], [1, 2]]"])
def test_groups_that_do_not_stand_alike_have_no_placement(text: str) -> None:
    assert placement_of(parse_groups(text, 16), 8) is None


def test_numbers_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="product"):
        GroupPlacement(8, 4, 3)
    with pytest.raises(UsageError, match="GPU sets"):
        GroupPlacement(4, 2, 2, 2, gpu_sets=((0, 1),))
