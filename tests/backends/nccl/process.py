"""What one process has of NCCL's double: its communicators, its open group, its errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccbench.backends.nccl.dialects import NCCL
from tests.backends.cuda.streams import World

from .clique import DTYPE_NAMES, Clique, Launch, Reduction, Request
from .devices import WorldRuntime, cost_seconds

(
    SUCCESS,
    UNHANDLED_CUDA,
    SYSTEM,
    INTERNAL,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    REMOTE,
    IN_PROGRESS,
) = range(8)

MEANINGS = {
    0: "no error",
    1: "unhandled cuda error",
    2: "unhandled system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process exited or there was a network error",
    7: "operation in progress",
}

POINT_TO_POINT = ("ncclSend", "ncclRecv", "ncclAlltoAll", "ncclGather", "ncclScatter")

OWN_ARGUMENTS = {
    "ncclAllReduce": "source target count dtype op",
    "ncclReduce": "source target count dtype op peer",
    "ncclReduceScatter": "source target count dtype op",
    "ncclBroadcast": "source target count dtype peer",
    "ncclAllGather": "source target count dtype",
    "ncclAlltoAll": "source target count dtype",
    "ncclGather": "source target count dtype peer",
    "ncclScatter": "source target count dtype peer",
    "ncclSend": "source count dtype peer",
    "ncclRecv": "target count dtype peer",
}
"""What each call that moves data takes before its communicator and stream; peer: or the root."""

UNIQUE_ID_BYTES = 128

_ids = itertools.count(1)


@dataclass
class Member:
    """One rank of a communicator, in one process.

    in_graphs: memory that was registered for graphs, which only its end is sure to give up.
    """

    clique: Clique
    rank: int
    device: int
    process: State
    error: int = SUCCESS
    ops: dict[int, Reduction] = field(default_factory=dict)
    met: dict[str, int] = field(default_factory=dict)
    registered: dict[int, int] = field(default_factory=dict)
    connected: set[str] = field(default_factory=set)
    in_graphs: set[int] = field(default_factory=set)
    aborted: bool = False

    @property
    def state(self) -> int:
        return self.error or (SUCCESS if self.clique.complete else IN_PROGRESS)


@dataclass
class Group:
    """What a thread has asked for since groupStart."""

    depth: int = 0
    result: int = SUCCESS
    joins: list[Member] = field(default_factory=list)
    later: list[Callable[[Group], int]] = field(default_factory=list)
    calls: list[tuple[Member, Request, int]] = field(default_factory=list)


ALGORITHM_TAGS = (
    "TREE_LL",
    "TREE_LL128",
    "TREE_SIMPLE",
    "RING_LL",
    "RING_LL128",
    "RING_SIMPLE",
    "COLLNET_DIRECT_SIMPLE",
    "COLLNET_CHAIN_SIMPLE",
    "NVLS_SIMPLE",
    "NVLSTREE_SIMPLE",
    "PAT_SIMPLE",
)
"""What ncclAlgParse of 2.32.3 compares the beginning of, in any case of letters."""


class State:
    """One process's NCCL and CUDA. ``cupy``: major version of the CuPy that is stood in for.

    refuse: C functions that fail, with the result and words of each. registers: NCCL can use memory directly;
    where not, it succeeds all the same. algorithms: tags of what a call may be told to take. parameters: what it
    tells of, with the values in effect.
    """

    def __init__(
        self,
        world: World,
        *,
        cupy: int = 14,
        registers: bool = True,
        memory_bytes: int = 1 << 40,
    ) -> None:
        self.world = world
        self.cupy = cupy
        self.registers = registers
        self.refuse: dict[str, tuple[int, str]] = {}
        self.runtime = WorldRuntime(world=world, memory_bytes=memory_bytes)
        self.members: dict[int, Member] = {}
        self.nccl_memory: dict[int, int] = {}
        self.group = Group()
        self.last_error = b""
        self.texts: dict[bytes, Any] = {}
        self.log: list[str] = []
        self.exceptions: list[Exception] = []
        self.algorithms = {tag for tag in ALGORITHM_TAGS if tag.startswith(("RING", "TREE"))}
        self.parameters = {b"NCCL_DEBUG": b"WARN", b"NCCL_SET_THREAD_NAME": b"FALSE"}

    # -- groups --------------------------------------------------------------------------------------------

    def fail(self, result: int, words: str) -> int:
        self.last_error = words.encode()
        if self.group.depth and self.group.result == SUCCESS:
            self.group.result = result
        return result

    def group_start(self) -> int:
        self.group.depth += 1
        return SUCCESS

    def group_end(self, simulate: bool = False) -> tuple[int, float]:
        """Result, and what the calls would cost in seconds, negative where NCCL would not say."""
        group = self.group
        assert group.depth, "not in a group call"
        group.depth -= 1
        if group.depth:
            return SUCCESS, -1.0
        self.group = Group()
        if group.result != SUCCESS:
            return group.result, -1.0
        if simulate:
            # NCCL keeps transfers of such a group, and the next one runs them.
            assert not any(request.name in POINT_TO_POINT for _, request, _ in group.calls)
            return self._jobs(group), self._estimate(group)
        return self._jobs(group) or self._launch(group), -1.0

    def _estimate(self, group: Group) -> float:
        """Every collective once, at its cost in ``Clique``."""
        seconds, first_ranks = 0.0, dict[int, int]()
        for member, request, _ in group.calls:
            if first_ranks.setdefault(id(member.clique), member.rank) == member.rank:
                seconds += cost_seconds(member.clique.bytes_of(request))
        return seconds or -1.0

    def alone(self, do: Callable[[], int]) -> int:
        """A call outside of a group is a group of one."""
        if self.group.depth:
            return do()
        self.group_start()
        result = do()
        ended, _ = self.group_end()
        return result if result not in (SUCCESS, IN_PROGRESS) else ended

    def _jobs(self, group: Group) -> int:
        """What runs even where a group is only simulated."""
        result = self._all_come(group)
        for work in group.later:
            result = result or work(group)
        return result or self._all_come(group)

    def _all_come(self, group: Group) -> int:
        waiting = [member.clique for member in group.joins]
        what = f"ncclCommInitRank: {len(group.joins)} ranks wait for others to come"
        if waiting and not self.world.wait_until(
            lambda: all(clique.complete for clique in waiting), what
        ):
            return self.fail(INTERNAL, f"deadlock: {what}")
        return SUCCESS

    def _launch(self, group: Group) -> int:
        together: dict[tuple[int, int], tuple[Member, list[Request]]] = {}
        for member, request, stream in group.calls:
            together.setdefault((id(member), stream), (member, []))[1].append(request)
        called = {id(member) for member, _, _ in group.calls}
        waits = {
            id(member.clique)
            for member, request, _ in group.calls
            if request.name not in ("ncclSend", "ncclRecv")
        }
        for member in self.members.values():
            here = id(member) in called or id(member.clique) not in waits or member.aborted
            assert here, f"rank {member.rank} is waited for by others of the same thread"
        if len(called) == 1:
            self._connect(group)
        with self.world.changed:
            for (_, handle), (member, requests) in together.items():
                queue = self.world.streams[handle]
                assert queue.device == member.device
                if queue.captured is not None and member.clique.ranks > 1:
                    member.in_graphs |= {
                        self._base(at)
                        for request in requests
                        for at in (request.source, request.target)
                    }
                queue.add(Launch(member.clique, member.rank, requests), self.world.seconds)
            self.world.changed.notify_all()
        return SUCCESS

    def _connect(self, group: Group) -> None:
        """The first time a communicator makes ready for a collective: here, where a thread has no other.

        As asyncJobLaunch of NCCL's src/group.cc; it clears memory of the device (src/transport/nvls.cc).
        """
        for member, request, _ in group.calls:
            if request.name not in member.connected:
                self.runtime.free(0)
                member.connected.add(request.name)

    # -- members -------------------------------------------------------------------------------------------

    def join(
        self, clique: Clique, rank: int, device: int, group: Group | None = None
    ) -> tuple[int, int]:
        """(result, handle) of a new rank in ``clique``. group: that of a split, its devices were checked."""
        assert rank in {*range(clique.ranks)} - clique.joined.keys()
        if device in clique.joined.values() and not group:
            return self.fail(
                INVALID_USAGE, f"Duplicate GPU detected : rank {rank} on device {device}"
            ), 0
        with self.world.changed:
            clique.joined[rank] = device
            self.world.changed.notify_all()
        member = Member(clique, rank, device, self)
        handle = next(self.world.handles)
        self.members[handle] = member
        (group or self.group).joins.append(member)
        return SUCCESS, handle

    def _base(self, address: int) -> int:
        """Where NCCL's allocation that ``address`` is in begins, 0 where it is in none."""
        bases = (
            base for base, size in self.nccl_memory.items() if base <= address < base + size
        )
        return next(bases, 0)

    def destroy(self, handle: int) -> int:
        """ncclCommDestroy; upon a communicator that is not ready NCCL would return within a group of its own."""
        member = self.ready(handle)
        del self.members[handle]
        self.wait_for_graphs(member)
        return SUCCESS

    def abort(self, handle: int) -> int:
        """ncclCommAbort: what runs ends, on all ranks, with nothing written."""
        member = self.members.pop(handle)
        self.wait_for_graphs(member)
        with self.world.changed:
            member.aborted = member.clique.aborted = True
            self.world.changed.notify_all()
        return SUCCESS

    def wait_for_graphs(self, member: Member) -> None:
        """From 2.26 on a communicator ends when the last graph with a call of it was destroyed."""
        captured = itertools.chain(*self.runtime.graphs.values())
        here = [task for task in captured if isinstance(task, Launch)]
        if any((task.clique, task.rank) == (member.clique, member.rank) for task in here):
            self.world.deadlocks.append(
                f"rank {member.rank}'s communicator waits for graphs that know it"
            )

    def member(self, handle: int | None) -> Member:
        member = self.members[handle or 0]
        assert not member.aborted
        return member

    def ready(self, handle: int | None) -> Member:
        """The member; calls upon one that is gone, has failed or is still in progress are wrong."""
        member = self.member(handle)
        assert member in self.group.joins or member.state == SUCCESS
        return member

    def init_rank(self, ranks: int, unique_id: bytes, rank: int) -> tuple[int, int]:
        """(result, handle) of ncclCommInitRank on the current device; waits for the others."""
        assert unique_id.startswith(b"double")
        with self.world.changed:
            clique = self.world.cliques.setdefault(unique_id, Clique(self.world, ranks))
        assert clique.ranks == ranks
        made = [0]

        def join() -> int:
            result, made[0] = self.join(clique, rank, self.runtime.getDevice())
            return result

        return self.alone(join), made[0]

    def moved(self, name: str, handle: int, given: Sequence[int]) -> int:
        """Any call that moves data; given: what OWN_ARGUMENTS says, and the stream."""
        if name in self.refuse:
            return self.alone(lambda: self.fail(*self.refuse[name]))
        words = (*OWN_ARGUMENTS[name].split(), "stream")
        return self.alone(
            lambda: self._moved(name, handle, **dict(zip(words, given, strict=True)))
        )

    def _moved(
        self,
        name: str,
        handle: int,
        count: int,
        dtype: int,
        stream: int,
        source: int = 0,
        target: int = 0,
        op: int = -1,
        peer: int = -1,
    ) -> int:
        member = self.ready(handle)
        since = NCCL.dtype_since.get(DTYPE_NAMES[dtype], 0)
        assert NCCL.dtypes[DTYPE_NAMES[dtype]] == dtype
        assert self.world.version >= since
        names = {number: text for text, number in NCCL.ops.items()}
        reduction = Reduction(names[op]) if op in names else member.ops.get(op)
        assert op < 0 or reduction
        assert -1 <= peer < member.clique.ranks
        multiplies = reduction is not None and reduction.name in ("avg", "premulsum")
        if (
            member.clique.ranks == 1
            and count
            and multiplies
            and DTYPE_NAMES[dtype].startswith("float8")
        ):
            return self.fail(INVALID_ARGUMENT, "")  # ncclLaunchOneRank says nothing
        request = Request(
            name, source or 0, target or 0, count, dtype, reduction, peer, member.device
        )
        self.group.calls.append((member, request, stream))
        self.log.append(name)
        return SUCCESS


def new_unique_id() -> bytes:
    """No zero inside, because C strings end there."""
    return f"double{next(_ids):06d}".encode().ljust(UNIQUE_ID_BYTES, b"\xfe")
