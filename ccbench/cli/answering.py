"""The answer of ``ccbench tune``: the fastest at each size in words, a table, and what a layer of a model pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from ccbench.dtypes import item_bytes
from ccbench.report.present import Table, aligned, columns, filled, values_of
from ccbench.units import format_seconds, format_size

if TYPE_CHECKING:
    from ccbench.analysis.serving import Fastest, Winners

IN_A_LAYER = 2
"""all_reduces of a layer with tensor parallelism: one ends the attention, one the MLP."""

PUBLISHED = "<times the best published"
SAMPLED = ("size", "<fastest", "p50", "p99 of samples", PUBLISHED)
ALONE = ("size", "<fastest", "time", PUBLISHED)
"""Where no time has samples enough for a p99: published and predicted ones have none."""

LAYERS = ("tokens", "size", "all_reduce", "layer", "<measured")
"""Titles of columns."""


def _sizes(winners: Iterable[Fastest], word: str) -> str:
    return word.join(dict.fromkeys(format_size(each.size_bytes) for each in winners))


def sentence(answer: Winners) -> str:
    """``A at 4 KiB to 256 KiB, then B at 1 MiB to 4 MiB; crossover between 256 KiB and 1 MiB``."""
    bands = [(name, [*band]) for name, band in groupby(answer.winners, lambda each: each.name)]
    words = [f"{name} at {_sizes((band[0], band[-1]), ' to ')}" for name, band in bands]
    changes = [
        _sizes(pair, " and ")
        for pair in pairwise(answer.winners)
        if pair[0].name != pair[1].name
    ]
    words = [", then ".join(words)]
    words += [f"crossover between {', '.join(changes)}"] if changes else []
    return "; ".join(
        [*words, *(["nothing to compare it with"] if not answer.contested else [])]
    )


def telling(answers: Iterable[Winners], hidden: int | None) -> list[Winners]:
    """Return ``answers`` without what ran alone, unless it was published or ``hidden`` asks for it."""
    return [
        each
        for each in answers
        if each.contested
        or any(size.published for size in each.winners)
        or (hidden and each.situation.collective == "all_reduce")
    ]


def answer_lines(
    answers: Sequence[Winners], hidden: int | None, tokens: Sequence[int]
) -> Iterator[str]:
    """Yield a sentence for each situation, then its row for each size, and one for each number of tokens."""
    for answer in answers:
        yield f"fastest {answer.situation.label}: {sentence(answer)}"
    for answer in answers:
        yield from ("", answer.situation.label)
        sampled = any(each.p99_seconds for each in answer.winners)
        yield from _table(
            SAMPLED if sampled else ALONE, (_row(each, sampled) for each in answer.winners)
        )
        if hidden and answer.situation.collective == "all_reduce":
            yield from _table(LAYERS, (layer_row(answer, hidden, count) for count in tokens))


def _table(titles: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    return (f"  {line}" for line in aligned(filled(Table(columns(*titles), [*rows]))))


def _row(each: Fastest, sampled: bool) -> tuple[str, ...]:
    best, beside = each.published, ""
    if best is not None:
        beside = (
            f"{each.times_published:.2f} ({best.point.backend_version}, {best.situation.mode})"
        )
    times = (each.p50_seconds, each.p99_seconds)[: 1 + sampled]
    seconds = [format_seconds(time) if time else "" for time in times]
    return format_size(each.size_bytes), each.name, *seconds, beside


def layer_row(answer: Winners, hidden: int, count: int) -> tuple[str, ...]:
    """Return the row of ``count`` tokens; without times where the size is outside of what was measured."""
    size = count * hidden * item_bytes(answer.situation.dtype)
    seconds, *ends = answer.at(size)
    words = str(count), format_size(size)
    if seconds is None:
        return *words, "", "", f"not: outside of {_sizes(ends, ' to ')}"
    times = map(format_seconds, (seconds, IN_A_LAYER * seconds))
    return *words, *times, ("between " if ends[0] != ends[1] else "") + _sizes(ends, " and ")


def layer_document(answer: Winners, hidden: int, count: int) -> dict[str, Any]:
    """Return what ``layer_row`` shows, as JSON; times are null where the size is outside of what was measured."""
    size = count * hidden * item_bytes(answer.situation.dtype)
    seconds = answer.at(size)[0]
    times = {"all_reduce_seconds": seconds, "layer_seconds": seconds and IN_A_LAYER * seconds}
    return {"tokens": count, "size_bytes": size, **times}


def answer_document(
    answers: Iterable[Winners], hidden: int | None, tokens: Sequence[int]
) -> list[dict[str, Any]]:
    """``answers`` as JSON: by situation a sentence and, by size, the winner with its times in seconds; layers, too."""
    names = ("size_bytes", "name", "p50_seconds", "p99_seconds", "times_published")
    return [
        {
            "situation": answer.situation.label,
            "text": sentence(answer),
            "winners": [values_of(each, *names) for each in answer.winners],
            "layers": [
                layer_document(answer, hidden, count)
                for count in tokens
                if hidden and answer.situation.collective == "all_reduce"
            ],
        }
        for answer in answers
    ]
