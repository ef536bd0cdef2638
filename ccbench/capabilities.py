"""What backends can do: one row for each, which expansion, refusals, planning, predictions, the doctor and
``ccbench list`` loop over. The rows stand in ``ccbench.backends``, beside the code that they describe.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum


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
