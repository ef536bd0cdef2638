"""Text to numbers and back at the edge: sizes, durations, fractions, rates.

Inside ccbench a size is an int in bytes, a time a float in seconds, a rate a float in bytes per second.
Sizes are binary (KiB = 1024 B) and so are the bare letters K, M, G, T, P, as in nccl-tests; kB, MB, GB
are decimal; rates are decimal (GB/s = 1e9 bytes per second).

Every error is a ValueError whose text says what was seen and what to write instead; the caller adds where.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from typing import Any

LONGEST_TEXT = 40
"""Characters a quantity may have; longer text is refused before any arithmetic."""

LONGEST_LABEL = 60

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_PREFIXES = "KMGTP"

SIZE_UNITS: dict[str, int] = {
    "B": 1,
    **{
        form: 1024 ** (power + 1)
        for power, p in enumerate(_PREFIXES)
        for form in (p, p.lower(), f"{p}iB")
    },
    **{f"{p}B": 1000 ** (power + 1) for power, p in enumerate(_PREFIXES)},
    "kB": 1000,
}
"""Bytes of each unit; spelling matters, since Mb would be megabits."""

DURATION_UNITS: dict[str, Fraction] = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
}
"""Seconds of each unit."""

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,2})?"
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)", re.ASCII)
_DURATION_PART = re.compile(rf"\s*({_NUMBER})\s*([a-zµμ]+)")
_FRACTION = re.compile(rf"({_NUMBER})\s*(%?)", re.ASCII)


def plain(text: object, longest: int = LONGEST_LABEL) -> str:
    """One line of printable characters, at most ``longest`` of them."""
    line = " ".join(str(text).split())
    line = "".join(character if character.isprintable() else REPLACEMENT for character in line)
    return line if len(line) <= longest else line[: longest - 1] + "…"


_CONTROL = {
    code: REPLACEMENT for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


def harmless(text: str) -> str:
    """``text`` without the characters that would steer a terminal; lines stay lines."""
    return text.translate(_CONTROL)


def shown(value: object) -> str:
    """``value`` as an error shows it: quoted, escaped, on one line, at most about 60 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, str) and len(value) > 57:
        return repr(value[:54]) + "..."
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_OTHER_NAMES = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "single": "float32",
    "fp64": "float64",
    "double": "float64",
    "fp8": "float8_e4m3",
    "e4m3": "float8_e4m3",
    "e5m2": "float8_e5m2",
    "int": "int32",
    "char": "int8",
    "average": "avg",
    "mean": "avg",
    "add": "sum",
    "maximum": "max",
    "minimum": "min",
    "product": "prod",
    "bcast": "broadcast",
    "p2p": "send_recv",
}
"""Name that other tools give a data type, an operation or a collective -> its name here."""


def lists_of(text: str, longest: int) -> list[list[Any]]:
    """The lists in the list that ``text`` is in JSON; [] where it is none, or longer than ``longest``."""
    lists: Any = None
    # Brackets nested deeply enough exhaust the parser's recursion.
    with suppress(ValueError, RecursionError):
        lists = json.loads(text) if len(text) <= longest else None
    sound = isinstance(lists, list) and all(isinstance(entry, list) for entry in lists)
    return lists if sound else []


def suggestion(word: object, names: Iterable[str]) -> str:
    """``did you mean 'ring'?`` or the whole list, for the end of an error."""
    names = tuple(names)
    plain = str(word)[:64].lower()
    near = [name for name in (_OTHER_NAMES.get(plain),) if name in names]
    near += difflib.get_close_matches(plain, names, n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(names)}"


def _text(value: object, kind: str, example: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not {kind}; write {example}")
    if len(value) > LONGEST_TEXT:
        raise ValueError(f"{shown(value)} is too long for {kind}; write {example}")
    return value.strip()


def parse_size(text: str | int) -> int:
    """A size in bytes: ``8``, ``'8 B'``, ``'1 MiB'``, ``'2M'`` (binary), ``'1 MB'`` (1,000,000).

    Raises ValueError for anything else, for negative sizes and for parts of a byte.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ValueError(f"{shown(text)} is negative; a size is 0 bytes or more")
        return text
    stripped = _text(text, "a size", "'1 MiB'")
    match = _SIZE.fullmatch(stripped)
    if match is None:
        raise ValueError(
            f"{shown(text)} is not a size; write a number and a unit, such as '1 MiB'"
        )
    number, unit = match.groups()
    if unit and unit not in SIZE_UNITS:
        by_folded = {
            unit.casefold(): unit for unit in SIZE_UNITS if len(unit) > 1 or unit == "B"
        }
        near = difflib.get_close_matches(unit.casefold(), by_folded, n=1, cutoff=0.5)
        likely = by_folded[near[0]] if near else "MiB"
        raise ValueError(f"{shown(text)} is not a size; write '{number} {likely}'")
    size = Fraction(number) * SIZE_UNITS[unit or "B"]
    if size.denominator != 1:
        raise ValueError(
            f"{shown(text)} is {float(size):g} bytes; write a whole number of bytes"
        )
    return int(size)


def parse_duration(text: str) -> float:
    """A time in seconds: ``'500 ms'``, ``'10m'``, ``'1h30m'``, ``'20 us'``; units from large to small.

    A bare number is refused because nobody can tell its unit. Raises ValueError.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        raise ValueError(f"{shown(text)} has no unit; write '{text} s' or '{text} ms'")
    stripped = _text(text, "a duration", "'500 ms'")
    if re.fullmatch(_NUMBER, stripped):
        raise ValueError(f"{stripped} has no unit; write '{stripped} s' or '{stripped} ms'")
    total, position, smallest = Fraction(0), 0, Fraction(10**9)
    while position < len(stripped):
        match = _DURATION_PART.match(stripped, position)
        unit = DURATION_UNITS.get(match[2].replace("μ", "µ")) if match else None
        if match is None or unit is None or unit >= smallest:
            break
        total, position, smallest = total + Fraction(match[1]) * unit, match.end(), unit
    if position < len(stripped) or not stripped:
        units = ", ".join(unit for unit in DURATION_UNITS if unit != "µs")
        raise ValueError(
            f"{shown(text)} is not a duration; write '500 ms' or '1h30m' (units: {units})"
        )
    return float(total)


def parse_fraction(text: str | float) -> float:
    """A fraction of one: ``'5%'`` and ``0.05`` are the same. Raises ValueError outside 0 to 1."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        fraction = text
    else:
        match = _FRACTION.fullmatch(_text(text, "a percentage", "'5%'"))
        if match is None:
            raise ValueError(f"{shown(text)} is not a percentage; write '5%' or 0.05")
        fraction = float(Fraction(match[1]) / (100 if match[2] else 1))
    if not 0 <= fraction <= 1:
        raise ValueError(f"{shown(text)} is not between 0 and 1; write '5%' or 0.05")
    return float(fraction)


def format_size(size_bytes: int) -> str:
    """Exact text in the largest unit that needs at most two decimals; parse_size reads it back.

    Decimal units serve where a binary one has more than four digits.

    >>> format_size(1536), format_size(1000), format_size(2**20), format_size(10**9)
    ('1.5 KiB', '1000 B', '1 MiB', '1 GB')
    """
    for power in range(len(_PREFIXES), 0, -1):
        value = Fraction(size_bytes, 1024**power)
        decimal = Fraction(size_bytes, 1000**power)
        if abs(decimal) >= 1 and decimal.denominator == 1 and size_bytes % 2**20 and power > 1:
            return f"{decimal} {_PREFIXES[power - 1]}B"
        if abs(value) >= 1 and (value * 100).denominator == 1:
            return f"{float(value):.2f}".rstrip("0").rstrip(".") + f" {_PREFIXES[power - 1]}iB"
    return f"{size_bytes} B"


SECONDS_UP_TO, HOURS_FROM = 600.0, 7200.0
"""Times of this many seconds and more are shown in minutes, and in hours."""


def _digits(value: float, digits: int = 4) -> str:
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_ratio(ratio: float) -> str:
    """Two significant digits and never an exponent: ``'1.3x'``, ``'260x'``, ``'0.04x'``."""
    return f"{_digits(float(f'{ratio:.2g}'))}x" if math.isfinite(ratio) else f"{ratio}x"


MANIFOLD = 9.0
"""Changes from here on are told as ratios."""


def format_change(change: float) -> str:
    """A ratio minus one: ``'+12.3%'``; from the tenfold on the ratio: ``'1300x'``."""
    return f"{change:+.1%}" if change < MANIFOLD else format_ratio(1 + change)


def percent(fraction: float) -> str:
    """A fraction as people read it: ``'87 %'``, ``'0.4 %'``, from ten on ``'26x'``."""
    if fraction > MANIFOLD:
        return format_ratio(fraction)
    value = 100 * fraction
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.1f} %"


def plural(count: int, noun: str) -> str:
    """``1 case``, ``2 cases``, ``3 switches``, ``4 processes``."""
    ending = "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{ending}"


def format_seconds(seconds: float) -> str:
    """Four significant digits in us, ms or s: ``'12.34 us'``; of ten minutes and more three: ``'10.1 h'``.

    Times below a nanosecond, such as bounds of a few bytes, are in ns.
    """
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if abs(seconds) >= SECONDS_UP_TO:
        hours = abs(seconds) >= HOURS_FROM
        return f"{_digits(seconds / (3600 if hours else 60), 3)} {'h' if hours else 'min'}"
    if 0 < abs(seconds) < 1e-9:
        return f"{_digits(seconds * 1e9, 2)} ns"
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        # 999.95 and more would round up to 1000 of the smaller unit.
        if abs(seconds) * factor < 999.95:
            return f"{_digits(seconds * factor)} {unit}"
    return f"{_digits(seconds)} s"


def format_rate(bytes_per_second: float) -> str:
    """A rate in GB/s (1e9 bytes per second) with four significant digits, always in that one unit."""
    gigabytes = bytes_per_second / 1e9
    return f"{_digits(gigabytes) if math.isfinite(gigabytes) else gigabytes} GB/s"
