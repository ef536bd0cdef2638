"""The C functions of NCCL's double, as ctypes gives them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from ccbench.backends.nccl.dialects import CONFIGURABLE, NCCL, CollectiveConfig
from ccbench.backends.nccl.library import (
    CONFIG_MAGIC,
    NO_COLOUR,
    SIMULATION_MAGIC,
)
from ccbench.dtypes import numpy_dtype
from tests.backends.cuda.emulated import CudaError

from .clique import DTYPE_NAMES, Reduction
from .process import (
    ALGORITHM_TAGS,
    INTERNAL,
    INVALID_ARGUMENT,
    MEANINGS,
    OWN_ARGUMENTS,
    SUCCESS,
    UNHANDLED_CUDA,
    Group,
    Member,
    State,
)


class NativeLibrary:
    """The C functions of the world's NCCL version, as ctypes gives them; later ones are not there."""

    def __init__(self, process: State) -> None:
        self._process = process
        functions = Functions(process)
        for name, row in NCCL.functions.items():
            if process.world.version >= row.since:
                kind = ctypes.CFUNCTYPE(
                    ctypes.c_void_p if row.is_text else ctypes.c_int, *row.types
                )
                setattr(self, name, kind(guarded(process, getattr(functions, name))))


def guarded(process: State, function: Callable[..., int | None]) -> Callable[..., int]:
    """An exception cannot cross C: it is kept, and the call fails. What NCCL forbids is one, too."""

    def call(*arguments: Any) -> int:
        try:
            return function(*arguments) or SUCCESS
        except Exception as error:
            process.exceptions.append(error)
            return process.fail(INTERNAL, f"the double failed: {error!r}")

    return call


class Functions:
    """What the C functions do; names and arguments are the header's."""

    def __init__(self, process: State) -> None:
        self.p = process
        self.ncclCommDestroy, self.ncclCommAbort = process.destroy, process.abort
        self.ncclGroupStart = process.group_start

    def _text(self, text: bytes) -> int:
        held = self.p.texts.setdefault(text, ctypes.create_string_buffer(text))
        return ctypes.addressof(held)

    def ncclGetVersion(self, version: Any) -> None:  # noqa: N802
        version[0] = self.p.world.version

    def ncclGetErrorString(self, result: int) -> int:  # noqa: N802
        return self._text(MEANINGS.get(result, "unknown result code").encode())

    def ncclGetLastError(self, comm: int | None) -> int:  # noqa: N802
        return self._text(self.p.last_error)

    # -- communicators -------------------------------------------------------------------------------------

    def ncclCommSplit(  # noqa: N802
        self, comm: int, colour: int, key: int, held: Any, config: int | None
    ) -> int:
        member = self.p.ready(comm)
        assert colour >= NO_COLOUR
        brought, what = self._meet(member, "split", (colour, key))
        where = ctypes.addressof(held.contents)

        def split(group: Group) -> int:
            assert self.p.world.wait_until(lambda: len(brought) == member.clique.ranks, what)
            holder = ctypes.c_void_p.from_address(where)
            if colour == NO_COLOUR:
                holder.value = None
                return SUCCESS
            part, ranks = member.clique.part(brought, colour)
            rank = ranks.index(member.rank)
            result, holder.value = self.p.join(part, rank, member.device, group)
            return result

        return self._later(split)

    def _meet(self, member: Member, kind: str, mine: Any) -> tuple[dict[int, Any], str]:
        """What ranks bring to the same call, of which this is one; and words for who waits for others."""
        number = member.met.get(kind, 0)
        member.met[kind] = number + 1
        with self.p.world.changed:
            brought = member.clique.brought[kind, number]
            brought[member.rank] = mine
            self.p.world.changed.notify_all()
        return brought, f"the {kind} of rank {member.rank} waits for others"

    def _later(self, work: Callable[[Group], int]) -> int:
        """When the group ends, which is now where there is none."""

        def remember() -> int:
            self.p.group.later.append(work)
            return SUCCESS

        return self.p.alone(remember)

    def ncclCommCount(self, comm: int, answer: Any) -> int:  # noqa: N802
        return self._answer(comm, answer, lambda member: member.clique.ranks)

    def ncclCommUserRank(self, comm: int, answer: Any) -> int:  # noqa: N802
        return self._answer(comm, answer, lambda member: member.rank)

    def _answer(self, comm: int, answer: Any, ask: Callable[[Member], int]) -> int:
        answer[0] = ask(self.p.ready(comm))
        return SUCCESS

    def ncclCommGetAsyncError(self, comm: int, answer: Any) -> None:  # noqa: N802
        member = self.p.member(comm)
        self.p.world.advance()
        answer[0] = member.state

    # -- memory and ops ------------------------------------------------------------------------------------

    def ncclMemAlloc(self, held: Any, size: int) -> int:  # noqa: N802
        try:
            address = self.p.runtime.malloc(size)
        except CudaError:
            return self.p.fail(UNHANDLED_CUDA, "Cuda failure 2 'out of memory'")
        self.p.nccl_memory[address] = size
        held[0] = address
        return SUCCESS

    def ncclMemFree(self, address: int) -> None:  # noqa: N802
        for member in self.p.members.values():
            assert address not in (*member.registered.values(), *member.in_graphs)
        del self.p.nccl_memory[address]
        self.p.runtime.free(address)

    def ncclCommRegister(self, comm: int, address: int, size: int, held: Any) -> None:  # noqa: N802
        member = self.p.ready(comm)
        if self.p.registers:
            held[0] = handle = next(self.p.world.handles)
            member.registered[handle] = address

    def ncclCommDeregister(self, comm: int, handle: int) -> None:  # noqa: N802
        member = self.p.ready(comm)
        del member.registered[handle]

    ncclCommWindowDeregister = ncclCommDeregister  # noqa: N815

    def ncclCommWindowRegister(  # noqa: N802
        self, comm: int, address: int, size: int, held: Any, flags: int
    ) -> int:
        member = self.p.ready(comm)
        if not self.p.registers:
            return SUCCESS
        assert address in self.p.nccl_memory
        sizes, what = self._meet(member, "window", size)
        handle, where = next(self.p.world.handles), ctypes.addressof(held.contents)
        member.registered[handle] = address

        def window(_: Group) -> int:
            assert self.p.world.wait_until(lambda: len(sizes) == member.clique.ranks, what)
            assert len(set(sizes.values())) == 1
            ctypes.c_void_p.from_address(where).value = handle
            return SUCCESS

        return self._later(window)

    def ncclRedOpCreatePreMulSum(  # noqa: N802
        self, held: Any, scalar: int, dtype: int, residence: int, comm: int
    ) -> None:
        member = self.p.ready(comm)
        kind = numpy_dtype(DTYPE_NAMES[dtype])
        value = np.frombuffer(ctypes.string_at(scalar, kind.itemsize), kind)[0]
        held[0] = number = next(self.p.world.handles)
        member.ops[number] = Reduction("premulsum", value)

    def ncclRedOpDestroy(self, op: int, comm: int) -> None:  # noqa: N802
        member = self.p.ready(comm)
        del member.ops[op]

    # -- parameters ----------------------------------------------------------------------------------------

    def ncclParamGetAllParameterKeys(self, table: Any, count: Any) -> None:  # noqa: N802
        keys = self.p.parameters
        table[0], count[0] = (ctypes.c_char_p * len(keys))(*keys), len(keys)
        self.p.texts[b"keys"] = table[0]

    def ncclParamGetParameter(self, key: bytes, value: Any, length: Any) -> None:  # noqa: N802
        value[0], length[0] = self.p.parameters[key], len(self.p.parameters[key])

    # -- groups and collectives ----------------------------------------------------------------------------

    def ncclGroupEnd(self) -> int:  # noqa: N802
        return self.p.group_end()[0]

    def ncclGroupSimulateEnd(self, info: Any) -> int:  # noqa: N802
        size = ctypes.sizeof(info.contents)
        assert (info.contents.magic, info.contents.size) == (SIMULATION_MAGIC, size)
        result, seconds = self.p.group_end(simulate=True)
        info.contents.estimated_time = seconds * 1e6 if seconds > 0 else -1.0
        return result

    def __getattr__(self, name: str) -> Callable[..., int]:
        """Calls that move data; with a CollectiveConfig, once what they are given is looked at."""
        if name in OWN_ARGUMENTS:
            return lambda *given: self.p.moved(name, given[-2], (*given[:-2], given[-1]))
        plain, ending, rest = name.rpartition("Config")
        if plain not in CONFIGURABLE or ending + rest != "Config":
            raise AttributeError(name)

        def configured(*arguments: int) -> int:
            settings = CollectiveConfig.from_address(arguments[-1])
            assert settings.magic == CONFIG_MAGIC
            assert settings.size >= ctypes.sizeof(CollectiveConfig)
            algorithms = (settings.algSelection or b"").decode()
            tags = {tag for tag in ALGORITHM_TAGS if tag.startswith(algorithms.upper())}
            if algorithms and not tags & self.p.algorithms:
                return self.p.fail(
                    INVALID_ARGUMENT,
                    f'algSelection "{algorithms}" cannot be honored for {plain}',
                )
            return int(getattr(self, plain)(*arguments[:-1]))

        return configured
