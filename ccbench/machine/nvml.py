"""The one seam to the NVIDIA driver: NVML through ``pynvml`` of the package nvidia-ml-py.

An answer may be missing in two ways that must not be mixed up: the device has no such thing (``NOT_THERE``),
or it could not be asked (``NOT_VISIBLE``). NVML makes no CUDA context and takes no memory of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from ccbench.topology.pci import normal_address

FIELDS_A_CALL = 100
"""Most fields asked for at once; a device with 18 NVLinks has about 90 worth asking."""

MOST_LINKS = 36
"""NVLINK_MAX_LINKS of nvml.h, driver 580 and later; 18 before."""

SM_CLOCK, MEMORY_CLOCK = 1, 2
"""nvmlClockType_t of nvml.h."""


class Missing(Enum):
    """Why there is no answer."""

    NOT_THERE = "not_there"
    NOT_VISIBLE = "not_visible"


class DriverAbsent(Exception):
    """No driver answers here; the text says which part is missing."""


class Nvml:
    """The driver through ``library``, the module pynvml. Use as a context: it starts and ends the library."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __enter__(self) -> Nvml:
        """Start the library; its own errors (NVMLError) where no driver answers."""
        self.library.nvmlInit()
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def close(self) -> None:
        """End the library; errors of the driver are of no matter then."""
        self.ask("Shutdown")

    def ask(self, question: str, *arguments: Any) -> Any:
        """Answer of ``nvml`` + ``question``, or why there is none; never an error of the driver.

        A Missing among the arguments, such as the handle of a GPU that does not answer, is the answer.
        """
        missing = next((one for one in arguments if isinstance(one, Missing)), None)
        return missing or self._attempt(lambda: getattr(self.library, f"nvml{question}")(*arguments))

    def answer(self, question: str, *arguments: Any) -> Any:
        """As ``ask``, with None for both kinds of no answer."""
        return known(self.ask(question, *arguments))

    def _attempt(self, call: Callable[[], Any]) -> Any:
        library = self.library
        try:
            found = call()
        except (library.NVMLError_NotSupported, library.NVMLError_InvalidArgument):
            return Missing.NOT_THERE
        except (library.NVMLError, AttributeError, TypeError):
            # AttributeError: an older pynvml lacks the call; the driver's own errors are NVMLError.
            return Missing.NOT_VISIBLE
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    def handles(self) -> list[Any]:
        """A handle, or Missing, for every GPU that the driver shows to this process, in its order."""
        count = self.answer("DeviceGetCount") or 0
        return [self.ask("DeviceGetHandleByIndex", gpu) for gpu in range(count)]

    def bus_id(self, question: str, *arguments: Any) -> str | None:
        """PCI address in what a question such as ``DeviceGetPciInfo`` is answered with."""
        place = self.answer(question, *arguments)
        text = b"" if place is None else place.busId
        return normal_address(text.decode("ascii", "replace") if isinstance(text, bytes) else text) or None

    def fabric_state(self, handle: Any) -> tuple[int, int] | None:
        """(state, status) of the GPU in its NVLink fabric; state 3 is completed, status 0 is success."""

        def call() -> tuple[int, int]:
            room = self.library.c_nvmlGpuFabricInfo_t()
            found = self.library.nvmlDeviceGetGpuFabricInfo(handle, room) or room
            return int(found.state), int(found.status)

        found: tuple[int, int] | None = known(self._attempt(call))
        return found

    def field_values(
        self, handle: Any, fields: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], int | float]:
        """The values of those of ``fields`` (number, scope) that the device has.

        The scope is the NVLink for fields of a link, else 0. Numbers are nvml.h's NVML_FI_DEV_*.
        """
        found: dict[tuple[int, int], int | float] = {}
        for begin in range(0, len(fields), FIELDS_A_CALL):
            some = fields[begin : begin + FIELDS_A_CALL]
            values = self.answer("DeviceGetFieldValues", handle, list(some))
            for field, value in zip(some, values or (), strict=False):
                number = field_number(value)
                if number is not None:
                    found[field] = number
        return found


def known(answer: Any) -> Any:
    """The answer, None where there is none of either kind."""
    return None if isinstance(answer, Missing) else answer


_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of nvmlValue_t by nvmlValueType_t."""


def field_number(value: Any) -> int | float | None:
    """The number of a c_nvmlFieldValue_t; None where the device has none."""
    if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_MEMBERS):
        return None
    number: int | float = getattr(value.value, _MEMBERS[value.valueType])
    return number


def opened(library: Any = None) -> Nvml:
    """The driver, ready to be asked; DriverAbsent says what is missing.

    library: in place of the module pynvml.
    """
    if library is None:
        try:
            import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]  # optional, untyped
        except ImportError:
            raise DriverAbsent("the Python module pynvml is missing (pip install nvidia-ml-py)") from None
        library = pynvml
    try:
        return Nvml(library).__enter__()
    except (library.NVMLError, OSError) as error:
        raise DriverAbsent(f"no NVIDIA driver answers here ({error})") from None


def count_gpus() -> int:
    """GPUs that the driver counts, 0 where it cannot be asked."""
    try:
        with opened() as nvml:
            return nvml.answer("DeviceGetCount") or 0
    except DriverAbsent:
        return 0
