"""NCCL on a CPU: what stands in for ``cupy.cuda.nccl`` and for the library's C functions, moving real bytes.

Semantics are those of NCCL's user guide: groups defer, one thread with several ranks must use one, calls on
a stream run in order and when all ranks have come, errors are ncclResult_t. What would hang is reported: the
call fails with words that begin with "deadlock". The C functions are real C function pointers, so that
structures and handles cross the same border as with the library.

    world = World(devices=4, version=22809)
    process = Process(world)  # one for each process that is played, on a thread of its own where several wait
    nccl, runtime = process.nccl, process.runtime
"""

from __future__ import annotations

from functools import cached_property

from ccbench.backends.nccl.dialects import NCCL
from ccbench.backends.nccl.library import Library
from tests.backends.cuda.streams import World

from .cupy_module import CupyModule
from .devices import WorldRuntime
from .functions import NativeLibrary
from .process import Member, State

__all__ = ["Member", "NativeLibrary", "Process", "World", "WorldRuntime"]


class Process(State):
    """One process, with all that ccbench's wrapper needs of it."""

    @cached_property
    def native(self) -> NativeLibrary:
        """The C library."""
        return NativeLibrary(self)

    @cached_property
    def module(self) -> CupyModule:
        """``cupy.cuda.nccl``."""
        return CupyModule(self)

    @cached_property
    def nccl(self) -> Library:
        """ccbench's NCCL upon this double."""
        return Library(NCCL, self.native, self.module, self.runtime)

    def members_of(self, device: int) -> list[Member]:
        """This process's ranks on ``device``, to make them hang or fail."""
        return [member for member in self.members.values() if member.device == device]
