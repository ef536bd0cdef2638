"""What cases may ask, one row an axis, and what backends can do, one row each.

Expansion, refusals, planning, predictions, the doctor and ``ccbench list`` loop over both. The axes stand in
``ccbench.cases``, the rows of backends in ``ccbench.backends``, beside the code that they describe.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class Axis:
    """One dimension of a case: its column, its words, and what a suite may ask of it.

    meaning, unit: of the column in parquet files. words: in labels, where the value is neither the default
    nor in ``unsaid``. plain: words for the default where other values stand beside it; axes that have them
    are settings, which leave a case's id alone at their default. identity: whether cases that differ in it
    are different points. choice: a library's way to do the same work; other settings change the work, and
    times of different work do not race.
    needs: property of a Collective without which the axis has one value, ``blank``. key: in a suite's sweep.
    values, everything: words that it takes, and what ``all`` stands for; of a bool those of False and True.
    bounds: least and largest number that it takes. An axis without either has a reader of its own in
    ``ccbench.suite``. asked: what a sweep asks unless it says. noun: one value, in errors.
    name, kind, default: of the field in ``Case``; kind as parquet calls it; None where there is no default.
    """

    meaning: str
    words: str = "{}"
    plain: str = ""
    unit: str = ""
    unsaid: tuple[Any, ...] = ()
    identity: bool = True
    choice: bool = False
    needs: str = ""
    blank: Any = None
    key: str = ""
    values: tuple[str, ...] = ()
    everything: tuple[str, ...] = ()
    bounds: tuple[int, int] | None = None
    asked: str | int = ""
    noun: str = ""
    name: str = ""
    kind: str = ""
    default: Any = None

    def said(self, value: Any) -> str:
        """Words for ``value`` in a label; empty where it goes without saying."""
        return "" if value == self.default or value in self.unsaid else self.words.format(value)

    def value(self, word: Any) -> Any:
        """What a case holds for one word of a sweep."""
        return word == self.values[1] if self.kind == "bool" else word

    def plain_value(self, cell: Any) -> str | int | bool:
        """A cell of a run's table as a case holds it."""
        return _KINDS[self.kind](cell)


_KINDS: Mapping[str, Callable[[Any], str | int | bool]] = {"string": str, "int64": int, "bool": bool}


def axis(meaning: str, words: str = "{}", plain: str = "", **declared: Any) -> dict[str, Axis]:
    """Metadata of a field of Case: its row of AXES."""
    return {"axis": Axis(meaning, words, plain, **declared)}


class Every:
    """All values of an axis."""

    def __contains__(self, value: object) -> bool:
        return True


EVERY = Every()


class Device(Enum):
    """What a rank is."""

    PROCESS = "a process on the host's processors"
    GPU = "a GPU"
    EMULATED_GPU = "a GPU that processors stand in for"
    MODEL = "nothing that runs: times are computed"
    UNKNOWN = "not known"


class PricedBy(Enum):
    """Which model predicts times."""

    SCHEDULE = "the schedule's steps on the machine's memory or links"
    GPU_LIBRARY = "NCCL's choice of algorithm and protocol on the links of GPUs"
    MPI = "messages between processes, in the plans of MPI libraries"
    GLOO = "messages between processes, in Gloo's plans"


@dataclass(frozen=True)
class Requirement:
    """Something that must be there. module, distributions: of a Python package; extra: of ccbench, installs
    it ('' for the one that suits the driver); library: a shared one of the system, which does as well.
    cure: what to do where no package helps.
    """

    name: str
    module: str = ""
    distributions: tuple[str, ...] = ()
    extra: str = ""
    library: str = ""
    cure: str = ""


@dataclass(frozen=True)
class Capabilities:
    """One backend: what cases may ask of it, what it runs on, and what it takes.

    home, launched: where its Backend and its launched ranks are made, each as ``module:name``; no home: a
    library whose results are only imported. workers: process model (a value of the axis ``processes``) ->
    where its worker group is made, likewise; a backend that has only one has it as the axis' default.
    lacks: (axis, value) -> axes that cases with that value have at their default. library: its name in words.
    values: axis of a case -> the values that the backend has beside the axis' default; not_in_place:
    collectives that it has out of place only.
    own_schedules, own_kernels: its algorithms are ccbench's schedules, or kernels.
    one_process: with the default of ``processes`` one process launches on all GPUs of a host. spans_hosts:
    ranks may be on several hosts.
    in_process_ranks: a rank must be the very process that a launcher has started.
    polls: ranks keep their processors busy while they wait. device_timed: samples are by devices' clocks.
    adds_natively: adds every type but float8 as fast as it moves its bytes. premultiplies_averages: averages
    floats as a sum of products with 1/ranks. nccl_settings: NCCL's variables and tuner plug-ins steer it.
    automatic: ``auto`` may stand for it. gpu_sharing_variable: set to 1 lets ranks share a GPU; '' where
    they may anyway. start_seconds: until a team measures. needs: in the order in which to get it.
    """

    name: str
    home: str = ""
    library: str = ""
    values: Mapping[str, Container[object]] = field(default_factory=dict)
    lacks: Mapping[tuple[str, object], tuple[str, ...]] = field(default_factory=dict)
    not_in_place: tuple[str, ...] = ()
    most_ranks: int | None = None
    device: Device = Device.UNKNOWN
    own_schedules: bool = False
    own_kernels: bool = False
    priced_by: PricedBy = PricedBy.SCHEDULE
    one_process: bool = False
    spans_hosts: bool = False
    in_process_ranks: bool = False
    polls: bool = False
    device_timed: bool = False
    adds_natively: bool = False
    premultiplies_averages: bool = False
    nccl_settings: bool = False
    automatic: bool = False
    gpu_sharing_variable: str = ""
    start_seconds: float = 8.0
    needs: tuple[Requirement, ...] = ()
    workers: Mapping[str, str] = field(default_factory=dict)
    launched: str = ""

    def has(self, axis: str, value: object) -> bool:
        """Whether a case may ask for ``value``, which is not the axis' default."""
        return value in self.values.get(axis, ())

    @property
    def on_gpus(self) -> bool:
        """Whether ranks are GPUs, so that a team holds memory that others need."""
        return self.device is Device.GPU

    @property
    def gpu_ranks(self) -> bool:
        """Whether ranks stand for GPUs, real or emulated."""
        return self.device in (Device.GPU, Device.EMULATED_GPU)

    @property
    def simulated(self) -> bool:
        """Whether times are computed, not measured."""
        return self.device is Device.MODEL

    @property
    def priced_by_messages(self) -> bool:
        """Whether predictions need to know what messages between these very processes take."""
        return self.priced_by in (PricedBy.MPI, PricedBy.GLOO)


DECLARED: dict[str, Capabilities] = {}
"""By name, in the order in which they are listed."""


def declare(*backends: Capabilities) -> None:
    """Make backends known."""
    DECLARED.update((one.name, one) for one in backends)


def capabilities_of(name: str) -> Capabilities:
    """What the backend called ``name`` can do; of one that is not declared nothing is known."""
    return DECLARED.get(name) or Capabilities(name)


def backend_names() -> tuple[str, ...]:
    """Names of all backends of this version, whether they work here or not."""
    return tuple(name for name, one in DECLARED.items() if one.home)


def backends_of_auto(gpus: bool) -> tuple[str, ...]:
    """What ``auto`` stands for where there are GPUs, or where there are none."""
    return tuple(name for name, one in DECLARED.items() if one.automatic and one.on_gpus == gpus)


def backends_with(axis: str, value: object) -> tuple[str, ...]:
    """Those that have ``value``, which is not the axis' default."""
    return tuple(name for name in backend_names() if DECLARED[name].has(axis, value))
