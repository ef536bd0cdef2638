"""Steps and bytes of the schedules against the closed forms of the literature."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.schedules import ALGORITHMS, Algorithm, schedule_for
from ccbench.schedules.schedule import Advance, Schedule, phase, sent_pieces

POWERS = [2, 4, 8, 16, 32, 64]
OTHERS = [3, 5, 6, 7, 12, 13, 24, 33, 63]
PIECES = 4


def lg(ranks: int) -> int:
    return ceil(log2(ranks))


def floor_lg(ranks: int) -> int:
    return ranks.bit_length() - 1


def ring_share(ranks: int) -> float:
    return (ranks - 1) / ranks


# (collective, algorithm) -> steps and the most that one rank sends, as a multiple of the size n, for p
# ranks (and k = PIECES where there is a pipeline). Thakur et al. 2005, Rabenseifner 2004, Chan et al. 2007.
FOR_ANY_RANKS = {
    ("all_reduce", "ring"): (lambda p: 2 * (p - 1), lambda p: 2 * ring_share(p)),
    ("all_reduce", "one_shot"): (lambda p: 1, lambda p: p - 1),
    ("all_reduce", "two_shot"): (lambda p: 2, lambda p: 2 * ring_share(p)),
    ("all_gather", "ring"): (lambda p: p - 1, ring_share),
    ("all_gather", "bruck"): (lg, ring_share),
    ("all_gather", "direct"): (lambda p: 1, ring_share),
    ("reduce_scatter", "ring"): (lambda p: p - 1, ring_share),
    ("reduce_scatter", "pairwise"): (lambda p: p - 1, ring_share),
    ("reduce_scatter", "direct"): (lambda p: 1, ring_share),
    ("broadcast", "binomial"): (lg, lg),
    ("broadcast", "chain"): (lambda p: p - 2 + PIECES, lambda p: 1),
    ("broadcast", "scatter_all_gather"): (lambda p: lg(p) + p - 1, lambda p: 2 * ring_share(p)),
    ("reduce", "binomial"): (lg, lambda p: 1),
    ("reduce", "chain"): (lambda p: p - 2 + PIECES, lambda p: 1),
    ("reduce", "direct"): (lambda p: 2, lambda p: 1),
    ("all_to_all", "pairwise"): (lambda p: p - 1, ring_share),
    ("all_to_all", "direct"): (lambda p: 1, ring_share),
    ("all_to_all", "bruck"): (lg, lambda p: sum(bin(i).count("1") for i in range(p)) / p),
    ("all_to_all_v", "pairwise"): (lambda p: p - 1, ring_share),
    ("all_to_all_v", "direct"): (lambda p: 1, ring_share),
    ("gather", "linear"): (lambda p: p - 1, lambda p: 1 / p),
    ("gather", "direct"): (lambda p: 1, lambda p: 1 / p),
    ("gather", "binomial"): (lg, lambda p: max(2 ** (lg(p) - 2), p - 2 ** (lg(p) - 1)) / p),
    ("scatter", "binomial"): (lg, ring_share),
    ("scatter", "linear"): (lambda p: p - 1, ring_share),
    ("scatter", "direct"): (lambda p: 1, ring_share),
    ("send_recv", "shift"): (lambda p: 1, lambda p: 1),
    ("barrier", "dissemination"): (lg, lg),
}

# A step to fold the other ranks into the power of two below, and (where guests want the result) one back:
# then follow the additional steps and the limits (low, high) of what one rank sends more than the core's.
FOR_POWERS = {
    ("all_reduce", "recursive_doubling"): (lg, lg, 2, (1, 1)),
    ("all_reduce", "halving_doubling"): (
        lambda p: 2 * lg(p),
        lambda p: 2 * ring_share(p),
        2,
        (1, 1),
    ),
    ("all_gather", "recursive_doubling"): (lg, ring_share, 2, (0.5, 1.5)),
    ("reduce_scatter", "recursive_halving"): (lg, ring_share, 2, (0, 0.5)),
    ("reduce", "reduce_scatter_gather"): (
        lambda p: 2 * lg(p),
        lambda p: ring_share(p) + 0.5,
        1,
        (0, 0),
    ),
}

ANY = [pytest.param(*key, *forms, id="-".join(key)) for key, forms in FOR_ANY_RANKS.items()]
POWER = [pytest.param(*key, *forms, id="-".join(key)) for key, forms in FOR_POWERS.items()]


def busiest_share(schedule: Schedule) -> float:
    """What the busiest sender sends in all, as a multiple of the size n of the case."""
    return float(sent_pieces(schedule).max()) / schedule.pieces


def built(collective: str, algorithm: str, ranks: int) -> Schedule:
    parameter = PIECES if algorithm == "chain" else None
    return schedule_for(collective, algorithm, ranks, parameter=parameter, prove=False)


@pytest.mark.parametrize(("collective", "algorithm", "steps", "share"), ANY)
def test_steps_and_bytes_are_those_of_the_closed_forms(
    collective: str,
    algorithm: str,
    steps: Callable[[int], int],
    share: Callable[[int], float],
) -> None:
    for ranks in POWERS + OTHERS:
        schedule = built(collective, algorithm, ranks)
        assert schedule.steps == steps(ranks), ranks
        assert busiest_share(schedule) == pytest.approx(share(ranks)), ranks


@pytest.mark.parametrize(
    ("collective", "algorithm", "steps", "share", "folding", "more"), POWER
)
def test_halving_and_doubling_reach_the_closed_forms_for_powers_of_two(  # type: ignore[no-untyped-def]  # as above
    collective, algorithm, steps, share, folding, more
) -> None:
    for ranks in POWERS:
        schedule = built(collective, algorithm, ranks)
        assert schedule.steps == steps(ranks), ranks
        assert busiest_share(schedule) == pytest.approx(share(ranks)), ranks
    for ranks in OTHERS:
        core = 2 ** floor_lg(ranks)
        schedule = built(collective, algorithm, ranks)
        assert schedule.steps == steps(core) + folding, ranks
        additional = busiest_share(schedule) - share(core)
        assert more[0] - 1e-9 <= additional <= more[1] + 1e-9, ranks


@pytest.mark.parametrize(
    ("ranks", "group"), [(8, 2), (8, 4), (12, 3), (12, 4), (15, 5), (9, 1), (9, 9)]
)
def test_hierarchical_sends_its_share_across_only(ranks: int, group: int) -> None:
    schedule = schedule_for("all_reduce", "hierarchical", ranks, parameter=group)
    groups = ranks // group
    inside, across = 2 * ring_share(group), 2 / group * ring_share(groups)
    assert schedule.steps == 2 * (group - 1) + 2 * (groups - 1)
    assert sent_pieces(schedule) / ranks == pytest.approx(inside + across)
    crossing = np.zeros(ranks)
    for step in schedule.expanded():
        crosses = step.source // group != step.target // group
        np.add.at(crossing, step.source, step.phase.width * crosses)
    assert crossing / ranks == pytest.approx(across)


def test_every_algorithm_has_a_closed_form_under_test() -> None:
    others = {
        ("all_reduce", name) for name in ("binary_tree", "double_binary_tree", "hierarchical")
    }
    others |= {("broadcast", "direct")}
    assert {(row.collective, row.name) for row in ALGORITHMS} == set(FOR_ANY_RANKS) | set(
        FOR_POWERS
    ) | others


def counted(schedule: Schedule) -> list[int]:
    """Sent pieces, counted flow by flow."""
    sent = [0] * schedule.ranks
    for step in schedule.expanded():
        for flow in range(step.phase.flows):
            if step.source[flow] != step.target[flow]:
                sent[step.source[flow]] += int(step.phase.width[flow])
    return sent


@given(row=st.sampled_from(ALGORITHMS), ranks=st.integers(1, 14), drawn=st.data())
def test_counting_in_closed_form_agrees_with_counting_flow_by_flow(
    row: Algorithm, ranks: int, drawn: st.DataObject
) -> None:
    root = drawn.draw(st.integers(0, ranks - 1))
    schedule = schedule_for(
        row.collective, row.name, ranks, root, size_bytes=drawn.draw(st.integers(0, 1 << 22))
    )
    assert sent_pieces(schedule).tolist() == counted(schedule)


@given(
    ranks=st.integers(1, 12),
    ends=st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(1, 4)),
        min_size=1,
        max_size=5,
    ),
    repeat=st.integers(1, 30),
    moves=st.tuples(st.integers(-13, 13), st.integers(-13, 13)),
)
def test_any_advance_of_ranks_is_counted_right(
    ranks: int, ends: list[tuple[int, int, int]], repeat: int, moves: tuple[int, int]
) -> None:
    source, target, width = zip(*ends, strict=True)
    only = phase(
        np.array(source) % ranks,
        np.array(target) % ranks,
        0,
        width=width,
        repeat=repeat,
        advance=Advance(*moves),
    )
    schedule = Schedule("all_reduce", "made_up", ranks, 4, 4, (only,))
    assert sent_pieces(schedule).tolist() == counted(schedule)
