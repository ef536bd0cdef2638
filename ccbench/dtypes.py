"""Element types by name: size, NumPy type, and how large a whole number each holds exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccbench.errors import UsageError
from ccbench.units import suggestion

if TYPE_CHECKING:
    import numpy as np

ITEM_BYTES: dict[str, int] = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}

CPU_DTYPES = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64", "bfloat16")
"""What the CPU and simulated backends compute with."""

EXACT_LIMIT: dict[str, int] = {
    "int8": 2**7 - 1,
    "uint8": 2**8 - 1,
    "int32": 2**31 - 1,
    "uint32": 2**32 - 1,
    "int64": 2**63 - 1,
    "uint64": 2**64 - 1,
    "float16": 2**11,
    "bfloat16": 2**8,
    "float32": 2**24,
    "float64": 2**53,
    "float8_e4m3": 2**4,
    "float8_e5m2": 2**3,
}
"""Every whole number up to this magnitude is held exactly (significand bits of IEEE 754; bfloat16 has 8,
float8_e4m3 4, float8_e5m2 3: Micikevicius et al., "FP8 formats for deep learning", 2022)."""

EXPONENTS = {
    "float16": (-14, 15),
    "bfloat16": (-126, 127),
    "float32": (-126, 127),
    "float64": (-1022, 1023),
    "float8_e4m3": (-6, 8),
    "float8_e5m2": (-14, 15),
}
"""Powers of two that are normal numbers (IEEE 754-2019, table 3.5; bfloat16 has float32's; float8:
Micikevicius et al., "FP8 formats for deep learning", 2022, table 1)."""


_SMALL_FLOATS = {
    "bfloat16": "bfloat16",
    "float8_e4m3": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
}
"""Names in ml_dtypes."""


def item_bytes(name: str) -> int:
    """Bytes of one element; UsageError lists the names when there is no such type."""
    try:
        return ITEM_BYTES[name]
    except KeyError:
        raise UsageError(
            f"dtype: {name!r} is not known; {suggestion(name, ITEM_BYTES)}"
        ) from None


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The NumPy type of a name in ITEM_BYTES; those that NumPy lacks come from ml_dtypes."""
    import numpy

    if name not in ITEM_BYTES:
        raise UsageError(
            f"dtype: {name!r} has no NumPy type here; one of {', '.join(ITEM_BYTES)}"
        )
    if name in _SMALL_FLOATS:
        import ml_dtypes

        small: np.dtype[np.generic] = numpy.dtype(getattr(ml_dtypes, _SMALL_FLOATS[name]))
        return small
    return numpy.dtype(name)  # type: ignore[no-any-return,unused-ignore]  # depends on NumPy's own stubs
