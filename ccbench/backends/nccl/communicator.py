"""A rank's communicator: ccbench's collectives in NCCL's calls, parts of communicators, registered memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ccbench.backends.nccl.calls import (
    IN_PROGRESS,
    NO_COLOUR,
    SCALAR_ON_HOST,
    SUCCESS,
    WINDOW_SYMMETRIC,
    algorithm_config,
)
from ccbench.backends.nccl.library import Nccl
from ccbench.backends.nccl.steps import steps
from ccbench.backends.nccl.types import (
    Call,
    Health,
    NcclFailed,
    NcclHung,
    Registration,
    Settings,
    State,
)
from ccbench.dtypes import numpy_dtype
from ccbench.units import format_seconds

BY_CUPY = {
    "ncclAllReduce": "allReduce",
    "ncclReduce": "reduce",
    "ncclBroadcast": "broadcast",
    "ncclAllGather": "allGather",
    "ncclReduceScatter": "reduceScatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
"""Methods of CuPy's NcclCommunicator; arguments are the C function's without the communicator."""

TRANSFERS = frozenset({"ncclSend", "ncclRecv", "ncclAlltoAll", "ncclGather", "ncclScatter"})

SPIN_SECONDS = 1e-3
PAUSE_SECONDS = 1e-3
"""Waiting looks without a pause for so long, then with one."""


class Communicator:
    """One rank of a communicator, on ``device``; made by ``Nccl`` and by ``split``.

    cupy: CuPy's NcclCommunicator, or None where NCCL was asked by ctypes: then ``held`` is what NCCL writes
    the handle into, at the end of the group at the latest. kept: what must stay alive until then. spoilt: a
    group of its transfers was dropped.
    """

    def __init__(
        self,
        nccl: Nccl,
        settings: Settings,
        device: int,
        *,
        cupy: Any = None,
        held: ctypes.c_void_p | None = None,
        kept: Any = None,
    ) -> None:
        self.nccl = nccl
        self.settings = settings
        self.device = device
        self._cupy = cupy
        self._held = held
        self._kept = kept
        self._rank = -1
        self._ranks = -1
        self._aborted = False
        self.spoilt = False

    # -- what it is --------------------------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """ncclComm_t; 0 before the group that makes it has ended, and after the end."""
        return int((self._cupy.comm if self._cupy is not None else self._held and self._held.value) or 0)

    @property
    def rank(self) -> int:
        """This rank's number in the communicator."""
        if self._rank < 0:
            self._rank = self._asked("ncclCommUserRank")
        return self._rank

    @property
    def ranks(self) -> int:
        """How many ranks the communicator has."""
        if self._ranks < 0:
            self._ranks = self._asked("ncclCommCount")
        return self._ranks

    def _asked(self, call: str) -> int:
        answer = ctypes.c_int(-1)
        self.nccl.check(self.nccl.function(call)(self.handle, ctypes.byref(answer)), call, self.handle)
        return answer.value

    # -- state -------------------------------------------------------------------------------------------

    def poll(self) -> Health:
        """What NCCL says now; never waits."""
        if self._aborted:
            return Health(State.ABORTED)
        if not self.handle:
            return Health(State.IN_PROGRESS)
        if self.spoilt:
            return Health(State.FAILED, "a group of transfers failed, which NCCL has not connected since")
        found = ctypes.c_int(SUCCESS)
        code = self.nccl.native.ncclCommGetAsyncError(self.handle, ctypes.byref(found))
        code = code if code != SUCCESS else found.value
        if code == SUCCESS:
            return Health(State.READY)
        if code == IN_PROGRESS:
            return Health(State.IN_PROGRESS)
        return Health(State.FAILED, self.nccl.words(code, self.handle), code)

    def settle(self, limit_seconds: float | None = None) -> None:
        """Wait until NCCL has taken everything asked for; at once where calls block.

        limit_seconds: else that of the settings. NcclFailed with NCCL's words; NcclHung after the limit.
        """
        limit = self.settings.limit_seconds if limit_seconds is None else limit_seconds
        began = time.monotonic()
        while (health := self.poll()).state is State.IN_PROGRESS:
            waited = time.monotonic() - began
            if waited > limit:
                raise NcclHung(
                    f"NCCL is still at it after {format_seconds(limit)}: another rank has not come, or hangs"
                )
            if waited > SPIN_SECONDS:
                time.sleep(PAUSE_SECONDS)
        if health.state is State.FAILED:
            raise NcclFailed(health.detail, health.code, "ncclCommGetAsyncError")

    # -- collectives -------------------------------------------------------------------------------------

    def enqueue(self, call: Call, stream: int) -> None:
        """Enqueue this rank's part of a collective; see ``prepared``."""
        self.prepared(call, stream)()

    def prepared(self, call: Call, stream: int) -> Callable[[], None]:
        """What enqueues ``call`` on ``stream`` each time it is called, with everything looked up before.

        It raises NcclFailed with NCCL's words. Here: UsageError, and CannotRun for what this NCCL lacks.
        """
        parts: list[tuple[str, Callable[[], None]]] = [
            (name, partial(self._bound(name, call.algorithms), *arguments))
            for name, arguments in steps(self.nccl, self.rank, self.ranks, call, stream)
        ]
        if len(parts) == 1:
            return partial(self._one, *parts[0])
        return partial(self._several, parts)

    def _one(self, name: str, step: Callable[[], None]) -> None:
        if name in TRANSFERS:
            self.nccl.transferring.add(self)
        try:
            step()
        except NcclFailed:
            raise
        except Exception as error:
            raise self.nccl.failure(error, name) from None
        self.nccl.touched(self)

    def _several(self, parts: list[tuple[str, Callable[[], None]]]) -> None:
        if parts:
            with self.nccl.group():
                for name, step in parts:
                    self._one(name, step)

    def _bound(self, name: str, algorithms: str) -> Callable[..., None]:
        if algorithms:
            name, config = f"{name}Config", algorithm_config(algorithms)
            return partial(self._native, name, self.nccl.function(name), (ctypes.byref(config),))
        if self._cupy is not None and name in BY_CUPY:
            method: Callable[..., None] = getattr(self._cupy, BY_CUPY[name])
            return method
        return partial(self._native, name, self.nccl.function(name), ())

    def _native(self, name: str, function: Any, config: tuple[Any, ...], *arguments: int) -> None:
        handle = self.handle
        self.nccl.check(function(*arguments[:-1], handle, arguments[-1], *config), name, handle)

    # -- operations, parts, memory -----------------------------------------------------------------------

    def premultiplied(self, scalar: float, dtype: str) -> int:
        """A new op, ``scalar`` times this rank's elements, then summed; ``release`` it at last."""
        number = self.nccl.dtype_number(dtype)
        value = np.asarray(scalar).astype(numpy_dtype(dtype)).reshape(1)
        made = ctypes.c_int(-1)
        create = self.nccl.function("ncclRedOpCreatePreMulSum")
        code = create(ctypes.byref(made), value.ctypes.data, number, SCALAR_ON_HOST, self.handle)
        self.nccl.check(code, "ncclRedOpCreatePreMulSum", self.handle)
        return made.value

    def release(self, op: int) -> None:
        """Give up an op of ``premultiplied``; calls enqueued with it are not disturbed."""
        if self.handle:
            code = self.nccl.function("ncclRedOpDestroy")(op, self.handle)
            self.nccl.check(code, "ncclRedOpDestroy", self.handle)

    def split(self, colour: int, key: int) -> Communicator | None:
        """A communicator of the ranks that give the same ``colour``, in the order of their keys.

        Every rank must call it; those with NO_COLOUR are in no part and get None. Where one thread has
        several ranks, in one group, after which the parts can be used.
        """
        held = ctypes.c_void_p()
        part = Communicator(self.nccl, self.settings, self.device, held=held)
        call = self.nccl.function("ncclCommSplit")
        code = call(self.handle, colour, key, ctypes.byref(held), None)
        self.nccl.check(code, "ncclCommSplit", self.handle)
        self.nccl.touched(self)
        if colour == NO_COLOUR:
            self._kept = (self._kept, held)  # NCCL writes into it when the group ends
            return None
        self.nccl.touched(part)
        return part

    def register(self, address: int, size_bytes: int, symmetric: bool = False) -> Registration:
        """Let NCCL use a buffer directly instead of copying through its own.

        symmetric: all ranks must register as much, at the same place of the order of registrations, of memory
        from ``Nccl.allocate``; where one thread has several ranks, in one group. CannotRun where this NCCL
        cannot.
        """
        held = ctypes.c_void_p()
        name = "ncclCommWindowRegister" if symmetric else "ncclCommRegister"
        more = (WINDOW_SYMMETRIC,) if symmetric else ()
        call = self.nccl.function(name)
        code = call(self.handle, address, size_bytes, ctypes.byref(held), *more)
        self.nccl.check(code, name, self.handle)
        self.nccl.touched(self)
        return Registration(address, size_bytes, symmetric, held)

    def deregister(self, registration: Registration) -> None:
        """End a registration, before its memory is given back."""
        name = "ncclCommWindowDeregister" if registration.symmetric else "ncclCommDeregister"
        if registration.held.value and self.handle:  # NCCL gives none where it cannot use the buffer directly
            code = self.nccl.function(name)(self.handle, registration.held.value)
            self.nccl.check(code, name, self.handle)

    # -- the end -----------------------------------------------------------------------------------------

    def abort(self) -> None:
        """End everything that runs, at once; the communicator is gone. May itself hang: see the watchdog."""
        if not self.handle or self._aborted:
            return
        if self._cupy is not None:
            self._cupy.abort()
        else:
            handle = self.handle
            if self._held is not None:
                self._held.value = None
            self.nccl.native.ncclCommAbort(handle)
        self._aborted = True

    def finalize(self) -> None:
        """Where calls do not block: begin the end. ``destroy`` must follow."""
        if self.handle and not (self._aborted or self.settings.blocking or self._abort_failed()):
            code = self.nccl.function("ncclCommFinalize")(self.handle)
            self.nccl.check(code, "ncclCommFinalize", self.handle)

    def _abort_failed(self) -> bool:
        """Abort a communicator that has failed, which NCCL neither finalizes nor destroys; whether it has.

        ncclCommDestroy would leave the thread in a group (ncclCommEnsureReady of src/init.cc).
        """
        failed = self.poll().state is State.FAILED
        if failed:
            self.abort()
        return failed

    def destroy(self) -> None:
        """Give the communicator up after everything enqueued is over; safe to call twice."""
        if not self.handle or self._aborted:
            return
        if not self.settings.blocking:
            with suppress(NcclFailed):  # what failed has been said; it ends all the same
                self.settle()
        if self._abort_failed():
            return
        if self._cupy is not None:
            self._cupy.destroy()
            return
        handle = self.handle
        if self._held is not None:
            self._held.value = None
        self.nccl.check(self.nccl.native.ncclCommDestroy(handle), "ncclCommDestroy")
