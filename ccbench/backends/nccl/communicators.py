"""Communicators: one rank's, and all communicators of the ranks that one process drives.

All are blocking. NCCL starts a thread for every launch on a communicator that does not block (src/group.cc),
which would be timed; so errors are asked for while streams are waited for, and a watchdog aborts what blocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ccbench.backends.base import ControlChannel
from ccbench.backends.nccl.library import (
    IN_PROGRESS,
    NO_COLOUR,
    SCALAR_ON_HOST,
    SUCCESS,
    WINDOW_SYMMETRIC,
    Nccl,
)
from ccbench.dtypes import numpy_dtype
from ccbench.groups import Groups


class Communicator:
    """One rank of a communicator; made by ``communicator_of`` and by ``split``.

    cupy: CuPy's NcclCommunicator, or None of a part of another one: then ``held`` is what NCCL writes the
    handle into, at the end of the group at the latest.
    """

    def __init__(self, nccl: Nccl, *, cupy: Any = None, held: ctypes.c_void_p | None = None) -> None:
        self.nccl = nccl
        self.cupy = cupy
        self._held = ctypes.c_void_p() if held is None else held  # one that holds nothing yet is false
        self._kept: list[ctypes.c_void_p] = []
        self._aborted = False

    @property
    def handle(self) -> int:
        """ncclComm_t; 0 before the group that makes it has ended, and after the end."""
        return int((self.cupy.comm if self.cupy is not None else self._held.value) or 0)

    @property
    def rank(self) -> int:
        """This rank's number in the communicator."""
        return self._asked("ncclCommUserRank")

    @property
    def ranks(self) -> int:
        """Number of ranks in the communicator."""
        return self._asked("ncclCommCount")

    def _asked(self, call: str) -> int:
        answer = ctypes.c_int(-1)
        self.check(self.nccl.function(call)(self.handle, ctypes.byref(answer)), call)
        return answer.value

    def check(self, code: int, call: str) -> None:
        """Raise NcclFailed with this communicator's last error unless ``code`` is ncclSuccess."""
        self.nccl.check(code, call, self.handle)

    def failure(self) -> str:
        """Return NCCL's own words for what has failed, '' where nothing has; never waits."""
        if self._aborted or not self.handle:
            return ""
        found = ctypes.c_int(SUCCESS)
        code = self.nccl.native.ncclCommGetAsyncError(self.handle, ctypes.byref(found))
        code = code if code != SUCCESS else found.value
        return "" if code in (SUCCESS, IN_PROGRESS) else self.nccl.words(code, self.handle)

    # -- operations, parts, memory -----------------------------------------------------------------------

    def premultiplied(self, scalar: float, dtype: str) -> int:
        """Return a new op: ``scalar`` times this rank's elements, then summed; ``release`` it at last."""
        number = self.nccl.dtype_number(dtype)
        value = np.asarray(scalar).astype(numpy_dtype(dtype)).reshape(1)
        made = ctypes.c_int(-1)
        create = self.nccl.function("ncclRedOpCreatePreMulSum")
        code = create(ctypes.byref(made), value.ctypes.data, number, SCALAR_ON_HOST, self.handle)
        self.check(code, "ncclRedOpCreatePreMulSum")
        return made.value

    def release(self, op: int) -> None:
        """Give up an op of ``premultiplied``; calls enqueued with it are not disturbed."""
        if self.handle:
            self.check(self.nccl.function("ncclRedOpDestroy")(op, self.handle), "ncclRedOpDestroy")

    def split(self, colour: int, key: int) -> Communicator | None:
        """Return a communicator of the ranks that give the same ``colour``, in the order of their keys.

        Every rank must call it; those with NO_COLOUR are in no part and get None. Where one thread has
        several ranks, in one group, after which the parts can be used.
        """
        held = ctypes.c_void_p()
        split = self.nccl.function("ncclCommSplit")
        self.check(split(self.handle, colour, key, ctypes.byref(held), None), "ncclCommSplit")
        if colour == NO_COLOUR:
            self._kept.append(held)  # NCCL writes into it when the group ends
            return None
        return Communicator(self.nccl, held=held)

    def register(self, address: int, size_bytes: int, symmetric: bool) -> ctypes.c_void_p:
        """Let NCCL use a buffer directly instead of copying through its own; return what it knows it by.

        It is written when the group has ended, and stays empty where NCCL cannot use the buffer.

        symmetric: all ranks must register as much, at the same place of the order of registrations, of memory
        from ``Nccl.allocate``; where one thread has several ranks, in one group. CannotRun where this NCCL
        cannot.
        """
        handle = ctypes.c_void_p()
        name = "ncclCommWindowRegister" if symmetric else "ncclCommRegister"
        more = (WINDOW_SYMMETRIC,) if symmetric else ()
        function = self.nccl.function(name)
        self.check(function(self.handle, address, size_bytes, ctypes.byref(handle), *more), name)
        return handle

    def deregister(self, registered: ctypes.c_void_p, symmetric: bool) -> None:
        """End a registration, before its memory is given back."""
        name = "ncclCommWindowDeregister" if symmetric else "ncclCommDeregister"
        if registered.value and self.handle:
            self.check(self.nccl.function(name)(self.handle, registered.value), name)

    # -- the end -----------------------------------------------------------------------------------------

    def abort(self) -> None:
        """End everything that runs, at once; the communicator is gone. May itself hang."""
        self._end("abort", self.nccl.native.ncclCommAbort)

    def destroy(self) -> None:
        """Give the communicator up after everything enqueued is over; safe to call twice."""
        if self.failure():
            # NCCL does not destroy one that has failed: it would leave the thread in a group
            # (ncclCommEnsureReady of src/init.cc).
            self.abort()
        else:
            self._end("destroy", self.nccl.native.ncclCommDestroy)

    def _end(self, by_cupy: str, native: Callable[[int], int]) -> None:
        handle = self.handle
        if not handle or self._aborted:
            return
        self._aborted = by_cupy == "abort"
        if self.cupy is not None:
            getattr(self.cupy, by_cupy)()
            return
        self._held.value = None
        code = native(handle)
        if not self._aborted:
            self.nccl.check(code, "ncclCommDestroy")


def communicators_of(nccl: Nccl, devices: Sequence[int]) -> list[Communicator]:
    """Return one communicator for each device, in rank order, all in this process.

    As ncclCommInitAll makes them (NVIDIA/nccl, src/init.cc), which CuPy calls without letting go of the
    interpreter: nobody could act while it hangs.
    """
    begun: list[Communicator] = []
    unique_id = nccl.unique_id()
    try:
        with nccl.group():
            for rank, device in enumerate(devices):
                begun.append(communicator_of(nccl, len(devices), unique_id, rank, device))
    except BaseException:
        for communicator in begun:  # nobody else knows them
            communicator.abort()
        raise
    return begun


def communicator_of(nccl: Nccl, ranks: int, unique_id: bytes, rank: int, device: int) -> Communicator:
    """Return this process's communicator as ``rank`` of ``ranks``, when all have come."""
    nccl.runtime.setDevice(device)
    kind = nccl.module.NcclCommunicator
    try:
        try:
            return Communicator(nccl, cupy=kind(ranks, unique_id, rank))
        except TypeError:  # before 14
            signed = tuple(byte - 256 * (byte > 127) for byte in unique_id)
            return Communicator(nccl, cupy=kind(ranks, signed, rank))
    except Exception as error:
        raise nccl.failure(error, "ncclCommInitRank") from None


MOST_KEPT = 16
"""Groupings whose communicators are kept besides that of all ranks: more than a suite measures in turn, and
each takes memory of its devices."""

ByRank = dict[int, Communicator]
"""Communicators of this process's ranks, by their rank in the team."""


class Communicators:
    """All communicators of this process's ranks. Collective: every process asks for the same in turn.

    devices: the device of each of the team's ranks that this process drives.
    """

    def __init__(self, nccl: Nccl, devices: Mapping[int, int], ranks: int, exchange: ControlChannel) -> None:
        self._nccl = nccl
        self._devices = dict(devices)
        self._exchange = exchange
        self._made: dict[tuple[int, Groups], ByRank] = {}
        self._all: Groups = (tuple(range(ranks)),)
        self._world = (0, self._all)

    def world(self) -> ByRank:
        """Return those of all ranks together; made the first time, and again after ``abort``."""
        if self._world not in self._made:
            self._made[self._world] = self._new(self._all[0])
        return self._made[self._world]

    def of(self, stream: int, groups: Groups) -> ByRank:
        """Return those of ``groups``, () for all ranks together; each stream has communicators of its own."""
        key = (stream, groups or self._all)
        world = self.world()  # it is one of those asked for, or what they are split from
        if key == self._world:
            return world
        if key not in self._made:
            # Give up what was used longest ago; nothing of it may run. Every process gives up the same.
            kept = [one for one in self._made if one != self._world]
            for oldest in kept[: max(0, len(kept) - MOST_KEPT + 1)]:
                for communicator in self._made.pop(oldest).values():
                    communicator.destroy()
            self._made[key] = self._split(key[1])
        self._made[key] = self._made.pop(key)  # last, so that what was used longest ago comes first
        return self._made[key]

    def _new(self, members: tuple[int, ...]) -> ByRank:
        """Return a communicator of ``members`` by a unique id, which the process of the first one makes."""
        own = [rank for rank in members if rank in self._devices]
        if len(own) == len(members):
            made = communicators_of(self._nccl, [self._devices[rank] for rank in own])
            return dict(zip(own, made, strict=True))
        # Where processes drive one rank each, the first member's number is its process's.
        starts = members[0] in self._devices
        unique_id = self._exchange.broadcast(self._nccl.unique_id() if starts else None, members[0])
        made = [
            communicator_of(self._nccl, len(members), unique_id, members.index(rank), self._devices[rank])
            for rank in own
        ]
        return dict(zip(own, made, strict=True))

    def _split(self, groups: Groups) -> ByRank:
        world = self.world()
        if not self._nccl.has("ncclCommSplit"):
            return {rank: one for members in groups for rank, one in self._new(members).items()}
        places = {
            rank: (number, members.index(rank)) for number, members in enumerate(groups) for rank in members
        }
        with self._nccl.group():
            parts = {rank: one.split(*places.get(rank, (NO_COLOUR, 0))) for rank, one in world.items()}
        return {rank: part for rank, part in parts.items() if part}

    def every(self) -> list[Communicator]:
        """Return all that there are."""
        return [one for by_rank in self._made.values() for one in by_rank.values()]

    def failures(self) -> list[str]:
        """Return what NCCL says of communicators that failed, each once."""
        return list(dict.fromkeys(filter(None, (one.failure() for one in self.every()))))

    def abort(self) -> None:
        """End everything that runs on any of them, and forget them."""
        self._end(Communicator.abort)

    def close(self) -> None:
        """Give all up after what runs has ended."""
        self._end(Communicator.destroy)

    def _end(self, how: Callable[[Communicator], None]) -> None:
        ending = self.every()
        self._made.clear()
        for communicator in reversed(ending):  # parts before what they were split from
            with suppress(Exception):  # one that does not end must not keep the others from it
                how(communicator)
