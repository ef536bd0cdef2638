"""Gate files: a machine's predicted intervals per collective and size, for tools that read YAML.

``ccbench predict --gate-file`` writes them. Whoever edits one may: reading is strict, and every mistake says
file, line, what is there and what belongs there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationError

from ccbench.collectives import COLLECTIVES
from ccbench.documents import MOST_BYTES, FileKind, open_file, read_document, yaml_text
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import UsageError
from ccbench.results.files import write_atomically
from ccbench.results.schema import BYTES_PER_GIGABYTE
from ccbench.suite.model import StrictModel, first_error
from ccbench.suite.readers import MisfitError, whole_number
from ccbench.units import plural, shown

FORM = "ccbench-gates 1"
"""Of the key ``format``; its number changes when a key is dropped or means another thing."""

GATES = FileKind("gate file", f"'format: {FORM}' and 'gates:'", raises=UsageError)

EDGES = {"low_80": "high_80", "high_80": "low_80", "low_95": "high_95", "high_95": "low_95"}
"""End of a bandwidth's interval -> the end of the time's that gives it."""

LARGEST = 2**62

AGREES = 0.01
"""Relative difference between a bandwidth and its time; those written have six digits."""


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise MisfitError(f"{shown(value)} is not a number above 0; write one")
    return float(value)


def _name(names: Sequence[str]) -> PlainValidator:
    def read(value: Any) -> Any:
        if value not in names:
            raise MisfitError(f"{shown(value)} is none of {', '.join(names)}; write one")
        return value

    return PlainValidator(read)


Number = Annotated[float, PlainValidator(_positive)]
Whole = Annotated[
    int, PlainValidator(lambda value: whole_number(value, 1, LARGEST, "whole number"))
]
Rate = Annotated[
    float | None, PlainValidator(lambda value: None if value is None else _positive(value))
]


class GatePoint(StrictModel):
    """Interval of one collective at one size; bandwidths are null where no bus is used."""

    collective: Annotated[str, _name(tuple(COLLECTIVES))]
    size_bytes: Whole
    predicted_seconds: Number
    low_80_seconds: Number
    high_80_seconds: Number
    low_95_seconds: Number
    high_95_seconds: Number
    predicted_busbw: Rate = Field(alias="predicted_busbw_GB_s")
    low_80_busbw: Rate = Field(alias="low_80_busbw_GB_s")
    high_80_busbw: Rate = Field(alias="high_80_busbw_GB_s")
    low_95_busbw: Rate = Field(alias="low_95_busbw_GB_s")
    high_95_busbw: Rate = Field(alias="high_95_busbw_GB_s")

    def contradiction(self, ranks: int) -> tuple[str, str] | None:
        """Key and message of the first value that does not go with the others; None where all do."""
        order = ("low_95", "low_80", "high_80", "high_95")
        for before, edge in pairwise(f"{edge}_seconds" for edge in order):
            least, value = getattr(self, before), getattr(self, edge)
            if value < least:
                return edge, f"{value} is below {before}, {least}"
        for key, rate in _rates(self.collective, self.size_bytes, ranks, vars(self)).items():
            value = getattr(self, key.removesuffix("_GB_s"))
            if not math.isclose(value or 0.0, rate or 0.0, rel_tol=AGREES):
                return key, f"{value} does not follow from the times; expected {rate}"
        return None


class GateFile(StrictModel):
    """Intervals of one machine: who, how many, by which library, and the points."""

    format: Annotated[str, _name((FORM,))]
    machine: str
    nodes: Whole
    ranks: Whole
    network: str | None
    library: str
    dtype: Annotated[str, _name(tuple(ITEM_BYTES))]
    origin: str
    gates: Annotated[tuple[GatePoint, ...], Field(strict=False)]

    @property
    def threshold(self) -> str:
        """Where the intervals are from, in words."""
        joined = f" over {self.network}" if self.network else ""
        where = f"{self.library} on {plural(self.nodes, 'node')} {self.machine}{joined}"
        return (
            f"95 % of the times of {where}, predicted; errors of predictions on {self.origin}"
        )


def _rates(
    collective: str, size_bytes: int, ranks: int, seconds: dict[str, Any]
) -> dict[str, float | None]:
    """Bandwidths in GB/s of a point by key, of its times by key."""
    row = COLLECTIVES[collective]
    moved = size_bytes * row.bus_factor(ranks) / BYTES_PER_GIGABYTE if row.moves_data else 0.0
    return {
        f"{edge}_busbw_GB_s": moved / seconds[f"{of}_seconds"] or None
        for edge, of in {"predicted": "predicted", **EDGES}.items()
    }


def gate_point(collective: str, size_bytes: int, ranks: int, times: dict[str, float]) -> Any:
    """Plain values of one point. times: seconds of ``predicted`` and of EDGES, by the point's key."""
    rates = _rates(collective, size_bytes, ranks, times)
    figures = {
        key: None if value is None else float(f"{value:.6g}")
        for key, value in {**times, **rates}.items()
    }
    return {"collective": collective, "size_bytes": size_bytes, **figures}


def read_gates(path: Path) -> GateFile:
    """The gate file at ``path``. Raises UsageError with file, line, what is there and what is expected."""
    try:
        with open_file(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"--gate {path}: neither 'normal' nor 'not-slow', and as a file it cannot be read "
            f"({error.strerror}); 'ccbench predict --gate-file' writes one"
        ) from None
    document = read_document(content, str(path), GATES)
    origin = document.origin
    if not (isinstance(document.tree, dict) and document.tree.get("format") == FORM):
        raise origin.error(
            (),
            f"is no gate file: 'format: {FORM}' is missing; 'ccbench predict --gate-file' writes one, and "
            "--gate=not-slow is the word for a gate before other arguments",
        )
    try:
        gates = GateFile.model_validate(document.tree)
    except ValidationError as problem:
        raise first_error(problem, origin) from None
    seen = set[tuple[str, int]]()
    for place, point in enumerate(gates.gates):
        if (point.collective, point.size_bytes) in seen:
            raise origin.error(
                ("gates", place), "this collective and size stand twice; keep one"
            )
        seen.add((point.collective, point.size_bytes))
        if wrong := point.contradiction(gates.ranks):
            raise origin.error(("gates", place, wrong[0]), wrong[1])
    if not gates.gates:
        raise origin.error(("gates",), "holds no point; add one")
    return gates


def write_gates(path: Path, plain: dict[str, Any]) -> None:
    """Write ``plain``, a GateFile as plain values; other collectives of a file on the same machine stay.

    Raises UsageError where the file is of another machine, or cannot be written.
    """
    kept = list[dict[str, Any]]()
    if path.exists():
        before = read_gates(path).model_dump(mode="json", by_alias=True)
        for key in ("machine", "nodes", "ranks", "network", "library", "dtype"):
            if before[key] != plain[key]:
                raise UsageError(
                    f"--gate-file {path}: holds {key} {before[key]}, and this is {plain[key]}; name another file"
                )
        new = {(point["collective"], point["size_bytes"]) for point in plain["gates"]}
        kept = [
            point
            for point in before["gates"]
            if (point["collective"], point["size_bytes"]) not in new
        ]
    try:
        write_atomically(path, yaml_text({**plain, "gates": [*kept, *plain["gates"]]}).encode())
    except OSError as error:
        raise UsageError(
            f"--gate-file {path}: cannot be written ({error.strerror}); name another place"
        ) from None
