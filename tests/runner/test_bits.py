"""Launches on inexact data, made in NumPy: every planted difference is named, and where there is none, none is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from ccbench.backends.endpoint import Endpoint, Result
from ccbench.cases.axes import Case, InexactData
from ccbench.cases.measurement import Rounding
from ccbench.collectives import collective
from ccbench.dtypes import numpy_dtype
from ccbench.inexact import INEXACT_PERIOD, INEXACT_SEED, Array, bits_of, inexact_values
from ccbench.runner.bits import (
    LAUNCHES,
    launch_inexact,
    over_rounds,
    rounding_of_ranks,
)
from ccbench.verification import part_of
from tests.backends.measuring import case_of

Ranks = Sequence[int]
Outcome = Callable[[int, int], Array]
"""(rank, number of the launch) -> what it leaves there."""


@dataclass
class NumpyEndpoint:
    """Drives all ranks; what launches leave comes from ``outcome``."""

    ranks: Sequence[int]
    outcome: Outcome
    done: list[str] = field(default_factory=list)
    number: int = -1

    def poison(self) -> None:
        self.done.append("poison")

    def refill(self, seed: int) -> None:
        assert seed >= INEXACT_SEED
        self.done.append("refill")

    def launch(self, number: int) -> None:
        self.done.append("launch")
        self.number = number

    def results(self) -> Iterator[Result]:
        for rank in self.ranks:
            yield Result(rank, self.outcome(rank, self.number))


def rounding(case: Case, outcome: Outcome) -> Rounding:
    """What is said of launches with this outcome."""
    members = [rank for group in case.members for rank in group]
    holders = [case.root] if case.collective == "reduce" else members
    endpoint = NumpyEndpoint(members, outcome)
    bits = launch_inexact(cast("Endpoint", endpoint), case, endpoint.launch)
    assert [rank.rank for rank in bits] == holders
    return rounding_of_ranks(case, reversed(bits))


def reducing(ranks: int, count: int, name: str = "all_reduce", **changes: Any) -> Case:
    return case_of("cpu", name, "default", ranks, count, inexact=InexactData(), **changes)


def summed(case: Case, rank: int, order: Ranks, name: str = "") -> Array:
    """The result of ``rank``, its group's parts added in the order of ``order``, in type ``name``."""
    part = part_of(case, rank)
    assert part is not None
    start = part.group_rank * case.count if collective(case.collective).blocked else 0
    kind = numpy_dtype(name or case.dtype)
    total, *addends = (
        inexact_values(part.case, peer, start, case.count).astype(kind) for peer in order
    )
    for addend in addends:
        total = total + addend
    rounded: Array = total.astype(numpy_dtype(case.dtype))
    return rounded


def turned(ranks: int, start: int) -> Ranks:
    return [*range(start, ranks), *range(start)]


def swapped(order: Ranks) -> Ranks:
    """Another order: the last of three or more comes first."""
    return [order[-1], *order[:-1]]


def flipped(values: Array, place: int, bit: int) -> Array:
    damaged: Array = values.copy()
    bits_of(damaged)[place] ^= bits_of(damaged).dtype.type(1 << bit)
    return damaged


SILENT = {
    "differing_over_launches": 0.0,
    "differing_over_ranks": 0.0,
    "first_difference": "",
}


def said(rounding: Rounding, **expected: Any) -> bool:
    """Whether the columns of SILENT are as they are there, but for those that are ``expected``."""
    return all(
        getattr(rounding, name) == value for name, value in {**SILENT, **expected}.items()
    )


# -- planted faults ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A random case, and the rank and order that a fault hits."""

    case: Case
    rank: int
    order: Ranks
    chance: random.Random

    def clean(self, rank: int, launch: int = 0) -> Array:
        """The result without a fault."""
        return summed(self.case, rank, self.order)


def trials(number: int, name: str, dtypes: Sequence[str]) -> Iterator[Trial]:
    chance = random.Random(f"{name} of bits")
    for trial in range(number):
        ranks = chance.randint(3, 8)
        # Mostly few elements, which is quicker; some results are longer than a period.
        count = chance.randint(64, 200) if trial % 50 else chance.randint(4_200, 9_000)
        case = reducing(ranks, count, dtype=chance.choice(dtypes))
        order = turned(ranks, chance.randrange(ranks))
        yield Trial(case, chance.randrange(ranks), order, chance)


DTYPES = ("float16", "bfloat16", "float32", "float64")
NUMBER = 10


def test_of_10_clean_results_none_is_said_to_differ() -> None:
    for trial in trials(NUMBER, "clean", DTYPES):
        result = rounding(trial.case, trial.clean)
        assert said(result), trial
        assert not result.differing_over_positions
        assert result.accumulation.startswith(f"{trial.case.dtype}, chain "), trial
        assert len(set(result.result_digests)) == 1
        assert result.largest_error_ulp is not None
        assert result.largest_error_ulp < 1e4


def test_of_10_ranks_that_add_in_another_order_every_one_is_named() -> None:
    for trial in trials(NUMBER, "another order", DTYPES):

        def outcome(rank: int, launch: int, trial: Trial = trial) -> Array:
            order = swapped(trial.order) if rank == trial.rank else trial.order
            return summed(trial.case, rank, order)

        result = rounding(trial.case, outcome)
        assert result.differing_over_ranks
        assert result.differing_over_launches == 0
        assert result.first_difference.startswith(f"rank {trial.rank}, unlike rank ")


def test_of_10_flipped_bits_every_one_is_named() -> None:
    for trial in trials(NUMBER, "flipped", DTYPES):
        count = trial.case.count
        place = trial.chance.randrange(count)
        bit = trial.chance.randrange(8 * numpy_dtype(trial.case.dtype).itemsize)
        number = trial.chance.randrange(1, LAUNCHES)

        def outcome(
            rank: int,
            launch: int,
            trial: Trial = trial,
            place: int = place,
            bit: int = bit,
            number: int = number,
        ) -> Array:
            right = trial.clean(rank)
            hit = (rank, launch) == (trial.rank, number)
            return flipped(right, place, bit) if hit else right

        result = rounding(trial.case, outcome)
        assert result.first_difference.startswith(
            f"rank {trial.rank}, launch {number + 1} of {LAUNCHES}: one bit ({bit}) of one element, at "
            f"place {place}: 0x"
        )
        assert said(
            result,
            differing_over_launches=1 / count,
            first_difference=result.first_difference,
        )


def test_of_10_races_every_one_is_named() -> None:
    for trial in trials(NUMBER, "race", DTYPES):

        def outcome(rank: int, launch: int, trial: Trial = trial) -> Array:
            late = launch % 2 and rank == trial.rank
            return summed(trial.case, rank, swapped(trial.order) if late else trial.order)

        result = rounding(trial.case, outcome)
        assert result.differing_over_launches
        assert result.differing_over_ranks == 0
        assert result.first_difference.startswith(
            f"rank {trial.rank}, launch 2 of {LAUNCHES}: "
        )
        assert "of one element" not in result.first_difference


# -- what differs within a message, beyond it, and between ranks ----------------------------------------------


def test_blocks_of_a_reduce_scatter_are_positions_of_one_message() -> None:
    case = reducing(4, 2_000, "reduce_scatter")
    alike = rounding(case, lambda rank, launch: summed(case, rank, range(4)))
    assert said(alike, differing_over_ranks=None)
    assert alike.differing_over_positions == 0
    assert alike.accumulation == "float32, chain 0+1+2+3"
    ring = rounding(case, lambda rank, launch: summed(case, rank, turned(4, rank)))
    assert said(ring, differing_over_ranks=None)
    assert ring.differing_over_positions
    assert ring.accumulation == "float32, chain, another one in each block"
    assert len(set(ring.result_digests)) == 4


def test_of_a_reduce_the_root_alone_has_bits() -> None:
    case = reducing(4, 300, "reduce", root=2)
    result = rounding(
        case, lambda rank, launch: summed(case, rank, range(4))[: 300 * (rank == 2)]
    )
    assert said(result, differing_over_ranks=None)
    assert len(result.result_digests) == 1
    assert result.accumulation == "float32, chain 0+1+2+3"


def test_what_is_no_number_is_infinitely_wrong() -> None:
    case = reducing(3, 300)

    def outcome(rank: int, launch: int) -> Array:
        right: Array = summed(case, rank, range(3)).copy()
        right[5] = np.nan
        return right

    result = rounding(case, outcome)
    assert result.largest_error_ulp == np.inf
    assert result.accumulation == "unknown"


def test_correctly_rounded_results_are_at_most_half_a_unit_off() -> None:
    case = reducing(5, 4_000)
    result = rounding(case, lambda rank, launch: summed(case, rank, range(5), "float64"))
    assert result.correctly_rounded_share == 1
    assert result.largest_error_ulp is not None
    assert 0.4 < result.largest_error_ulp <= 0.5
    assert result.relative_l2_error is not None
    assert 0 < result.relative_l2_error < 2**-24
    assert result.accumulation == "float64"
    plain = rounding(case, lambda rank, launch: summed(case, rank, range(5)))
    assert plain.correctly_rounded_share is not None
    assert 0.3 < plain.correctly_rounded_share < 0.95


# -- rounds --------------------------------------------------------------------------------------------------


def round_of(order: Ranks, damaged: bool = False) -> Rounding:
    case = reducing(3, 300)

    def outcome(rank: int, launch: int) -> Array:
        right = summed(case, rank, order)
        return flipped(right, 9, 2) if damaged and launch else right

    return rounding(case, outcome)


@pytest.mark.parametrize("fresh", [False, True])
def test_rounds_that_add_in_another_order_differ_whatever_follows(fresh: bool) -> None:
    both = over_rounds(round_of([0, 1, 2]), round_of([2, 0, 1]), fresh)
    share = both.differing_over_starts if fresh else both.differing_over_rounds
    assert share is not None
    assert 0.1 < share < 1
    assert both.first_difference.startswith("between rounds: ")
    # The first round is what all others are compared with.
    third = over_rounds(both, round_of([0, 1, 2]), fresh)
    assert (third.differing_over_starts if fresh else third.differing_over_rounds) == share
    assert third.first_difference == both.first_difference


def test_the_worst_of_all_rounds_stays() -> None:
    rounds = over_rounds(round_of([0, 1, 2], damaged=True), round_of([0, 1, 2]), False)
    assert rounds.differing_over_launches == 1 / 300
    assert rounds.first_difference.startswith("rank 0, launch 2 of 4: one bit (2)")
    assert rounds.differing_over_rounds == 0


def test_a_round_without_bits_changes_nothing() -> None:
    first = round_of([0, 1, 2])
    assert over_rounds(first, Rounding(), False) == first
    assert over_rounds(Rounding(), first, True) == first
    assert over_rounds(Rounding(), Rounding(), True) == Rounding()


def test_what_differs_beyond_the_first_period_is_noticed() -> None:
    case = reducing(3, 3 * INEXACT_PERIOD)

    def outcome(rank: int, launch: int) -> Array:
        right = summed(case, rank, range(3))
        return flipped(right, 2 * INEXACT_PERIOD + 7, 20) if rank == 1 else right

    result = rounding(case, outcome)
    assert result.differing_over_ranks == 1 / case.count
    assert result.first_difference == "rank 1, unlike rank 0: beyond the first period"
    assert result.differing_over_positions == 1 / (2 * INEXACT_PERIOD)
    assert result.largest_error_ulp is not None
    assert result.largest_error_ulp > 2**18, "the damaged element is judged, too"
