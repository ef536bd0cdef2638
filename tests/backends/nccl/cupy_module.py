"""``cupy.cuda.nccl`` of NCCL's double, with the signatures and the quirks of CuPy 13 and 14."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from .process import MEANINGS, SUCCESS, State, new_unique_id

NAMES = (
    "NCCL_ERROR_SUCCESS",
    "NCCL_ERROR_UNHANDLED_CUDA_ERROR",
    "NCCL_ERROR_SYSTEM_ERROR",
    "NCCL_ERROR_INTERNAL_ERROR",
    "NCCL_ERROR_INVALID_ARGUMENT",
    "NCCL_ERROR_INVALID_USAGE",
    "NCCL_ERROR_REMOTE_ERROR",
)

MOVING = {
    name: f"nccl{name[0].upper()}{name[1:]}"
    for name in [
        "allReduce",
        "reduce",
        "broadcast",
        "reduceScatter",
        "allGather",
        "send",
        "recv",
    ]
}
"""What CuPy has of the calls that move data; there is none of its ``initAll``, which waits with the GIL held."""

BUILD_VERSION = 22501
"""Of the header that CuPy 13.6 and 14.0 for CUDA 12 were built with."""


class NcclError(RuntimeError):
    """As CuPy's: a result beyond those it knows is a KeyError."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"{dict(enumerate(NAMES))[status]}: {MEANINGS[status]}")


def check_status(status: int) -> None:
    if status != SUCCESS:
        raise NcclError(status)


class NcclCommunicator:
    """Made for one process by ``CupyModule``; ``_state`` is the process."""

    _state: State

    def __init__(self, ndev: int, commId: Any, rank: int) -> None:  # noqa: N803 - as CuPy spells it
        self._comm = 0
        expected = bytes if self._state.cupy >= 14 else tuple
        if not isinstance(commId, expected):
            raise TypeError(
                f"Argument 'commId' has incorrect type (expected {expected.__name__}, "
                f"got {type(commId).__name__})"
            )
        raw = commId if isinstance(commId, bytes) else array("b", commId).tobytes()
        result, handle = self._state.init_rank(ndev, raw, rank)
        check_status(result)
        self._comm = handle

    @property
    def comm(self) -> int:
        return self._comm

    def __getattr__(self, name: str) -> Callable[..., None]:
        """``allReduce`` and the other calls that move data: as in C, but for the communicator."""
        if name not in MOVING:
            raise AttributeError(name)
        moved = partial(self._state.moved, MOVING[name], self._comm)
        return lambda *given: check_status(moved(given))

    def destroy(self) -> None:
        if self._comm:
            self._state.destroy(self._comm)
            self._comm = 0

    def abort(self) -> None:
        if self._comm:
            self._state.abort(self._comm)
            self._comm = 0


class CupyModule:
    """The module's functions and its communicators, for one process."""

    available = True
    NcclError = NcclError

    def __init__(self, state: State) -> None:
        self._state = state
        self.NcclCommunicator: Any = type("Own", (NcclCommunicator,), {"_state": state})

    def get_version(self) -> int:
        return self._state.world.version

    def get_build_version(self) -> int:
        return BUILD_VERSION

    def get_unique_id(self) -> Any:
        raw = new_unique_id()
        return (
            raw if self._state.cupy >= 14 else tuple(byte - 256 * (byte > 127) for byte in raw)
        )

    def groupStart(self) -> None:  # noqa: N802
        check_status(self._state.group_start())

    def groupEnd(self) -> None:  # noqa: N802
        check_status(self._state.group_end()[0])
