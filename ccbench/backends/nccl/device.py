"""A rank's GPU: its memory by stream, and whether something that was enqueued still runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ccbench.backends.cuda.context import MAIN_STREAM, DeviceContext
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.nccl.library import Library

NOT_READY = 600
"""cudaErrorNotReady: what is enqueued on a stream has not ended yet."""


@dataclass(frozen=True)
class NcclMemory:
    """An allocation. of_case: NCCL made it for one case, and ``free`` is NCCL's."""

    address: int
    size_bytes: int
    free: Callable[[int], None]
    of_case: bool = False


class RankContext(DeviceContext):
    """One rank's device with its memory by stream; ``busy`` tells whether something enqueued still runs."""

    def __init__(self, cuda: Cuda, device: int, rank: int) -> None:
        super().__init__(cuda, cuda.facts(device), range(rank, rank + 1))
        self.rank = rank
        self.memory: dict[int, NcclMemory] = {}

    def __str__(self) -> str:
        return f"rank {self.rank} (GPU {self.facts.number}, {self.facts.bus_id})"

    # -- memory --------------------------------------------------------------------------------------------

    def reserve(self, stream: int, size_bytes: int, nccl: Library | None) -> NcclMemory:
        """Take at least ``size_bytes``; from ``nccl`` where given, as memory to be registered must be."""
        held = self.memory.get(stream)
        if held and not (nccl or held.of_case) and held.size_bytes >= size_bytes:
            return held
        self.release(stream)
        self.cuda.use(self.facts.number)
        source = nccl or self.cuda
        self.memory[stream] = NcclMemory(
            source.allocate(size_bytes), size_bytes, source.free, nccl is not None
        )
        return self.memory[stream]

    def release(self, *streams: int) -> None:
        """Give the allocations of these streams back, without any those of all."""
        for stream in streams or tuple(self.memory):
            held = self.memory.pop(stream, None)
            if held:
                self.cuda.use(self.facts.number)
                held.free(held.address)

    # -- running -------------------------------------------------------------------------------------------

    def follow(self, stream: int) -> None:
        """Let what is enqueued on ``stream`` next start when the main stream has come to its beginning."""
        following = self.on(stream)
        self.use()
        self.cuda.runtime.streamWaitEvent(following.handle, self.on(MAIN_STREAM).began)

    def busy(self) -> bool:
        """Return True if something enqueued has not ended; raises what CUDA says of the device."""
        self.use()
        for stream in self._streams.values():
            status = int(self.cuda.runtime.streamQuery(stream.handle))
            if status == NOT_READY:
                return True
            if status:
                raise RuntimeError(f"GPU {self.facts.number}: cudaError {status}")
        return False

    def close(self) -> None:
        """Give everything back."""
        self.forget_graphs()
        self.release()
        super().close()
