"""A machine is a fabric with numbers, and every number says where it came from.

This release knows one fabric, the shared memory of one host. Callers hold a ``Machine`` and hand it to
``price`` and ``bound``; they look into ``fabric`` only through these, so that a graph of links can join
the union without a caller changing.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccbench.documents import read_machine_document, yaml_text
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import MachineError
from ccbench.units import shown

Floats = NDArray[np.float64]
T = TypeVar("T")

STRICT = {"extra": "forbid", "allow_inf_nan": False}
"""Settings with which pydantic reads these classes from a file; a plain dict, so that importing needs no pydantic."""


@dataclass(frozen=True)
class RatePoint:
    """A rate seen at one working set.

    working_set_bytes: every distinct byte one process touches per repetition, operands and results
        together, because that decides which cache serves it.
    bytes_per_second: what ``Rates`` says is counted.
    """

    working_set_bytes: int
    bytes_per_second: float

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        for name in ("working_set_bytes", "bytes_per_second"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise MachineError(f"{name}: {value} is not a positive number")


@dataclass(frozen=True)
class Rates:
    """Bytes per second as a function of working set and of how many processes work at once.

    one_process, all_cores: points in rising order of working set; ``all_cores`` counts the bytes of one
        process on every core together. Between points the rate is interpolated in log-log, outside them
        it is flat. A larger working set must never take less time than a smaller one, so that predicted
        times cannot fall as sizes grow.
    """

    one_process: tuple[RatePoint, ...]
    all_cores: tuple[RatePoint, ...]

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        for name in ("one_process", "all_cores"):
            points: tuple[RatePoint, ...] = getattr(self, name)
            if not points:
                raise MachineError(
                    f"{name}: no points; give at least one working set and its rate"
                )
            for left, right in itertools.pairwise(points):
                if right.working_set_bytes <= left.working_set_bytes:
                    raise MachineError(
                        f"{name}: working set {right.working_set_bytes} follows {left.working_set_bytes}; "
                        "list them in rising order, each once"
                    )
                left_seconds = left.working_set_bytes / left.bytes_per_second
                right_seconds = right.working_set_bytes / right.bytes_per_second
                if right_seconds < left_seconds:
                    raise MachineError(
                        f"{name}: {right.working_set_bytes} bytes would take {right_seconds:.3g} s, less "
                        f"than {left.working_set_bytes} bytes ({left_seconds:.3g} s); lower the larger one's "
                        "rate"
                    )

    def at(self, working_set_bytes: ArrayLike, processes: int, cores: int) -> Floats:
        """Total rate of ``processes`` (at most ``cores``) processes, shape of ``working_set_bytes``.

        Between one process and all cores the total follows a power of the process count, the straight
        line in log-log through the two measured curves.
        """
        single = _interpolated(self.one_process, working_set_bytes)
        if processes <= 1 or cores <= 1:
            return single
        # Bandwidth saturates as cores are added; a power law through both measured ends follows that.
        exponent = math.log(min(processes, cores)) / math.log(cores)
        every = _interpolated(self.all_cores, working_set_bytes)
        return np.asarray(single ** (1.0 - exponent) * every**exponent)


def _interpolated(points: tuple[RatePoint, ...], working_set_bytes: ArrayLike) -> Floats:
    # Rates fall by steps at the caches' sizes, which are apart by factors: log-log.
    where = np.log(np.maximum(np.asarray(working_set_bytes, dtype=np.float64), 1.0))
    sizes = np.log([point.working_set_bytes for point in points])
    rates = np.log([point.bytes_per_second for point in points])
    return np.asarray(np.exp(np.interp(where, sizes, rates)))


@dataclass(frozen=True)
class SharedMemory:
    """The fabric of one host whose ranks are processes on its cores, pinned rank by rank round robin.

    flag_latency_seconds: from a flag's store by one rank until another rank, polling on another core,
        goes on; the usual figure, for prices.
    best_flag_latency_seconds: the least ever seen of the same, for bounds.
    flag_check_seconds: looking at one more flag that is already up.
    yield_seconds: handing a core from one rank to another that shares it.
    operation_seconds: fixed cost of one array operation on one block, bookkeeping of its step included.
    copy: payload bytes per second of ``b[:] = a`` (a payload byte is one byte of result).
    reduce: payload bytes per second of ``c[:] = a + b`` on float32.
    peak_traffic: the best bytes read plus bytes written per second ever seen, for bounds only.
    operation_bytes_per_second: payload bytes per second of one core that computes on a block in its cache,
        by ``arithmetic_key``: what the arithmetic itself allows, however fast memory is. A type or an
        operation that is not listed is priced as limited by memory alone.
    """

    cores: int
    flag_latency_seconds: float
    best_flag_latency_seconds: float
    flag_check_seconds: float
    yield_seconds: float
    operation_seconds: float
    copy: Rates
    reduce: Rates
    peak_traffic: Rates
    operation_bytes_per_second: Mapping[str, float] = field(default_factory=dict, hash=False)

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise MachineError(f"cores: {self.cores} is not at least 1")
        for name in SECONDS_FIELDS:
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise MachineError(f"{name}: {value} is not a number of seconds, zero or more")
        if not self.operation_seconds:
            raise MachineError("operation_seconds: 0, but no call is free; give what one costs")
        if self.best_flag_latency_seconds > self.flag_latency_seconds:
            raise MachineError(
                "best_flag_latency_seconds: larger than flag_latency_seconds; it cannot be"
            )
        for key, rate in self.operation_bytes_per_second.items():
            dtype, _, kind = key.partition(" ")
            if dtype not in ITEM_BYTES or kind not in ARITHMETIC:
                raise MachineError(
                    f"operation_bytes_per_second: {shown(key)} is not a type and one of "
                    f"{', '.join(ARITHMETIC)}; write for example 'float16 sum'"
                )
            if not (rate > 0 and math.isfinite(rate)):
                raise MachineError(
                    f"operation_bytes_per_second: {key}: {rate} is not a positive number"
                )
        knots = sorted(
            {
                point.working_set_bytes
                for rates in (self.copy, self.reduce, self.peak_traffic)
                for point in (*rates.one_process, *rates.all_cores)
            }
        )
        slack = 1.0 + 1e-9
        for processes in {1, self.cores}:
            peak = self.peak_traffic.at(knots, processes, self.cores) * slack
            for name, rates, traffic in (
                ("copy", self.copy, COPY_TRAFFIC),
                ("reduce", self.reduce, REDUCE_TRAFFIC),
            ):
                priced = traffic * rates.at(knots, processes, self.cores)
                if bool(np.any(priced > peak)):
                    knot = knots[int(np.argmax(priced / peak))]
                    raise MachineError(
                        f"peak_traffic: less than {traffic} x {name} at {knot} bytes and {processes} "
                        "processes; a peak cannot lie below a rate that was seen"
                    )
        single_peak = self.peak_traffic.at(knots, 1, self.cores)
        if bool(
            np.any(single_peak > slack * self.peak_traffic.at(knots, self.cores, self.cores))
        ):
            raise MachineError("peak_traffic: all_cores lies below one_process; it cannot")


AVERAGE = "average"
"""The pass that makes a finished sum an average; its additions are those of ``sum``."""

ARITHMETIC = ("sum", "prod", "min", "max", AVERAGE)
"""Kinds of arithmetic that have a rate of their own, each for each type."""


def arithmetic_key(dtype: str, kind: str) -> str:
    """The key of SharedMemory.operation_bytes_per_second; ``kind`` is one of ARITHMETIC."""
    return f"{dtype} {kind}"


def calls_of(key: str) -> int:
    """Array operations behind a key: whole numbers take three to average (see the CPU backend)."""
    dtype, _, kind = key.partition(" ")
    return 3 if kind == AVERAGE and "int" in dtype else 1


SECONDS_FIELDS = (
    "flag_latency_seconds",
    "best_flag_latency_seconds",
    "flag_check_seconds",
    "yield_seconds",
    "operation_seconds",
)
"""The fields of SharedMemory that are plain times."""

COPY_TRAFFIC = 2
"""Bytes read plus written per payload byte copied."""

REDUCE_TRAFFIC = 3
"""Bytes read plus written per payload byte of ``c = a + b``."""


@dataclass(frozen=True)
class Machine:
    """A host that predictions are priced on.

    origins: for each number of the fabric, where it came from (measured when, published where, assumed).
    """

    name: str
    fabric: SharedMemory
    origins: Mapping[str, str] = field(hash=False)
    kind: Literal["cpu"] = "cpu"

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        if not self.name:
            raise MachineError("name: empty; give the machine a name")
        numbers = {entry.name for entry in fields(self.fabric)}
        # Rates of types may be left out, and nothing need be said about none.
        optional = (
            set() if self.fabric.operation_bytes_per_second else {"operation_bytes_per_second"}
        )
        missing = sorted(numbers - optional - set(self.origins))
        unknown = sorted(set(self.origins) - numbers)
        if missing:
            raise MachineError(
                f"origins: nothing about {', '.join(missing)}; say where each came from"
            )
        if unknown:
            raise MachineError(f"origins: {', '.join(unknown)} is not a number of this fabric")


MACHINES_FOLDER = Path(__file__).parent / "machines"
"""Folder of the shipped machines, one ``<name>.yaml`` each."""


def machine_names() -> tuple[str, ...]:
    """Names of the shipped machines."""
    return tuple(sorted(path.stem for path in MACHINES_FOLDER.glob("*.yaml")))


def load_machine(name_or_path: str | Path) -> Machine:
    """A shipped machine by name, or a machine file by path (``.yaml`` or ``.yml``).

    Raises MachineError, one line with path and place, for an unknown name and for a file that is not
    exactly a machine: unknown and missing fields, wrong types and repeated keys are all refused.
    """
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        if str(name_or_path) not in machine_names():
            names = ", ".join(machine_names())
            raise MachineError(
                f"machine: {str(name_or_path)!r} is not known; one of {names}, or a path ending in .yaml"
            )
        path = MACHINES_FOLDER / f"{name_or_path}.yaml"
    return machine_from_plain(read_machine_document(path), path)


def is_machine_file(name: str | Path) -> bool:
    """True if it is a file that ``ccbench calibrate`` writes, not one that describes a topology."""
    return has_line(name, b"fabric:")


def has_line(name: str | Path, beginning: bytes) -> bool:
    """True if ``name`` is a YAML file with a line that begins so; nothing else of it is looked at."""
    path = Path(name)
    try:
        if path.suffix not in {".yaml", ".yml"} or not path.is_file():
            return False
        with path.open("rb") as file:
            return b"\n" + beginning in b"\n" + file.read(1 << 16)
    except OSError:
        return False  # whoever reads it next says why it cannot be read


def save_machine(machine: Machine, path: str | Path) -> None:
    """Write ``machine`` so that ``load_machine(path)`` gives the same value; MachineError if it cannot."""
    plain = asdict(machine)
    plain["origins"] = dict(machine.origins)
    plain["fabric"]["operation_bytes_per_second"] = dict(
        machine.fabric.operation_bytes_per_second
    )
    write_plain(plain, path)


def write_plain(plain: Mapping[str, object], path: str | Path) -> None:
    """Write values of a dataclass as YAML. Raises MachineError."""
    # asdict keeps tuples, which YAML's safe dialect does not know.
    text = yaml_text(json.loads(json.dumps(plain)))
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise MachineError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from None


def machine_from_plain(plain: object, path: Path) -> Machine:
    """The machine that plain values (of YAML or JSON) hold; ``path`` names them in a MachineError."""
    return typed(Machine, plain, path)


def typed(kind: type[T], plain: object, place: str | Path) -> T:
    """Plain values as a dataclass, nothing converted; MachineError, one line that begins with ``place``."""
    from pydantic import TypeAdapter, ValidationError

    try:
        # Through JSON, because only there does strict checking take a list for a tuple.
        return TypeAdapter(kind).validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    except (TypeError, MachineError) as error:
        raise MachineError(f"{place}: {error}") from None
    loc, value_text = first["loc"], shown(first["input"])
    if first["type"] == "unexpected_keyword_argument" and len(loc) == 1:
        raise MachineError(f"{place}: {shown(loc[0])} is not a field; remove it")
    where = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc
    ).lstrip(".")
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] != "missing":
        message += f"; seen {value_text}"
    if isinstance(first["input"], str) and first["type"] in {"float_type", "int_type"}:
        message += "; write numbers without quotes"
    raise MachineError(f"{place}: {where or 'the file'}: {message}")
