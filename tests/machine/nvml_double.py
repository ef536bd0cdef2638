"""A driver in Python that behaves: GPUs that warm up, throttle, count errors and fall off the bus.

It has the functions of pynvml that ccbench calls, with their names, arguments and errors; a test checks them
against pynvml itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """The root of the driver's errors, as in pynvml."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801  # pynvml's spelling; so below
    pass


NVMLError_InvalidArgument = type("NVMLError_InvalidArgument", (NVMLError,), {})
NVMLError_Timeout = type("NVMLError_Timeout", (NVMLError,), {})
NVMLError_NotFound = type("NVMLError_NotFound", (NVMLError,), {})
NVMLError_GpuIsLost = type("NVMLError_GpuIsLost", (NVMLError,), {})
NVMLError_LibraryNotFound = type("NVMLError_LibraryNotFound", (NVMLError,), {})


OLD, HOPPER, BLACKWELL = "old", "hopper", "blackwell"

_LINK_FIELDS = {
    HOPPER: {161: "replays", 162: "recoveries", 163: "crc"},
    BLACKWELL: {208: "received_errors", 215: "recoveries", 219: "effective_errors"},
}
_OLD_FIRST = {
    "crc_flits": (32, 96),
    "crc_data": (39, 102),
    "replays": (46, 108),
    "recoveries": (53, 114),
}

SW_POWER_CAP, SW_THERMAL, HW_THERMAL, POWER_BRAKE, GPU_IDLE = 0x4, 0x20, 0x40, 0x80, 0x1


@dataclass
class Gpu:
    """One GPU. links: per link its errors; None for a link that is down."""

    bus_id: str = "00000000:3B:00.0"
    model: str = "NVIDIA H100 80GB HBM3"
    generation: str = HOPPER
    top_mhz: int = 1980
    sm_mhz: int = 345
    memory_mhz: int = 2619
    reasons: int = GPU_IDLE
    watts: float = 70.0
    limit_watts: float = 700.0
    default_limit_watts: float = 700.0
    celsius: float = 30.0
    hottest_celsius: float = 90.0
    joules: float = 0.0
    held_nanoseconds: dict[int, int] = field(
        default_factory=lambda: {74: 0, 75: 0, 77: 0, 79: 0}
    )
    corrected: int = 0
    uncorrected: int = 0
    replays: int = 0
    pcie: tuple[int, int] = (5, 16)
    links: list[dict[str, int] | None] = field(default_factory=list)
    lost: bool = False
    ecc: bool = True
    persistence: bool = True
    mig: bool = False
    application_mhz: int | None = 1980
    refuses_unknown_fields: bool = False
    lacks: frozenset[str] = frozenset()

    def work(self, seconds: float, watts: float) -> None:
        """Run a load that would draw ``watts``: the limit and the heat hold the clocks back."""
        self.watts = min(watts, self.limit_watts)
        capped = watts > self.limit_watts
        self.celsius += seconds * self.watts / 100
        hot = self.celsius > self.hottest_celsius
        self.celsius = min(self.celsius, self.hottest_celsius)
        self.joules += seconds * self.watts
        self.held_nanoseconds[74] += int(seconds * 1e9) * capped
        self.held_nanoseconds[75] += int(seconds * 1e9) * hot
        self.sm_mhz = int(self.top_mhz * (0.8 if capped or hot else 1.0))
        self.reasons = SW_POWER_CAP * capped | SW_THERMAL * hot

    def rest(self) -> None:
        """The load is over: clocks fall, reasons are gone, counters stay."""
        self.sm_mhz, self.watts, self.reasons = 345, 70.0, GPU_IDLE

    def fields(self) -> dict[tuple[int, int], int]:
        """(number, scope) -> value of all it has."""
        found: dict[tuple[int, int], int] = {
            (82, 0): int(self.celsius) + 5,
            (83, 0): int(self.joules * 1000),
            (94, 0): self.replays,
            **{(number, 0): held for number, held in self.held_nanoseconds.items()},
        }
        if self.ecc:
            found |= {
                (3, 0): self.corrected,
                (4, 0): self.uncorrected,
                (5, 0): self.corrected + 7,
                (6, 0): self.uncorrected,
            }
        for link, errors in enumerate(self.links):
            if errors is None:
                continue
            if self.generation == OLD:
                for what, (low, high) in _OLD_FIRST.items():
                    number = low + link if link < 6 else high + link - 6
                    found[(number, 0)] = errors.get(what, 0)
            else:
                for number, what in _LINK_FIELDS[self.generation].items():
                    found[(number, link)] = errors.get(what, 0)
        return found


class Nvml:
    """The module. calls: how often it was asked. open: how often it was started and not yet ended."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_InvalidArgument = NVMLError_InvalidArgument

    def __init__(self, gpus: Sequence[Gpu], absent: bool = False) -> None:
        self.gpus = list(gpus)
        self.absent = absent
        self.open = 0
        self.calls = 0
        self.events: list[tuple[Gpu, int]] = []
        self.watched: list[Gpu] = []
        self.event_sets = 0

    def report(self, gpu: Gpu, xid: int) -> None:
        """The driver sees an error of a GPU."""
        if any(one is gpu for one in self.watched):
            self.events.append((gpu, xid))

    def nvmlInit(self) -> None:  # noqa: N802  # pynvml's names; so below
        if self.absent:
            raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def _of(self, handle: Gpu, function: str) -> Gpu:
        assert self.open > 0, f"{function} was called before nvmlInit"
        self.calls += 1
        if handle.lost:
            raise NVMLError_GpuIsLost("GPU is lost")
        if function in handle.lacks:
            raise NVMLError_NotSupported("Not Supported")
        return handle

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        if not 0 <= index < len(self.gpus):
            raise NVMLError_InvalidArgument("Invalid Argument")
        return self.gpus[index]

    def nvmlDeviceGetHandleByPciBusId(self, pciBusId: str) -> Gpu:  # noqa: N802, N803
        domain, bus, place = pciBusId.split(":")
        for gpu in self.gpus:
            d, b, p = gpu.bus_id.split(":")
            if (int(d, 16), int(b, 16), p) == (int(domain, 16), int(bus, 16), place):
                return gpu
        raise NVMLError_NotFound("Not Found")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13000

    def nvmlDeviceGetPciInfo(self, handle: Gpu) -> Any:  # noqa: N802
        return SimpleNamespace(busId=handle.bus_id)

    def nvmlDeviceGetNvLinkState(self, device: Gpu, link: int) -> int:  # noqa: N802
        gpu = self._of(device, "nvmlDeviceGetNvLinkState")
        if link >= len(gpu.links):
            raise NVMLError_InvalidArgument("Invalid Argument")
        return int(gpu.links[link] is not None)

    def nvmlDeviceGetFieldValues(  # noqa: N802
        self,
        handle: Gpu,
        fieldIds: Sequence[tuple[int, int]],  # noqa: N803
    ) -> list[Any]:
        has = self._of(handle, "nvmlDeviceGetFieldValues").fields()
        if handle.refuses_unknown_fields and any(fieldid not in has for fieldid in fieldIds):
            raise NVMLError_InvalidArgument("Invalid Argument")
        return [
            SimpleNamespace(
                nvmlReturn=0 if fieldid in has else 3,
                valueType=3,
                value=SimpleNamespace(ullVal=has.get(fieldid, 0)),
            )
            for fieldid in fieldIds
        ]

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        self.event_sets += 1
        return self

    def nvmlDeviceRegisterEvents(self, handle: Gpu, eventTypes: int, eventSet: object) -> None:  # noqa: N802, N803
        if self._of(handle, "nvmlDeviceRegisterEvents") and eventTypes & 8:
            self.watched.append(handle)

    def nvmlEventSetWait(self, eventSet: object, timeoutms: int) -> Any:  # noqa: N802, N803
        if not self.events:
            raise NVMLError_Timeout("Timeout")
        gpu, xid = self.events.pop(0)
        return SimpleNamespace(device=gpu, eventType=8, eventData=xid)

    def nvmlEventSetFree(self, eventSet: object) -> None:  # noqa: N802, N803
        self.event_sets -= 1


def _application_mhz(gpu: Gpu) -> int:
    if gpu.application_mhz is None:
        raise NVMLError_NotSupported("Not Supported")
    return gpu.application_mhz


OF_A_GPU: dict[str, Callable[[Gpu], Any]] = {
    "Name": lambda gpu: gpu.model,
    "PerformanceState": lambda gpu: 0 if gpu.sm_mhz > 345 else 8,
    "CurrentClocksEventReasons": lambda gpu: gpu.reasons,
    "CurrentClocksThrottleReasons": lambda gpu: gpu.reasons,
    "PowerUsage": lambda gpu: int(gpu.watts * 1000),
    "EnforcedPowerLimit": lambda gpu: int(gpu.limit_watts * 1000),
    "PowerManagementDefaultLimit": lambda gpu: int(gpu.default_limit_watts * 1000),
    "CurrPcieLinkGeneration": lambda gpu: gpu.pcie[0],
    "CurrPcieLinkWidth": lambda gpu: gpu.pcie[1],
    "EccMode": lambda gpu: [int(gpu.ecc)] * 2,
    "PersistenceMode": lambda gpu: int(gpu.persistence),
    "MigMode": lambda gpu: [int(gpu.mig)] * 2,
}
OF_A_SENSOR: dict[str, Callable[[Gpu, int], Any]] = {
    "Temperature": lambda gpu, sensor: int(gpu.celsius),
    "MaxClockInfo": lambda gpu, kind: gpu.top_mhz if kind == 1 else gpu.memory_mhz,
    "ClockInfo": lambda gpu, kind: gpu.sm_mhz if kind == 1 else gpu.memory_mhz,
    "ApplicationsClock": lambda gpu, kind: (
        _application_mhz(gpu) if kind == 1 else gpu.memory_mhz
    ),
}
"""Question -> its answer; those of a sensor or a clock have a second argument."""


def _asked(function: str, answer: Callable[[Gpu], Any]) -> Callable[[Nvml, Gpu], Any]:
    return lambda self, handle: answer(self._of(handle, function))


def _asked_of(
    function: str, answer: Callable[[Gpu, int], Any]
) -> Callable[[Nvml, Gpu, int], Any]:
    return lambda self, handle, kind: answer(self._of(handle, function), kind)


for _name, _answer in OF_A_GPU.items():
    setattr(Nvml, f"nvmlDeviceGet{_name}", _asked(f"nvmlDeviceGet{_name}", _answer))
for _name, _answer_of in OF_A_SENSOR.items():
    setattr(Nvml, f"nvmlDeviceGet{_name}", _asked_of(f"nvmlDeviceGet{_name}", _answer_of))
