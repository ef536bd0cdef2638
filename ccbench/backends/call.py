"""The user's own collectives: an algorithm ``FILE.py:FUNCTION`` is a callable ``(tensor, group) -> tensor or None``.

A file says with a line ``TENSORS = "torch"`` what its functions take; without, they take NumPy arrays.

- numpy: ``group`` is a ``RankGroup``: a number, a barrier, and every rank's buffers, which lie in memory that the
  ranks of one host share.
- torch: a tensor of the host, and the default group of ``torch.distributed``, whose backend is Gloo.
- torch.cuda, cupy: backend ``call-cuda`` (``call_cuda``).

Out of place the callable returns the result and leaves the tensor as it was; in place it leaves the result in the
tensor. Each rank is a process, and each file has ranks of its own. Timed is nothing but the call. What the timed calls
left is checked against ccbench's reference, and so are the input and the memory around the buffers. A rank that raises
is named with file and line. The file is loaded by the ranks alone; rows keep its digest as the library's version.
"""

from __future__ import annotations

import inspect
import mmap
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import (
    Backend,
    CannotRun,
    ControlChannel,
    Environment,
    TeamLaunch,
    TeamRequest,
    gathered,
)
from ccbench.backends.control_block import fence
from ccbench.backends.rank_endpoint import STAGGER_BYTES, HostMemory, RankBuffers, RankEndpoint
from ccbench.cases.axes import Case
from ccbench.cases.callables import digest_of, file_of, tensors_of
from ccbench.cases.capabilities import capabilities_of
from ccbench.errors import CcbenchError
from ccbench.machine.software import install_line
from ccbench.verification import Array, Mismatch

T = TypeVar("T")

NUMPY, TORCH = "numpy", "torch"

FILE_VARIABLE = "_CCBENCH_CALL_FILE"
"""The file of a team's callables."""

GUARD_BYTES = 4096
GUARD = 0xA5
"""On both sides of each buffer."""

COUNTERS_APART = 8
"""Counters of a barrier lie on cache lines of their own, of 64 bytes."""


class Shared:
    """Memory without a name that other processes of this host map; it goes with the last of them."""

    def __init__(self, size_bytes: int) -> None:
        self._descriptor = os.memfd_create("ccbench-call")
        os.ftruncate(self._descriptor, size_bytes)
        self.bytes = np.frombuffer(mmap.mmap(self._descriptor, size_bytes), np.uint8)
        # Who maps it later opens it here.
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def __del__(self) -> None:
        os.close(self._descriptor)


def mapped(path: str) -> NDArray[np.uint8]:
    """Map another process's memory, whole."""
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


class GuardedMemory(HostMemory):
    """Buffers in memory that other ranks can map, between guards that no callable may touch."""

    def __init__(self, endpoint: RankEndpoint) -> None:
        super().__init__(endpoint)
        self.taken: list[tuple[Shared, int, int]] = []

    def new_buffer(
        self, elements: int, dtype: np.dtype[Any], number: int, misalignment_bytes: int
    ) -> Array:
        """Return a buffer with a guard on both sides."""
        size_bytes = elements * dtype.itemsize
        begin = GUARD_BYTES + number * STAGGER_BYTES + misalignment_bytes
        shared = Shared(begin + size_bytes + GUARD_BYTES)
        shared.bytes[:] = GUARD
        self.taken.append((shared, begin, size_bytes))
        return shared.bytes[begin : begin + size_bytes].view(dtype)

    def check_guards(self, who: str) -> None:
        """Raise CcbenchError where something was written beside a buffer."""
        for shared, begin, size_bytes in self.taken:
            inside = slice(begin, begin + size_bytes)
            if np.delete(shared.bytes, inside).tobytes().strip(bytes([GUARD])):
                raise beside_a_buffer(who, size_bytes)

    def release(self) -> None:
        """Give the buffers back."""
        self.taken.clear()


def beside_a_buffer(who: str, size_bytes: int) -> CcbenchError:
    """Return what is said of a callable that writes where it must not."""
    return CcbenchError(
        f"{who} wrote beside a buffer of {size_bytes} bytes; keep to the tensor"
    )


class RankGroup:
    """What a callable on NumPy arrays is given.

    rank, ranks: this rank's number, and how many there are. inputs, outputs: every rank's buffers, by rank; one
    array in place. A callable reads and writes them as it likes, and waits for others in ``barrier``, which is
    the processes', not their GPUs'. all_gather: bytes of this rank -> those of all, such as handles of memory.
    """

    def __init__(
        self,
        rank: int,
        counters: NDArray[np.int64],
        all_gather: Callable[[bytes], Sequence[bytes]],
        came: Callable[[], None],
    ) -> None:
        """counters: by rank, in memory that all share. came: tells the watchdog that this rank is in a barrier."""
        self._came = came
        self.rank, self.ranks, self.all_gather = rank, len(counters), all_gather
        self.inputs: Sequence[Any] = ()
        self.outputs: Sequence[Any] = ()
        self._counters, self._turn = counters[:, 0], 0

    def restart(self) -> None:
        """Forget what ranks have counted; none is in a barrier."""
        self._counters[self.rank] = self._turn = 0

    def barrier(self) -> None:
        """Return when every rank has called it as often as this one."""
        self._came()
        self._turn += 1
        counters, turn = self._counters, self._turn
        fence()  # what was written before is seen by whoever sees the count
        counters[self.rank] = turn
        while counters.min() < turn:
            os.sched_yield()
        fence()


class CallBuffers(RankBuffers):
    """A lane whose result is what the callable returned. returned: of the last launch."""

    returned: Any = None
    name = ""
    _unwritten = b""

    def poison(self) -> None:
        """Make the output wrong everywhere, and forget what was returned."""
        super().poison()
        self.returned, self._unwritten = None, self._first_element()

    def _first_element(self) -> bytes:
        return self._memory.read(self.output[:1]).tobytes()

    def read(self) -> Array:
        """Return the result of the last launch. Raises CannotRun and CcbenchError where it is none."""
        if self.returned is None:
            if not self.case.in_place and self._first_element() == self._unwritten:
                raise CannotRun(
                    f"{self.name} returns nothing and leaves the output: it works in place"
                )
            return super().read()
        if not hasattr(self.returned, "dtype"):
            raise CcbenchError(
                f"{self.name} returned a {type(self.returned).__name__}, expected a tensor"
            )
        result = as_array(self.returned, self.output.dtype).reshape(-1)
        if len(result) != len(self.output) or result.dtype != self.output.dtype:
            raise CcbenchError(
                f"{self.name} returned {len(result)} elements of {result.dtype}, expected {len(self.output)} of "
                f"{self.output.dtype}"
            )
        if self.case.in_place and address_of(self.returned) != self.target.ctypes.data:
            raise CannotRun(f"{self.name} returns another tensor: it works out of place")
        return result

    def check_input(self, seed: int, launches: int) -> None:
        """Raise CcbenchError where the callable changed its input out of place."""
        if self.part is None or self.case.in_place or not len(self.input):
            return
        right = np.empty(len(self.input), self.input.dtype)
        self.part.fill(right, seed + self.seed_offset, launches)
        if right.tobytes() != self._memory.read(self.input).tobytes():
            raise CcbenchError(
                f"{self.name} changed the input of this rank, here or on another; leave it, or return nothing"
            )


def address_of(tensor: Any) -> int:
    """Return where the first element of a NumPy array or of a tensor of torch's or CuPy's lies."""
    if isinstance(tensor, np.ndarray):
        return tensor.ctypes.data
    pointer = getattr(tensor, "data_ptr", None)
    return int(pointer() if pointer else tensor.data.ptr)


def as_array(tensor: Any, dtype: np.dtype[Any]) -> Array:
    """Return the contents of a NumPy array or of a tensor of torch's or CuPy's, of the type of the case."""
    if isinstance(tensor, (np.ndarray, np.generic)):
        return np.asarray(tensor)
    if hasattr(tensor, "get"):  # CuPy's
        return np.asarray(tensor.get())
    torch = import_module("torch")
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:  # which NumPy has not
        return np.asarray(tensor.view(torch.int16).numpy().view(dtype))
    return np.asarray(tensor.numpy())


@cache
def load(path: Path) -> Mapping[str, Any]:
    """Run a user's file, once, and return its names. Raises CannotRun where there is none."""
    if not path.is_file():
        raise CannotRun(
            f"{path}: no such file; name the file of the callable, FILE.py:FUNCTION"
        )
    # It may import what lies beside it.
    sys.path.insert(0, str(path.parent))
    return runpy.run_path(str(path))


def callable_of(algorithm: str) -> Any:
    """Return the function that ``FILE.py:FUNCTION`` names. Raises CannotRun."""
    file, _, name = algorithm.rpartition(":")
    function = load(Path(file).resolve()).get(name)
    if not callable(function):
        raise CannotRun(
            f"{file}: has no function {name}; write FILE.py:FUNCTION of one that it has"
        )
    with suppress(ValueError):  # of what is written in C
        try:
            inspect.signature(function).bind(0, 0)
        except TypeError as error:
            raise CannotRun(f"{file}: {name} takes no (tensor, group): {error}") from None
    return function


class CallEndpoint(RankEndpoint):
    """One rank of a team that runs callables."""

    buffers = CallBuffers

    def __init__(self, exchange: ControlChannel) -> None:
        super().__init__(exchange)
        self.memory = self.guarded_memory()
        size_bytes = exchange.ranks * COUNTERS_APART * 8
        shared = Shared(size_bytes) if exchange.rank == 0 else None
        path = exchange.broadcast(shared.path.encode() if shared else None, 0).decode()
        everyone = shared.bytes if shared else mapped(path)
        exchange.barrier()  # rank 0's memory is there until all have it
        self._shared = shared
        counters = everyone.view(np.int64).reshape(exchange.ranks, COUNTERS_APART)
        # Callables and ccbench count apart: a callable may leave the barrier of its last call at any time.
        self._group = RankGroup(self.rank, counters[:, :1], exchange.all_gather, self.count)
        self._meeting = RankGroup(self.rank, counters[:, 1:2], exchange.all_gather, self.count)
        self._torch_group: Any = None
        file = Path(os.environ[FILE_VARIABLE])
        self.version = f"{file.name} {digest_of(file)}"

    def guarded_memory(self) -> Any:
        """Return memory for buffers that has ``check_guards``."""
        return GuardedMemory(self)

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; a case that ended early has left its own."""
        self.memory.release()
        self._checked = False
        return super().prepare(case)

    def bind(self) -> Callable[[], object]:
        """Return the call of the case's callable on its tensor. Collective."""
        lane: Any = self.own  # of this class's buffers
        lane.name = self.case.algorithm
        function = callable_of(self.case.algorithm)
        tensor, group = self.arguments(tensors_of(file_of(self.case)))

        def launch() -> None:
            try:
                lane.returned = function(tensor, group)
            except NotImplementedError as error:
                raise CannotRun(f"{lane.name}: {error or 'not implemented'}") from error

        return launch

    def agreed(self, step: Callable[[], T]) -> T:
        """Return what ``step`` gives; CannotRun on every rank where it raises that on one. Collective."""
        given, reason = None, ""
        try:
            given = step()
        except CannotRun as error:
            reason = str(error)
        reasons = gathered(self.exchange, reason)
        rank = next((rank for rank, text in enumerate(reasons) if text), None)
        if rank is not None:
            raise CannotRun((f"rank {rank}: " if not all(reasons) else "") + reasons[rank])
        return given  # type: ignore[return-value]  # it has given one

    def arguments(self, kind: str) -> tuple[Any, Any]:
        """Return the tensor and the group that a callable is given. Collective."""
        if kind == TORCH:
            group = self.torch_group("gloo")
            from ccbench.backends.gloo import tensor_of  # which imports torch

            return tensor_of(self.own.source), group
        memory: Any = self.memory
        mine = [(shared.path, begin, size) for shared, begin, size in memory.taken]
        self.meet(mine, lambda path, begin, size: mapped(path)[begin : begin + size])
        return self.own.source, self._group

    def meet(self, mine: Sequence[Any], view: Callable[..., Any]) -> None:
        """Give the group all ranks' buffers. Collective. view: bytes of one, by what its rank told of it."""
        dtype = self.own.source.dtype
        buffers = [
            [view(*place).view(dtype) for place in places]
            for places in gathered(self.exchange, mine)
        ]
        self._group.inputs = [each[0] for each in buffers]
        for rank, others in enumerate(self._group.inputs):
            if isinstance(others, np.ndarray):
                others.flags.writeable = self.case.in_place or rank == self.rank
        self._group.outputs = [each[-1] for each in buffers]
        self._group.restart()
        self.exchange.barrier()

    def torch_group(self, backend: str) -> Any:
        """Return the group of all ranks, made the first time. Collective; CannotRun without torch."""
        try:
            from ccbench.backends.gloo import meet

            distributed = import_module("torch.distributed")
        except ImportError:
            raise CannotRun(f"torch is not installed: {install_line('gloo')}") from None
        if self._torch_group is None:
            import_module("torch").set_num_threads(1)
            route = meet(self.exchange)
            distributed.init_process_group(
                backend, store=route.store, rank=self.rank, world_size=self.ranks
            )
            self._torch_group = distributed.group.WORLD
        return self._torch_group

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare the result, the input and the memory around both with what is right. Collective."""
        lane: Any = self.own
        memory: Any = self.memory
        memory.check_guards(lane.name)
        # Once a case: later checks come after launches that no meeting of ranks may make less adversarial.
        first, self._checked = not self._checked, True
        step = partial(super().check, seed, launches)
        wrong = self.agreed(step) if first else step()
        lane.check_input(seed, launches)
        return wrong

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._meeting.barrier()

    def close(self) -> None:
        """End torch's group, where there is one."""
        if self._torch_group is not None:
            import_module("torch.distributed").destroy_process_group()


class CallBackend(Backend):
    """Functions of the user's files."""

    name = "call"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Return nothing: what a file needs is its own affair."""
        return None

    def version(self) -> str:
        """Return the version of NumPy; what a file imports is its own affair."""
        return f"numpy {np.__version__}"

    def refused(self, case: Case) -> str | None:
        """Return the reason why ``case`` cannot run here."""
        file, kinds = file_of(case), capabilities_of(self.name).callables
        if not file.is_file():
            return "names no file that is there; write --call FILE.py:FUNCTION"
        try:
            kind = tensors_of(file)
        except SyntaxError as problem:
            return f"{file}:{problem.lineno}: {problem.msg}"
        return (
            None if kind in kinds else f"takes {kind}, and {self.name} has {', '.join(kinds)}"
        )

    def team_settings(self, case: Case) -> Environment:
        """Return the case's file: modules that two files import may share a name."""
        return ((FILE_VARIABLE, str(file_of(case).resolve())),)

    def launch(self, request: TeamRequest) -> TeamLaunch | None:
        """Return the start of a process for each rank by their leader; what is shared is of one host."""
        if request.launch is not None:
            raise CcbenchError("backend call: its ranks share memory; leave --launch out")
        # Threads of torch's and Gloo's own need processors, too.
        file = Path(dict(request.environment)[FILE_VARIABLE])
        return TeamLaunch(pinned=tensors_of(file) == NUMPY)


BACKEND = CallBackend()
