"""Capabilities of each backend: rows that ``ccbench.backends`` declares, and every other layer asks."""

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
    """Kind of thing that a rank is."""

    PROCESS = "a process on the host's processors"
    GPU = "a GPU"
    EMULATED_GPU = "a GPU that processors stand in for"
    MODEL = "nothing that runs: times are computed"
    UNKNOWN = "not known"


class PricedBy(Enum):
    """Model that predicts times."""

    SCHEDULE = "the schedule's steps on the machine's memory or links"
    GPU_LIBRARY = "NCCL's choice of algorithm and protocol on the links of GPUs"
    NO_MODEL = "nobody: how long a library's messages between processes take is measured only"


@dataclass(frozen=True)
class Requirement:
    """Something that must be there. module, distributions: of a Python package; extra: of ccbench, installs
    it ('' for the one that suits the driver); library: a shared one of the system, which does as well.
    cure: what to do where no package helps. device: the driver's file that shows it.
    """

    name: str
    module: str = ""
    distributions: tuple[str, ...] = ()
    extra: str = ""
    library: str = ""
    cure: str = ""
    device: str = ""


@dataclass(frozen=True)
class Capabilities:
    """One backend: what cases may ask of it, what it runs on, and what it takes."""

    name: str
    entry_point: str = ""
    """``module:name`` of its Backend; '' for a library whose results are only imported."""
    library: str = ""
    """Name of its library in words."""
    library_file: str = ""
    """Beginning of the name of its library's file, which a variant may replace; '' for none."""
    values: Mapping[str, Container[object]] = field(default_factory=dict)
    """Axis of a case -> the values that the backend has besides the axis' default."""
    lacks: Mapping[tuple[str, object], tuple[str, ...]] = field(default_factory=dict)
    """(axis, value) -> axes that cases with that value have at their default."""
    not_in_place: tuple[str, ...] = ()
    """Collectives that it has out of place only."""
    most_ranks: int | None = None
    device: Device = Device.UNKNOWN
    own_schedules: bool = False
    """Its algorithms are ccbench's schedules."""
    own_kernels: bool = False
    callables: tuple[str, ...] = ()
    """Tensors that functions of the user's files take, where these are its algorithms; it has no default."""
    priced_by: PricedBy = PricedBy.SCHEDULE
    one_process: bool = False
    """With the default of ``processes`` one process launches on all GPUs of a host."""
    spans_hosts: bool = False
    in_process_ranks: bool = False
    """A rank must be the very process that a launcher has started."""
    polls: bool = False
    """Ranks keep their processors busy while they wait."""
    device_timed: bool = False
    """Samples are by devices' clocks."""
    adds_natively: bool = False
    """Adds every type but float8 as fast as it moves its bytes."""
    premultiplies_averages: bool = False
    """Averages floats as a sum of products with 1/ranks."""
    nccl_settings: bool = False
    """NCCL's variables and tuner plug-ins steer it."""
    automatic: bool = False
    """``auto`` may stand for it."""
    gpu_sharing_variable: str = ""
    """Set to 1 lets ranks share a GPU; '' where they may anyway."""
    needs: tuple[Requirement, ...] = ()
    """In the order in which to get them."""
    workers: Mapping[str, str] = field(default_factory=dict)
    """Process model (a value of the axis ``processes``) -> ``module:name`` of its worker group; a backend
    with one model has it as the default."""
    launched: str = ""
    """``module:name`` of a launched rank's endpoint."""
    never_run: bool = False
    """It has never run on the hardware that it needs."""

    def has(self, axis: str, value: object) -> bool:
        """Return whether a case may ask for ``value``, which is not the axis' default."""
        return value in self.values.get(axis, ())

    @property
    def on_gpus(self) -> bool:
        """True if ranks are GPUs, so that a team holds memory that others need."""
        return self.device is Device.GPU

    @property
    def gpu_ranks(self) -> bool:
        """True if ranks stand for GPUs, real or emulated."""
        return self.device in (Device.GPU, Device.EMULATED_GPU)

    @property
    def simulated(self) -> bool:
        """True if times are computed, not measured."""
        return self.device is Device.MODEL


DECLARED: dict[str, Capabilities] = {}
"""By name, in the order in which they are listed."""


def declare(*backends: Capabilities) -> None:
    """Make backends known."""
    DECLARED.update((backend.name, backend) for backend in backends)


def capabilities_of(name: str) -> Capabilities:
    """Capabilities of the backend called ``name``; of one that is not declared nothing is known."""
    return DECLARED.get(name) or Capabilities(name)


def backend_names() -> tuple[str, ...]:
    """Names of all backends of this version, whether they work here or not."""
    return tuple(name for name, backend in DECLARED.items() if backend.entry_point)


def backends_of_auto(gpus: bool) -> tuple[str, ...]:
    """Backends that ``auto`` stands for where there are GPUs, or where there are none."""
    return tuple(
        name
        for name, backend in DECLARED.items()
        if backend.automatic and backend.on_gpus == gpus
    )


def backends_with(axis: str, value: object) -> tuple[str, ...]:
    """Those that have ``value``, which is not the axis' default."""
    return tuple(name for name in backend_names() if DECLARED[name].has(axis, value))
