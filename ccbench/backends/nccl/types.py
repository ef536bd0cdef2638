"""What callers and NCCL's wrapper hand each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ccbench.backends.nccl.calls import INVALID_ARGUMENT, INVALID_USAGE, SUCCESS
from ccbench.cases import NO_OP, NO_ROOT
from ccbench.errors import CcbenchError
from ccbench.groups import Pair


class NcclFailed(CcbenchError):
    """A call of NCCL failed; the text has NCCL's own words. ``code``: ncclResult_t; ``call``: function."""

    def __init__(self, text: str, code: int, call: str) -> None:
        super().__init__(text)
        self.code = code
        self.call = call

    @property
    def refused(self) -> bool:
        """NCCL would not take what it was asked, such as an algorithm it does not have for the collective."""
        return self.code in (INVALID_ARGUMENT, INVALID_USAGE)


class NcclHung(CcbenchError):
    """A communicator did not get done within its time limit; it has not been aborted yet."""


class State(str, Enum):
    """What a communicator says of itself."""

    READY = "ready"
    IN_PROGRESS = "in progress"
    FAILED = "failed"
    ABORTED = "aborted"


@dataclass(frozen=True)
class Health:
    """A communicator's state. detail: NCCL's own words where it failed, else ''. code: its result."""

    state: State
    detail: str = ""
    code: int = SUCCESS


@dataclass(frozen=True)
class Settings:
    """How communicators are made.

    blocking: False lets calls return while NCCL still works on them, so that a hang can be noticed and ended;
    the wrapper then waits for every call itself, at most ``limit_seconds``.
    """

    blocking: bool = True
    limit_seconds: float = 60.0


@dataclass(frozen=True)
class Amounts:
    """Elements that a rank of an all_to_all_v sends to every rank, and gets from every rank."""

    sent: tuple[int, ...]
    received: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One rank's part of a collective.

    source and target: addresses on the rank's device; equal for what is done in place where NCCL says so (the
    rank's own block of the whole for all_gather, reduce_scatter, gather and scatter). count: elements, as in
    ``ccbench.cases.Case``. op: a name of ``calls.OPS``, or the number that ``Communicator.premultiplied``
    gave. pair: of send_recv, the two ranks instead of the ring. amounts: of all_to_all_v, this rank's.
    algorithms: those that this call may use, as NCCL_ALGO lists them; '' leaves it to NCCL.
    """

    collective: str
    source: int
    target: int
    count: int
    dtype: str
    op: str | int = NO_OP
    root: int = NO_ROOT
    pair: Pair | None = None
    amounts: Amounts | None = None
    algorithms: str = ""


@dataclass(frozen=True)
class Registration:
    """Memory that a communicator knows. held: what NCCL writes its handle into, when the group has ended."""

    address: int
    size_bytes: int
    symmetric: bool
    held: Any
