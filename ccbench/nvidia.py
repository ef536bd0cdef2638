"""The NVIDIA driver, asked through ``pynvml`` of the package nvidia-ml-py: how every question is asked.

An answer may be missing in two ways that must not be mixed up: the device has no such thing (``NOT_THERE``),
or it could not be asked (``NOT_VISIBLE``). NVML makes no CUDA context and takes no memory of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

FIELDS_A_CALL = 100
"""Most fields asked for at once; a device with 18 NVLinks has about 90 worth asking."""


class Missing(Enum):
    """Why there is no answer."""

    NOT_THERE = "not_there"
    NOT_VISIBLE = "not_visible"


class DriverAbsent(Exception):
    """No driver answers here; the text says which part is missing."""


class Session:
    """The driver through ``library``, the module pynvml. Use as a context: it starts and ends the library."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self._handles: dict[int, Any] = {}

    def open(self) -> None:
        """Start the library; its own errors (NVMLError) where no driver answers."""
        self.library.nvmlInit()

    def close(self) -> None:
        """End the library."""
        self._handles.clear()
        self.library.nvmlShutdown()

    def __exit__(self, *ended: object) -> None:
        self.close()

    def ask(self, call: Callable[[], T]) -> T | Missing:
        """What ``call`` returns, or why there is no answer; never an error of the driver."""
        library = self.library
        try:
            return call()
        except (library.NVMLError_NotSupported, library.NVMLError_InvalidArgument):
            return Missing.NOT_THERE
        except (library.NVMLError, AttributeError, TypeError, UnicodeDecodeError):
            # AttributeError: an older pynvml lacks the call; the driver's own errors are NVMLError.
            return Missing.NOT_VISIBLE

    def answer(self, call: Callable[[], T]) -> T | None:
        """As ``ask``, for those to whom both kinds of no answer are alike."""
        found = self.ask(call)
        return None if isinstance(found, Missing) else found

    def handle(self, gpu: int) -> Any:
        """The handle of a GPU by its place in the driver's order; raises the driver's errors."""
        if gpu not in self._handles:
            self._handles[gpu] = self.library.nvmlDeviceGetHandleByIndex(gpu)
        return self._handles[gpu]

    def field_values(
        self, handle: Any, fields: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], int | float]:
        """The values of those of ``fields`` (number, scope) that the device has.

        The scope is the NVLink for fields of a link, else 0. Numbers are nvml.h's NVML_FI_DEV_*.
        """
        found: dict[tuple[int, int], int | float] = {}
        for begin in range(0, len(fields), FIELDS_A_CALL):
            some = fields[begin : begin + FIELDS_A_CALL]
            values = self.answer(lambda some=some: self.library.nvmlDeviceGetFieldValues(handle, list(some)))  # type: ignore[misc]  # mypy cannot infer a lambda's default
            for field, value in zip(some, values or (), strict=False):
                number = field_number(value)
                if number is not None:
                    found[field] = number
        return found


_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of nvmlValue_t by nvmlValueType_t."""


def field_number(value: Any) -> int | float | None:
    """The number of a c_nvmlFieldValue_t; None where the device has none."""
    if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_MEMBERS):
        return None
    number: int | float = getattr(value.value, _MEMBERS[value.valueType])
    return number


def opened(library: Any = None) -> Session:
    """The driver, ready to be asked; DriverAbsent says what is missing.

    library: in place of the module pynvml.
    """
    if library is None:
        try:
            import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]  # optional, untyped
        except ImportError:
            raise DriverAbsent("the Python module pynvml is missing (pip install nvidia-ml-py)") from None
        library = pynvml
    session = Session(library)
    try:
        session.open()
    except (library.NVMLError, OSError) as error:
        raise DriverAbsent(f"no NVIDIA driver answers here ({error})") from None
    return session


def count_gpus() -> int:
    """GPUs that the driver counts, 0 where it cannot be asked."""
    try:
        session = opened()
    except DriverAbsent:
        return 0
    try:
        return session.answer(lambda: int(session.library.nvmlDeviceGetCount())) or 0
    finally:
        session.answer(session.close)


def text_of(value: Any) -> str:
    """A text of pynvml, which older versions give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
