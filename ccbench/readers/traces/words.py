"""Names of collectives and element types in traces, and what else several readers understand alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.findings import SourceWarning
from ccbench.readers.benchmarks.words import DTYPES, LARGEST_SIZE, MOST_WARNINGS, whole
from ccbench.readers.traces.events import BARRIER, RECV, SEND

_VARIANT = re.compile(
    r"coalesced|base|into|tensor|single|oop|sparse|any_source|monitored|[^a-z]"
)
"""What PyTorch adds to the name of a collective for a variant of its call, not of what is sent."""

_COLLECTIVES = {
    **{name.replace("_", ""): name for name in COLLECTIVES},
    # Uneven or not is for the splits to say: PyTorch writes all_to_allv where a call could have had some.
    "alltoallv": "all_to_all",
    "allreducebarrier": BARRIER,
    "bcast": "broadcast",
    **{name: name for name in (SEND, RECV)},
    "isend": SEND,
    "irecv": RECV,
}


def collective_of(word: str) -> str:
    """ccbench's name of the collective that a trace calls ``word``; "" where it is none.

    >>> collective_of("nccl:_all_gather_base"), collective_of("c10d::allreduce_"), collective_of("wait")
    ('all_gather', 'all_reduce', '')
    """
    return _COLLECTIVES.get(_VARIANT.sub("", word[-100:].rpartition(":")[2].lower()), "")


_DTYPES = DTYPES | {
    **dict.fromkeys(("long", "long int"), "int64"),
    **dict.fromkeys(("byte", "unsigned char"), "uint8"),
    "signed char": "int8",
    "float8_e4m3fn": "float8_e4m3",
}
_OTHER_BYTES = {
    **dict.fromkeys(("bool", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("short", "short int", "uint16"), 2),
    **dict.fromkeys(("complexfloat", "complex<float>"), 8),
    **dict.fromkeys(("complexdouble", "complex<double>"), 16),
}
"""Bytes of element types that ccbench does not measure."""


def dtype_of(word: str) -> tuple[str, int | None]:
    """(ccbench's name of PyTorch's element type ``word``, else the word; bytes of one, None where not known).

    >>> dtype_of("Long"), dtype_of("c10::BFloat16"), dtype_of("Bool")
    (('int64', 8), ('bfloat16', 2), ('Bool', 1))
    """
    plain = word.strip().rpartition("::")[2].removeprefix("torch.").lower()
    name = _DTYPES.get(plain, "")
    return (name, ITEM_BYTES[name]) if name else (word.strip(), _OTHER_BYTES.get(plain))


def uneven(amounts: Sequence[int]) -> tuple[int, ...]:
    """``amounts``, () where all are the same: events keep splits where they are uneven."""
    return tuple(amounts) if len(set(amounts)) > 1 else ()


def buffers(collective: str, size_bytes: int, ranks: int) -> tuple[int | None, int | None]:
    """(input, output) in bytes of one rank, of the root where there is one, from nccl-tests' size.

    That is the largest buffer of a rank. Where ``ranks`` is 0, not known, the smaller one is None.
    """
    row = COLLECTIVES.get(collective)
    if row is None:
        return size_bytes, size_bytes
    # Two ranks have the same larger buffer as any number has.
    count = row.count_for(size_bytes, ranks or 2, 1)
    both = row.input_count(count, ranks or 2, 0, 0), row.output_count(count, ranks or 2, 0, 0)
    if ranks:
        return both
    return tuple(size_bytes if size == max(both) else None for size in both)  # type: ignore[return-value]


_RANK = re.compile(r"rank[_-]?([0-9]{1,7})(?![0-9])")
_LAST = re.compile(r"(?:^|(?<![0-9])[._-]|_(?=[0-9]+$))([0-9]{1,7})(?:\.[a-z]{1,8}){0,3}$")
_DUMP = re.compile(r"^nccl_trace_rank_(?:.*_)?([0-9]{1,7})(?:\.[a-z]{1,8}){0,3}$")
"""PyTorch puts the rank behind its prefix, in which jobs write the host: nccl_trace_rank_node00_1."""


def rank_named(place: str) -> int | None:
    """The rank in the name of a file (rank3.json.gz; or its end: et.3.json), or of its folder (rank_3/)."""
    folder, name = ["", *re.split(r"[/\\]|: ", place.lower())][-2:]
    patterns = (_DUMP, name), (_RANK, name), (_LAST, name), (_RANK, folder)
    match = next(filter(None, (pattern.search(part) for pattern, part in patterns)), None)
    return int(match[1]) if match else None


def rank_of_file(place: str, warnings: list[SourceWarning]) -> int | None:
    """The rank in the name of a file, for a trace that does not say whose it is: told in ``warnings``."""
    rank = rank_named(place)
    if rank is None:
        text = "does not say whose it is; end its name with the rank, such as rank3.json"
        warnings.append(SourceWarning("not_visible", text))
    else:
        warnings.append(SourceWarning("assumed", "its rank is taken from the file's name"))
    return rank


def told_damage(warnings: list[SourceWarning], kind: str, text: str, line: int) -> None:
    """Add a warning about one place of a file, of which there may be any number: MOST_WARNINGS are kept."""
    if len(warnings) < MOST_WARNINGS:
        warnings.append(SourceWarning(kind, text, line))
    elif len(warnings) == MOST_WARNINGS:
        warnings.append(SourceWarning(kind, "more warnings about this file are left out"))


# -- values that a file says --------------------------------------------------------------------------------


def text(value: object) -> str:
    """The text that a file says; "" for anything else."""
    return value if isinstance(value, str) else ""


def listed(value: object) -> list[Any]:
    """The list that a file says; [] for anything else."""
    return value if isinstance(value, list) else []


def members(value: object) -> dict[str, Any]:
    """The object that a file says; {} for anything else."""
    return value if isinstance(value, dict) else {}


def count(value: object) -> int | None:
    """The count that a file says, in figures or text; None for all but 0 to LARGEST_SIZE."""
    if isinstance(value, str):
        return whole(value)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= LARGEST_SIZE
    ):
        return None
    return int(value) if value == int(value) else None


def number(value: object) -> float | None:
    """The finite number that a file says, in figures or text; None for anything else."""
    try:
        figure = float(value) if isinstance(value, (int, float, str)) else float("nan")
    except (ValueError, OverflowError):
        return None
    return figure if abs(figure) < float("inf") else None


def figures(value: object) -> tuple[list[int], bool]:
    """(counts in a list, as text or not; whether some are cut out: PyTorch writes 30 and ... for the rest).

    [] where one of them is no count.
    """
    parts = value.strip("[] ").split(",") if isinstance(value, str) else listed(value)
    whole_list = [
        part for part in parts if not (isinstance(part, str) and part.strip() == "...")
    ]
    counts = [number for part in whole_list if (number := count(part)) is not None]
    return counts if len(counts) == len(whole_list) else [], len(whole_list) < len(parts)
