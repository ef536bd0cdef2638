"""What one cell or heading of a published table says: a size, a rate, a time, a collective, settings."""

from __future__ import annotations

import re

from ccbench.importing.readers.figures import GIBI, LARGEST_SIZE, Figure, figure
from ccbench.importing.readers.words import collective_name
from ccbench.units import parse_size

_MARKUP = re.compile(r"[`*_]{1,3}(?=\S)|(?<=\S)[`*]{1,3}|<br ?/?>|~")
_DIGIT = re.compile(r"[0-9]")
_QUANTITY = re.compile(
    r"([0-9][0-9,]{0,20}(?:\.[0-9]{1,12})?)[ \t]*([A-Za-zµμ/]{0,8})", re.ASCII | re.IGNORECASE
)
_UNIT_IN_HEADING = re.compile(r"[(\[]([A-Za-zµμ/]{1,8})[)\]]")
_RATE_UNIT_ANYWHERE = re.compile(r"\b([KMGT]i?(?:B/s|Bps|bps|b/s|bit/s))")
_SETTING = re.compile(r"\b((?:NCCL|RCCL|UCX|FI)_[A-Z0-9_]{2,60}) ?= ?([\w.:,^-]{1,100})")
_COLLECTIVE = re.compile(
    r"\b(all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?all|broadcast|bcast|"
    r"send[-_ ]?recv)(?![A-Za-z])",
    re.IGNORECASE,
)
_PAYLOAD = re.compile(
    r"(\d{1,6}(?:\.\d{1,3})? ?[KMGT]i?B)[ -]?payload|payload (?:size )?of (\d{1,6} ?[KMGT]i?B)\b"
)
_RANKS = re.compile(r"\b(\d{1,7}) ?(?:gpus?|ranks?|npus?)\b", re.IGNORECASE)
_NODES = re.compile(r"\b(\d{1,6}) ?nodes?\b", re.IGNORECASE)

_RATE_PREFIXES = {"K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
_TIME_UNITS = {
    "ns": 1e9,
    "us": 1e6,
    "µs": 1e6,
    "μs": 1e6,
    "usec": 1e6,
    "ms": 1e3,
    "msec": 1e3,
    "s": 1.0,
    "sec": 1.0,
}


def without_markup(cell: str) -> str:
    """The cell's text without bold, code and "about" signs."""
    return _MARKUP.sub("", cell).strip()


def _quantity(cell: str) -> tuple[str, str] | None:
    """(number, unit) where the cell is one quantity and nothing else."""
    match = _QUANTITY.fullmatch(without_markup(cell)) if _DIGIT.search(cell) else None
    return (match[1].replace(",", ""), match[2]) if match else None


def _rate_unit(unit: str) -> float | None:
    """1e9 bytes per second in one of a unit such as GB/s, GBps, GiB/s, Gb/s, Gbps; small b is a bit."""
    match = re.fullmatch(r"([KMGT])(i?)(B|b|bit)(?:/s|ps)", unit)
    if match is None:
        return None
    factor = _RATE_PREFIXES[match[1]]
    if match[2]:
        factor = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[match[1]] / 1e9
    return factor / (1 if match[3] == "B" else 8)


def rate(cell: str, heading: str) -> Figure | None:
    """A rate in 1e9 bytes per second; the unit stands in the cell or in the heading.

    Under a heading that says bandwidth and no unit it is GB/s, nccl-tests' unit.
    """
    quantity = _quantity(cell)
    if quantity is None:
        return None
    number, unit = quantity
    if not unit:
        named = _RATE_UNIT_ANYWHERE.search(heading)
        unit = named[1] if named else "GB/s" if re.search(r"bw\b|bandwidth", heading, re.IGNORECASE) else ""
    factor, found = _rate_unit(unit), figure(number)
    if factor is None or found is None:
        return None
    return found if factor == 1.0 else found.times(GIBI if factor == GIBI else factor)


def seconds(cell: str, heading: str) -> Figure | None:
    """A time in seconds; a number without a unit, in the cell or the heading, is none."""
    quantity = _quantity(cell)
    if quantity is None:
        return None
    number, unit = quantity
    named = _UNIT_IN_HEADING.search(heading)
    divisor = _TIME_UNITS.get(unit or (named[1] if named else ""))
    found = figure(number)
    return found.over(divisor) if found and divisor else None


def size(cell: str, heading: str) -> int | None:
    """Bytes of a payload such as 32KiB, 1 GB or, under a heading with the unit, 64; None where it is none."""
    quantity = _quantity(cell)
    if quantity is None:
        return None
    number, unit = quantity
    if not unit:
        named = _UNIT_IN_HEADING.search(heading)
        unit = named[1] if named else "B"
    try:
        found = parse_size(f"{number} {unit}")
    except ValueError:
        return None
    return found if found <= LARGEST_SIZE else None


def collective_in(text: str) -> str:
    """The one collective that ``text`` names, in ccbench's word; "" where it names none or several."""
    found = {collective_name(match) for match in _COLLECTIVE.findall(text)}
    return found.pop() if len(found) == 1 else ""


def payload_in(text: str) -> int | None:
    """The one payload that ``text`` speaks of, in bytes."""
    found = {size(first or second, "") for first, second in _PAYLOAD.findall(text)}
    return found.pop() if len(found) == 1 else None


def ranks_in(text: str, only: str = "") -> tuple[int | None, int | None]:
    """(ranks, nodes) where ``text`` names one number of each.

    only: a word that must stand before the number, for text that speaks of other things too.
    """
    if only:
        text = " ".join(re.findall(rf"\b{only} \d{{1,7}} ?\w{{1,12}}", text))
    ranks = {int(found) for found in _RANKS.findall(text)}
    nodes = {int(found) for found in _NODES.findall(text)}
    return (ranks.pop() if len(ranks) == 1 else None) or None, (
        nodes.pop() if len(nodes) == 1 else None
    ) or None


def settings_in(text: str) -> tuple[tuple[str, str], ...]:
    """Variables and values such as NCCL_NVLS_ENABLE=0, in the order they stand."""
    return tuple(dict(_SETTING.findall(text)).items())
