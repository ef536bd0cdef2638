"""Bits of results: launches on inexact data, and what they say of order and type of the additions.

After the timed launches of a case that asks for it, its ranks launch a few more on data whose sums are rounded
(``ccbench.inexact``). Every rank compares the bits of these launches with each other and those of places that hold
the same numbers; the leader compares ranks, measures errors, and looks for the additions that explain the bits.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.endpoint import Endpoint, Result
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Rounding
from ccbench.collectives import collective
from ccbench.columns import merge
from ccbench.dtypes import numpy_dtype
from ccbench.inexact import (
    INEXACT_PERIOD,
    INEXACT_SEED,
    Array,
    bits_of,
    errors_in_ulp,
    exact_results,
    is_inexact,
    looked_at,
)
from ccbench.runner.accumulation import FEWEST_ELEMENTS, UNKNOWN, accumulation_of
from ccbench.verification import part_of

LAUNCHES = 4
LARGE_LAUNCHES = 2
LARGE_BYTES = 1 << 20
"""From here on filling and launching cost more than a small case takes in all."""


@dataclass(frozen=True, eq=False)
class RankBits:
    """Bits of one rank's result of a case.

    group: of the rank. bits: of the first element with each of ``places`` of the period, in their order. digest:
    of all bits that were looked at. over_launches, over_positions: shares of elements that differ, the latter
    None where no place is there twice. largest_error: in ulp, of all elements that were looked at.
    """

    rank: int
    group: int
    places: NDArray[np.int64]
    bits: Array
    digest: str
    over_launches: float
    over_positions: float | None
    largest_error: float
    first_difference: str = ""


def launch_inexact(
    endpoint: Endpoint, case: Case, launch: Callable[[int], None]
) -> tuple[RankBits, ...]:
    """Launch on inexact data and return the bits of the ranks that this process drives; () without such data.

    launch: makes the launch of that number.
    """
    if case.inexact is None or not is_inexact(case):
        return ()
    launches = LAUNCHES if case.size_bytes <= LARGE_BYTES else LARGE_LAUNCHES
    first: dict[int, RankBits] = {}
    values: dict[int, Array] = {}
    for number in range(launches):
        # What the last launch left must not pass for what this one did.
        endpoint.poison()
        if not number or case.in_place:
            endpoint.refill(INEXACT_SEED)
        launch(number)
        for result in endpoint.results():
            if not len(result.values):  # of who is not the root
                continue
            sample = result.values[looked_at(len(result.values))]
            if not number:
                values[result.rank] = sample
                first[result.rank] = _first_bits(case, result, sample)
                continue
            kept = first[result.rank]
            share, where = _difference(bits_of(values[result.rank]), bits_of(sample))
            if share > kept.over_launches:
                text = f"rank {kept.rank}, launch {number + 1} of {launches}: {where}"
                first[result.rank] = replace(
                    kept,
                    over_launches=share,
                    first_difference=kept.first_difference or text,
                )
    return tuple(first.values())


def _first_bits(case: Case, result: Result, sample: Array) -> RankBits:
    """Return what the first launch left on a rank; sample: the elements of it that are looked at."""
    part = part_of(case, result.rank)
    assert part is not None, "it has a result"
    assert case.inexact is not None, "it was filled with such data"
    row = collective(case.collective)
    root = max(part.case.root, 0)
    _, block = row.origins(part.group_rank, 0, part.case.ranks, root)[0]
    places = (block * case.count + looked_at(len(result.values))) % INEXACT_PERIOD
    # Written backwards, so that the first element of each place stays.
    firsts = np.full(INEXACT_PERIOD, -1)
    firsts[places[::-1]] = np.arange(len(places))[::-1]
    held = np.flatnonzero(firsts >= 0)
    bits = bits_of(sample)
    differs = bits != bits[firsts[places]]
    # Elements with the bits of the first one have its error, too.
    judged = np.union1d(firsts[held], np.flatnonzero(differs))
    exact = exact_results(case.inexact, case.dtype, case.op, part.case.ranks)
    errors = errors_in_ulp(sample[judged], exact[places[judged]], case.dtype)
    again = len(places) - len(held)
    return RankBits(
        result.rank,
        part.group,
        held,
        bits[firsts[held]],
        hashlib.blake2b(bits.tobytes(), digest_size=8).hexdigest(),
        0.0,
        # A share of few says little.
        np.count_nonzero(differs) / again if again >= FEWEST_ELEMENTS else None,
        float(errors.max()),
    )


def _difference(before: Array, now: Array) -> tuple[float, str]:
    """Return the share of elements whose bits differ, and in words where they do first."""
    differing = np.flatnonzero(before != now)
    if not len(differing):
        return 0.0, ""
    place = differing[0]
    old, new = int(before[place]), int(now[place])
    what = f"{len(differing)} of {len(before)} elements, first at place {place}"
    if len(differing) == 1 and (old ^ new).bit_count() == 1:
        what = f"one bit ({(old ^ new).bit_length() - 1}) of one element, at place {place}"
    return len(differing) / len(before), f"{what}: 0x{new:x}, was 0x{old:x}"


def rounding_of_ranks(case: Case, ranks: Iterable[RankBits]) -> Rounding:
    """Return what the bits of all ranks of ``case`` say; nothing known where there are none."""
    in_order = sorted(ranks, key=lambda rank: rank.rank)
    if not in_order or case.inexact is None:
        return Rounding()
    exact = exact_results(case.inexact, case.dtype, case.op, case.group_ranks)
    places = np.concatenate([rank.places for rank in in_order])
    bits = np.concatenate([rank.bits for rank in in_order])
    values = bits.view(numpy_dtype(case.dtype))
    right = exact[places]
    errors = errors_in_ulp(values, right, case.dtype)
    norm = float(np.linalg.norm(right))
    # Of several ranks that hold a place the lowest counts.
    held, firsts = np.unique(places, return_index=True)
    shares = [rank.over_positions for rank in in_order if rank.over_positions is not None]
    if case.collective == "reduce_scatter" and len(places) >= len(held) + FEWEST_ELEMENTS:
        # Blocks are parts of one message: the same place of the period in two of them is at two positions.
        first_bits = bits[firsts][np.searchsorted(held, places)]
        shares.append(np.count_nonzero(bits != first_bits) / (len(places) - len(held)))
    over_ranks, where = _over_ranks(case, in_order)
    texts = [rank.first_difference for rank in in_order if rank.first_difference]
    return Rounding(
        inexact_data=str(case.inexact),
        correctly_rounded_share=float(np.mean(errors <= 0.5)),
        median_error_ulp=float(np.median(errors)),
        largest_error_ulp=max(rank.largest_error for rank in in_order),
        relative_l2_error=(
            float(np.linalg.norm(values.astype(np.float64) - right)) / norm if norm else None
        ),
        accumulation=accumulation_of_ranks(case, in_order, held, bits[firsts]),
        differing_over_launches=max(rank.over_launches for rank in in_order),
        differing_over_ranks=over_ranks,
        differing_over_positions=max(shares, default=None),
        first_difference=next(iter([*texts, where]), ""),
        result_digests=tuple(rank.digest for rank in in_order),
        result_bits=tuple(bits[firsts].astype(np.int64).tolist()),
    )


def accumulation_of_ranks(
    case: Case, in_order: Sequence[RankBits], held: NDArray[np.int64], bits: Array
) -> str:
    """Return what explains ``bits`` at the places ``held``, and ranks whose own are added in another type."""
    first = accumulation_of(case, held, bits)
    texts = [first]
    for rank in in_order if len({rank.digest for rank in in_order}) > 1 else ():
        own = accumulation_of(case, rank.places, rank.bits)
        if own and own != UNKNOWN and own.split(",")[0] != first.split(",")[0]:
            texts.append(f"rank {rank.rank}: {own}")
    return "; ".join(texts)


def _over_ranks(case: Case, in_order: Sequence[RankBits]) -> tuple[float | None, str]:
    """Return the largest share by which a rank differs from most of its group, and which rank in words."""
    # Elsewhere no two ranks hold the same elements.
    if case.collective != "all_reduce":
        return None, ""
    worst, text = 0.0, ""
    for group in dict.fromkeys(rank.group for rank in in_order):
        members = [rank for rank in in_order if rank.group == group]
        # Who is alone is the odd one, whichever rank it is.
        usual, _ = Counter(rank.digest for rank in members).most_common(1)[0]
        usual_rank = next(rank for rank in members if rank.digest == usual)
        for rank in members:
            if rank.digest == usual:
                continue
            share, where = _difference(usual_rank.bits, rank.bits)
            # What differs may be beyond the first period.
            share = max(share, 1 / looked_at(case.count).size)
            if share > worst:
                worst = share
                where = where or "beyond the first period"
                text = f"rank {rank.rank}, unlike rank {usual_rank.rank}: {where}"
    return worst, text


def over_rounds(before: Rounding, now: Rounding, fresh_ranks: bool) -> Rounding:
    """Return what two rounds of a case say together. fresh_ranks: each has ranks started for it."""
    if not before.result_digests or not now.result_digests:
        return now if now.result_digests else before
    share, where = 0.0, ""
    if before.result_digests != now.result_digests:
        share, where = _difference(
            *(
                np.array(rounding.result_bits, np.int64).view(np.uint64)
                for rounding in (before, now)
            )
        )
        # What differs may be beyond the first period.
        share = max(share, 1 / len(before.result_bits))
        where = f"between rounds: {where or 'beyond the first period'}"
    both = merge(before, now, {})
    both = replace(both, first_difference=both.first_difference or where)
    if fresh_ranks:
        return replace(
            both, differing_over_starts=max(share, both.differing_over_starts or 0.0)
        )
    return replace(both, differing_over_rounds=max(share, both.differing_over_rounds or 0.0))
