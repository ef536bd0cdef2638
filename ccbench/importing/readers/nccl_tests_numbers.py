"""Figures as nccl-tests prints them: their value, and half a unit of their last digit."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{2,3})?")
_WHOLE = re.compile(r"\d{1,20}|\d[\d_]{1,26}\d|\d{1,3}(?:,\d{3}){1,6}")
_ABSENT = re.compile(r"n/?a|-?nan|-?inf(?:inity)?|null|none|-{1,3}", re.IGNORECASE)
_GLUED_RATES = re.compile(r"\d{1,9}\.\d{2}")

LARGEST_SIZE = 1 << 63
"""Bytes; a number this large is no size (nccl-tests holds sizes in 64 bits)."""


def whole(token: str) -> int | None:
    """A size or count: ``1048576``, ``17_179_869_184``, ``1048_576``, ``1,024``; None for anything else."""
    if _WHOLE.fullmatch(token) is None:
        return None
    value = int(token.replace("_", "").replace(",", ""))
    return value if value < LARGEST_SIZE else None


def is_figure(token: str) -> bool:
    """Whether ``token`` can stand in a measured column: a number, or a word for none."""
    return _NUMBER.fullmatch(token) is not None or _ABSENT.fullmatch(token) is not None


def is_measured(token: str) -> bool:
    """Whether ``token`` can be a time, a rate or a count: a figure that is not below zero."""
    return is_figure(token) and not (token[:1] == "-" and token[1:2].isdigit())


def figure(token: str) -> float | None:
    """The number, or None for N/A, nan, inf and the like."""
    if _NUMBER.fullmatch(token) is None:
        return None
    value = float(token)
    return value if value < float("inf") else None


def half_unit(token: str) -> float | None:
    """Half a unit of the last printed digit: 0.005 for ``36.50``, 5000 for ``1.2e+05``."""
    if _NUMBER.fullmatch(token) is None:
        return None
    mantissa, _, exponent = token.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * float(f"1e{int(exponent or 0) - decimals}")


def unglued(tokens: list[str], item_bytes: dict[str, int]) -> list[str]:
    """``tokens`` with columns that ran together taken apart.

    A figure with two points is cut after every second decimal. A first word of more than 12 digits, which
    the type follows directly, is cut where count x item = size, or a whole multiple of it, allows; the
    smallest multiple wins.
    """
    taken: list[str] = []
    for token in tokens:
        pieces = _GLUED_RATES.findall(token) if token.count(".") > 1 else []
        taken += pieces if "".join(pieces) == token else [token]
    if (
        len(taken) > 1
        and 12 < len(taken[0]) <= 40
        and taken[0].isdecimal()
        and taken[1].lower() in item_bytes
    ):
        taken[:1] = _size_and_count(taken[0], item_bytes[taken[1].lower()]) or taken[:1]
    return taken


def _size_and_count(digits: str, item_bytes: int) -> list[str] | None:
    best: tuple[int, list[str]] | None = None
    for cut in range(1, len(digits)):
        size, count = int(digits[:cut]), int(digits[cut:])
        if digits[cut] == "0" or size % (count * item_bytes):
            continue
        multiple = size // (count * item_bytes)
        if multiple and (best is None or multiple < best[0]):
            best = multiple, [digits[:cut], digits[cut:]]
    return best[1] if best else None
