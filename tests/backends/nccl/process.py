"""What one process has of NCCL's double: its communicators, its open group, its errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccbench.backends.nccl.dialects import NCCL
from tests.backends.cuda.emulated import CudaError

from .clique import DTYPE_NAMES, Clique, Launch, Reduction, Request
from .devices import World, WorldRuntime, cost_seconds

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

    peers: what transfers were connected, to or from whom; lost_peers: what a failed group would have
    connected, and nothing ever will. in_graphs: memory that was registered for graphs, which only its end is
    sure to give up.
    """

    clique: Clique
    rank: int
    device: int
    process: State
    error: int = SUCCESS
    ops: dict[int, Reduction] = field(default_factory=dict)
    splits: int = 0
    windows: int = 0
    registered: dict[int, int] = field(default_factory=dict)
    connected: set[str] = field(default_factory=set)
    peers: set[tuple[str, int]] = field(default_factory=set)
    lost_peers: set[tuple[str, int]] = field(default_factory=set)
    in_graphs: set[int] = field(default_factory=set)
    aborted: bool = False

    @property
    def state(self) -> int:
        if self.error != SUCCESS:
            return self.error
        if not self.clique.complete:
            return IN_PROGRESS
        return SUCCESS


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
        self.left_over: list[tuple[Member, Request, int]] = []

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
        if not group.depth:
            return self.fail(INVALID_USAGE, "ncclGroupEnd: not in a group call"), -1.0
        group.depth -= 1
        if group.depth:
            return SUCCESS, -1.0
        self.group = Group()
        if group.result != SUCCESS:
            self._clean_up(group)
            return group.result, -1.0
        if simulate:
            self.left_over += [call for call in group.calls if call[1].name in POINT_TO_POINT]
            return self._jobs(group), self._estimate(group)
        group.calls = [
            call for member in self._asked(group) for call in self._in_turn(group, member)
        ]
        result = self._finish(group)
        if result not in (SUCCESS, IN_PROGRESS):
            self._clean_up(group)
        return result, -1.0

    def _clean_up(self, group: Group) -> None:
        """As groupCleanup of NCCL's src/group.cc: nothing runs."""
        for member, request, _ in group.calls:
            member.lost_peers |= self._peers_of(member, request) - member.peers

    def _peers_of(self, member: Member, request: Request) -> set[tuple[str, int]]:
        """Which connections a transfer needs."""
        if request.name not in POINT_TO_POINT:
            return set()
        halves = request.name in ("ncclSend", "ncclRecv")
        peers = {request.peer} if halves else {*range(member.clique.ranks)}
        return {(request.name, peer) for peer in peers - {member.rank}}

    def _asked(self, group: Group) -> list[Member]:
        return list({id(member): member for member, _, _ in group.calls}.values())

    def _in_turn(self, group: Group, member: Member) -> list[tuple[Member, Request, int]]:
        """What runs of ``member``'s calls: transfers of a group that was only simulated are still in its
        queues and run first, and as many of the new ones stay there."""
        mine = [call for call in group.calls if call[0] is member]
        new = [call for call in mine if call[1].name in POINT_TO_POINT]
        queue = [call for call in self.left_over if call[0] is member] + new
        self.left_over = [call for call in self.left_over if call[0] is not member] + queue[
            len(new) :
        ]
        return [call for call in mine if call not in new] + queue[: len(new)]

    def _estimate(self, group: Group) -> float:
        """Every collective once, at its cost in ``Clique``; NCCL estimates no transfers."""
        seconds, first_ranks = 0.0, dict[int, int]()
        for member, request, _ in group.calls:
            if request.name in POINT_TO_POINT:
                return -1.0
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

    def _finish(self, group: Group) -> int:
        result = self._jobs(group)
        if result:
            return result
        return self._launch(group)

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
        left_out = self._left_out(group)
        if left_out:
            self.world.deadlocks.append(left_out)
            return self.fail(INTERNAL, f"deadlock: {left_out}")
        result = self._connect(group)
        if result != SUCCESS:
            return result
        with self.world.changed:
            for (_, handle), (member, requests) in together.items():
                queue = self.world.streams.get(handle)
                if queue is None or queue.device != member.device:
                    return self.fail(
                        UNHANDLED_CUDA, f"stream {handle:#x} is not of device {member.device}"
                    )
                if queue.captured is not None and member.clique.ranks > 1:
                    member.in_graphs |= {
                        self._base(at)
                        for request in requests
                        for at in (request.source, request.target)
                    }
                queue.add(Launch(member.clique, member.rank, requests), self.world.seconds)
            self.world.changed.notify_all()
        return result

    def _connect(self, group: Group) -> int:
        """The first time a communicator makes ready for a collective: here, where a thread has no other.

        As asyncJobLaunch of NCCL's src/group.cc; it clears memory of the device (src/transport/nvls.cc).
        """
        asking = self._asked(group)
        for member, request, _ in group.calls:
            peers = self._peers_of(member, request)
            if peers & member.lost_peers:
                return self.fail(
                    INTERNAL,
                    f"deadlock: rank {member.rank} was never connected for {request.name}",
                )
            member.peers |= peers
        for member, request, _ in group.calls if len(asking) == 1 else ():
            if request.name not in member.connected:
                try:
                    self.runtime.free(0)
                except CudaError as error:
                    return self.fail(UNHANDLED_CUDA, f"Cuda failure {error.status}")
                member.connected.add(request.name)
        return SUCCESS

    def _left_out(self, group: Group) -> str:
        """A thread with several ranks must call all in one group, or it waits for itself."""
        for member, request, _ in group.calls:
            if request.name in ("ncclSend", "ncclRecv"):
                continue
            here = [
                member_here
                for member_here in self.members.values()
                if member_here.clique is member.clique and not member_here.aborted
            ]
            called = [
                member_here
                for member_here, request, _ in group.calls
                if member_here.clique is member.clique
            ]
            missing = [member_here.rank for member_here in here if member_here not in called]
            if missing:
                return f"{request.name} of rank {member.rank} waits for ranks {missing} of the same thread"
        return ""

    # -- members -------------------------------------------------------------------------------------------

    def join(
        self, clique: Clique, rank: int, device: int, group: Group | None = None
    ) -> tuple[int, int]:
        """(result, handle) of a new rank in ``clique``. group: that of a split, its devices were checked."""
        if not 0 <= rank < clique.ranks:
            return self.fail(INVALID_ARGUMENT, f"invalid rank {rank} of {clique.ranks}"), 0
        if rank in clique.joined:
            return self.fail(INVALID_USAGE, f"rank {rank} is there twice"), 0
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
        """ncclCommDestroy; upon a communicator that is not ready it returns within the group it began."""
        member, result = self.ready(handle)
        if member is None:
            self.group.depth += 1
            return result
        del self.members[handle]
        self.wait_for_graphs(member)
        return SUCCESS

    def abort(self, handle: int) -> int:
        """ncclCommAbort: what runs ends, on all ranks, with nothing written."""
        member = self.members.pop(handle, None)
        if member is None:
            return self.fail(INVALID_ARGUMENT, "comm argument is NULL or not a communicator")
        self.wait_for_graphs(member)
        with self.world.changed:
            member.aborted = member.clique.aborted = True
            self.world.changed.notify_all()
        return SUCCESS

    def wait_for_graphs(self, member: Member) -> None:
        """From 2.26 on a communicator ends when the last graph with a call of it was destroyed."""
        captured = itertools.chain(*self.runtime.executables.values())
        here = [task for task in captured if isinstance(task, Launch)]
        if any((task.clique, task.rank) == (member.clique, member.rank) for task in here):
            self.world.deadlocks.append(
                f"rank {member.rank}'s communicator waits for graphs that know it"
            )

    def member(self, handle: int | None) -> Member | None:
        member = self.members.get(handle or 0)
        return None if member is None or member.aborted else member

    def ready(self, handle: int | None) -> tuple[Member | None, int]:
        """The member, or the result of a call upon one that is gone, failed, or still in progress."""
        member = self.member(handle)
        if member is None:
            return None, self.fail(
                INVALID_ARGUMENT, "comm argument is NULL or not a communicator"
            )
        joining = member in self.group.joins
        if member.state == IN_PROGRESS and not joining:
            words = (
                "Attempt to use communicator before the previous operation returned ncclSuccess"
            )
            return None, self.fail(INVALID_ARGUMENT, words)
        return (member, SUCCESS) if joining or member.error == SUCCESS else (None, member.error)

    def init_rank(self, ranks: int, unique_id: bytes, rank: int) -> tuple[int, int]:
        """(result, handle) of ncclCommInitRank on the current device; waits for the others."""
        if not unique_id.startswith(b"double"):
            return self.fail(INVALID_ARGUMENT, "the unique id is not one of ncclGetUniqueId"), 0
        with self.world.changed:
            clique = self.world.cliques.setdefault(unique_id, Clique(self.world, ranks))
        if clique.ranks != ranks:
            return self.fail(INVALID_USAGE, f"{ranks} ranks here, {clique.ranks} elsewhere"), 0
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
        member, result = self.ready(handle)
        if member is None:
            return result
        numbers = [
            number
            for text, number in NCCL.dtypes.items()
            if self.world.version >= NCCL.dtype_since.get(text, 0)
        ]
        if dtype not in numbers:
            return self.fail(INVALID_ARGUMENT, f"{name} : invalid type {dtype}")
        names = {number: text for text, number in NCCL.ops.items()}
        reduction = Reduction(names[op]) if op in names else member.ops.get(op)
        if op >= 0 and reduction is None:
            return self.fail(INVALID_ARGUMENT, f"{name} : invalid reduction operation {op}")
        if peer != -1 and not 0 <= peer < member.clique.ranks:
            return self.fail(
                INVALID_ARGUMENT,
                f"{name} : invalid root or peer {peer} of {member.clique.ranks}",
            )
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
