"""Blocks of an all_to_all_v as libraries ask for them: how long each one is and where it begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from ccbench.cases import Case
from ccbench.collectives import sent_elements


@dataclass(frozen=True)
class Blocks:
    """Lengths and beginnings of the blocks of one buffer, in rank order, one after the other."""

    counts: tuple[int, ...]
    offsets: tuple[int, ...]

    def times(self, factor: int) -> Blocks:
        """The same in smaller units: elements as bytes."""
        return Blocks(tuple(one * factor for one in self.counts), tuple(one * factor for one in self.offsets))


def one_after_the_other(counts: Iterable[int]) -> Blocks:
    """Blocks of these lengths without gaps."""
    lengths = tuple(counts)
    return Blocks(lengths, tuple(accumulate(lengths, initial=0))[:-1])


def sent_blocks(case: Case, seat: int) -> Blocks:
    """Of the input of rank ``seat``, in elements: one for each target. case: as one group sees it."""
    return one_after_the_other(sent_elements(case.traffic, case.count, case.ranks)[seat].tolist())


def received_blocks(case: Case, seat: int) -> Blocks:
    """Of the output of rank ``seat``, in elements: one from each source."""
    return one_after_the_other(sent_elements(case.traffic, case.count, case.ranks)[:, seat].tolist())
