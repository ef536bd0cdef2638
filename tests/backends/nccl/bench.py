"""One process on the double with a communicator, a stream and buffers on each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.nccl.collectives import Call, prepared
from ccbench.backends.nccl.communicators import Communicator, communicators_of
from ccbench.backends.nccl.library import Nccl
from ccbench.dtypes import numpy_dtype

from .double import Process, World

OLD, NEW = 21903, 22809
"""NCCL without and with calls of its own for all-to-all, gather and scatter."""

Array = NDArray[Any]


class Bench:
    """One process with a communicator, a stream and buffers on each device."""

    def __init__(self, ranks: int, version: int = NEW, **process: Any) -> None:
        self.world = World(devices=ranks, version=version)
        self.process = Process(self.world, **process)
        self.nccl: Nccl = self.process.nccl
        self.comms: list[Communicator] = communicators_of(self.nccl, range(ranks))
        self.streams = []
        for device in range(ranks):
            self.process.runtime.setDevice(device)
            self.streams.append(self.process.runtime.streamCreateWithFlags(1))

    def place(self, values: Array, device: int, room_bytes: int = 0) -> int:
        self.process.runtime.setDevice(device)
        address = self.process.runtime.malloc(max(values.nbytes, room_bytes, 1))
        self.world.view(address, values.nbytes, device)[...] = values.view(np.uint8)
        return address

    def read(self, address: int, dtype: str, count: int, device: int) -> Array:
        kind = numpy_dtype(dtype)
        values: Array = self.world.view(address, count * kind.itemsize, device).copy().view(kind)
        return values

    def wait(self, streams: Sequence[int] | None = None) -> None:
        for stream in self.streams if streams is None else streams:
            self.process.runtime.streamSynchronize(stream)
        assert self.process.exceptions == []

    def close(self) -> None:
        for comm in self.comms:
            comm.destroy()
        assert self.process.members == {}
        assert self.process.exceptions == []


def all_reduce(bench: Bench, addresses: Sequence[int], count: int = 2) -> None:
    for comm, address, stream in zip(bench.comms, addresses, bench.streams, strict=True):
        prepared(comm, Call("all_reduce", address, address, count, "int64", "sum"), stream)()
