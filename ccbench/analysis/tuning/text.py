"""Advice as lines for a screen and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ccbench.analysis.tuning.advice import Advice, Band, Gain, Rules
from ccbench.analysis.tuning.timings import SETTINGS_OF_LIBRARIES, SIZE_NOT_STATED, Choice
from ccbench.tables import Table, aligned, columns
from ccbench.units import format_change, format_size, plain, plural

DOCUMENT_VERSION = 1
"""Of the JSON document; it changes when a key is dropped or means another thing."""


def advice_lines(advice: Iterable[Advice], rules: Rules | None = None) -> list[str]:
    """Per situation in which choices were compared a line, then a line per band; else a remark."""
    advice, rules = tuple(advice), rules or Rules()
    lines: list[str] = []
    advised = 0
    compared = [one for one in advice if one.compared]
    for one in compared:
        lines.append(plain(one.situation.label, 400) + (" (SIMULATED)" if one.simulated else ""))
        rows = [_row(band) for band in one.bands]
        advised += sum(band.choice is not None for band in one.bands)
        lines += [f"  {line}" for line in aligned(Table(columns("<", "<", "<"), rows))[1:]]
        if one.flags:
            lines.append(f"  flagged while measured: {', '.join(one.flags)}")
    if not lines:
        return ["nothing to compare: no case on two ranks or more was measured with two choices at one size"]
    if any(band.without_interval and band.choice for one in compared for band in one.bands):
        lines.append(
            "without interval (printed averages, too few samples): gains from "
            f"{rules.minimum_printed_gain:.0%} on are told, as hints; measure more to be certain"
        )
    lines.append(f"{plural(advised, 'band')} with advice; nothing is said of sizes that were not measured")
    return lines


def _row(band: Band) -> tuple[str, str, str]:
    if band.choice is None:
        return _sizes(band), "as it is", plain(band.why, 400)
    instead = f"instead of {band.rivals[0].label if len(band.rivals) == 1 else 'several'}"
    words = [instead, gain_text(band.smallest_gain)]
    if band.largest_gain is not None and band.largest_gain != band.smallest_gain:
        words[-1] += f" to {format_change(band.largest_gain.median)}"
    if band.bridged_bytes:
        words.append(f"at {len(band.bridged_bytes)} sizes not told apart")
    if band.without_interval:
        words.append("without interval")
    return _sizes(band), plain(band.choice.label), plain(", ".join(words), 400)


def _sizes(band: Band) -> str:
    if band.low_bytes == SIZE_NOT_STATED and band.high_bytes == SIZE_NOT_STATED:
        return "size not stated"
    low = "size not stated" if band.low_bytes == SIZE_NOT_STATED else format_size(band.low_bytes)
    return low if band.low_bytes == band.high_bytes else f"{low} - {format_size(band.high_bytes)}"


def gain_text(gain: Gain | None) -> str:
    """``+12.3% (+10.1% to +14.0%)``: median and interval of the gain in speed."""
    if gain is None:
        return ""
    text = format_change(gain.median)
    if gain.low is not None and gain.high is not None:
        text += f" ({format_change(gain.low)} to {format_change(gain.high)})"
    return text


def advice_document(advice: Sequence[Advice], rules: Rules | None = None) -> dict[str, Any]:
    """``advice`` as JSON: sizes in bytes, gains as fractions (time of the rival over the choice's, minus
    one).

    A size is null where a source does not state it.
    """
    rules = rules or Rules()
    return {
        "version": DOCUMENT_VERSION,
        "minimum_gain": rules.minimum_gain,
        "minimum_printed_gain": rules.minimum_printed_gain,
        "confidence": rules.confidence,
        "situations": [_situation(one) for one in advice],
    }


def _situation(one: Advice) -> dict[str, Any]:
    where = one.situation
    return {
        "collective": where.collective,
        "ranks": where.ranks,
        "nodes": where.nodes or None,
        "dtype": where.dtype,
        "op": where.op,
        "in_place": where.in_place,
        "mode": where.mode,
        "machine": where.place,
        "work": where.work,
        "simulated": one.simulated,
        "flags": list(one.flags),
        "bands": [_band(band) for band in one.bands],
    }


def _band(band: Band) -> dict[str, Any]:
    return {
        "low_bytes": _size(band.low_bytes),
        "high_bytes": _size(band.high_bytes),
        "sizes_bytes": [_size(size) for size in band.sizes_bytes],
        "choice": _choice(band.choice),
        "instead_of": _choice(band.rivals[0] if len(band.rivals) == 1 else None),
        "smallest_gain": band.smallest_gain and asdict(band.smallest_gain),
        "largest_gain": band.largest_gain and asdict(band.largest_gain),
        "bridged_bytes": list(band.bridged_bytes),
        "without_interval": band.without_interval,
        "reason": band.why,
    }


def _size(size_bytes: int) -> int | None:
    return None if size_bytes == SIZE_NOT_STATED else size_bytes


def _choice(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {
        "backend": choice.backend,
        "algorithm": choice.algorithm,
        "protocol": choice.protocol,
        "channels": choice.channels,
        **{axis.name: one for axis, one in zip(SETTINGS_OF_LIBRARIES, choice.settings, strict=True)},
        "variant": choice.variant,
        "label": choice.label,
    }
