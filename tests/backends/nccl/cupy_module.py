"""``cupy.cuda.nccl`` of NCCL's double, with the signatures and the quirks of CuPy 13 and 14."""

from __future__ import annotations

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
        if isinstance(commId, tuple) and not all(-128 <= byte <= 127 for byte in commId):
            raise OverflowError("value too large to convert to char")
        raw = commId if isinstance(commId, bytes) else bytes(byte & 0xFF for byte in commId)
        result, handle = self._state.init_rank(ndev, raw, rank)
        check_status(result)
        self._comm = handle

    @property
    def comm(self) -> int:
        return self._comm

    def _call(self, name: str, *arguments: int) -> None:
        """Arguments are source, target, count, type, op or -1, root or peer or -1, stream."""
        source, target, count, dtype, op, peer, stream = arguments
        check_status(
            self._state.collective(
                name, (source, target, count, dtype, op, peer), self._comm, stream
            )
        )

    def allReduce(  # noqa: N802
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        self._call("ncclAllReduce", sendbuf, recvbuf, count, datatype, op, -1, stream)

    def reduce(
        self,
        sendbuf: int,
        recvbuf: int,
        count: int,
        datatype: int,
        op: int,
        root: int,
        stream: int,
    ) -> None:
        self._call("ncclReduce", sendbuf, recvbuf, count, datatype, op, root, stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        self._call("ncclBroadcast", sendbuff, recvbuff, count, datatype, -1, root, stream)

    def reduceScatter(  # noqa: N802
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        self._call("ncclReduceScatter", sendbuf, recvbuf, recvcount, datatype, op, -1, stream)

    def allGather(  # noqa: N802
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int
    ) -> None:
        self._call("ncclAllGather", sendbuf, recvbuf, count, datatype, -1, -1, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call("ncclSend", sendbuf, 0, count, datatype, -1, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call("ncclRecv", 0, recvbuf, count, datatype, -1, peer, stream)

    def destroy(self) -> None:
        if self._comm:
            self._state.destroy(self._comm)
            self._comm = 0

    def abort(self) -> None:
        if self._comm:
            self._state.abort(self._comm)
            self._comm = 0


def holds_the_interpreter(devices: Any) -> list[Any]:
    raise AssertionError(
        "CuPy waits in ncclCommInitAll with the GIL held: no thread could end what hangs"
    )


class CupyModule:
    """The module's functions and its communicators, for one process."""

    available = True
    NcclError = NcclError

    def __init__(self, state: State) -> None:
        self._state = state
        kind = type("NcclCommunicator", (NcclCommunicator,), {"_state": state})
        self.NcclCommunicator: Any = kind
        kind.initAll = staticmethod(holds_the_interpreter)  # type: ignore[attr-defined]

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
