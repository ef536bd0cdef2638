"""A small training job on torch and Gloo that writes a trace of each rank, in every form that torch has.

``started`` runs it, one process a rank: process groups ``tp`` of neighbours and ``dp`` across them, a model
whose gradients are reduced in several buckets (DistributedDataParallel), an all_gather, an uneven all_to_all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 120.0

WIDTH, BATCH = 512, 256
"""Of each layer: 1 MiB of parameters, 512 KiB of activations in float32."""


@dataclass(frozen=True)
class Job:
    """Settings of one job.

    steps: recorded ones, of as many more that run. late: rank -> seconds that it sleeps before each step.
    scheduled: steps are marked, as ``torch.profiler.schedule`` does. silent: the recorded steps only compute.
    features: of each layer and activation; the bytes of messages grow with it.
    """

    ranks: int = 4
    steps: int = 3
    layers: int = 4
    late: tuple[tuple[int, float], ...] = ()
    record_shapes: bool = True
    with_stack: bool = False
    scheduled: bool = True
    silent: bool = False
    features: int = WIDTH

    @property
    def tensor_parallel(self) -> int:
        """Ranks of a tp group."""
        return 2 if self.ranks % 2 == 0 and self.ranks > 2 else 1


@dataclass(frozen=True)
class Files:
    """Traces of all ranks, in the order of the ranks."""

    kineto: tuple[Path, ...]
    flight_recorder: tuple[Path, ...]


def sent_rows(sender: int, receiver: int) -> int:
    """Rows of ``WIDTH`` elements in the all_to_all: uneven, none to some."""
    return 64 * ((sender + 2 * receiver) % 4)


def started(job: Job, folder: Path) -> Files:
    """Run the job with its files in ``folder``; raise with the words of a rank that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), str(rank), json.dumps(asdict(job))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(job.ranks)
    ]
    try:
        words = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for rank, process in enumerate(ranks):
        if process.returncode:
            raise RuntimeError(
                f"rank {rank} ended with {process.returncode}: {words[rank][-2000:]}"
            )
    return Files(
        *(tuple(folder / f"{kind}-{rank}.json" for rank in range(job.ranks)) for kind in KINDS)
    )


KINDS = ("kineto", "flight_recorder")


@contextmanager
def recording(job: Job, folder: Path, rank: int) -> Iterator[Any]:
    """Record what happens inside, and write both files of a rank at its end; yield the profiler."""
    torch: Any = import_module("torch")
    profiler = import_module("torch.profiler")
    kineto, recorded = (folder / f"{kind}-{rank}.json" for kind in KINDS)
    with ExitStack() as stack:
        recorder = stack.enter_context(
            profiler.profile(
                activities=[profiler.ProfilerActivity.CPU],
                record_shapes=job.record_shapes,
                with_stack=job.with_stack,
                schedule=profiler.schedule(wait=0, warmup=0, active=job.steps, repeat=1)
                if job.scheduled
                else None,
                on_trace_ready=lambda finished: finished.export_chrome_trace(str(kineto)),
            )
        )
        yield recorder
    recorded.write_bytes(torch._C._distributed_c10d._dump_fr_trace_json(True, False))


def train(job: Job, folder: Path, rank: int) -> None:
    """Take part in the job as one rank."""
    torch: Any = import_module("torch")
    distributed: Any = import_module("torch.distributed")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = distributed.FileStore(str(folder / "store"), job.ranks)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=job.ranks)
    width = job.tensor_parallel
    tp_ranks = [list(range(first, first + width)) for first in range(0, job.ranks, width)]
    tp, _ = distributed.new_subgroups_by_enumeration(tp_ranks, group_desc="tp")
    dp, _ = distributed.new_subgroups_by_enumeration(
        [list(range(first, job.ranks, width)) for first in range(width)], group_desc="dp"
    )
    layers = [
        torch.nn.Linear(job.features, job.features, bias=False) for _ in range(job.layers)
    ]
    ddp = import_module("torch.nn.parallel").DistributedDataParallel
    model = ddp(torch.nn.Sequential(*layers), process_group=dp, bucket_cap_mb=1)
    inputs, activations = torch.rand(BATCH, job.features), torch.zeros(BATCH, job.features)
    to_others = [sent_rows(rank, receiver) for receiver in range(job.ranks)]
    from_others = [sent_rows(sender, rank) for sender in range(job.ranks)]
    gathered = torch.zeros(job.ranks * BATCH, job.features)
    sent, received = (
        torch.ones(sum(to_others), job.features),
        torch.zeros(sum(from_others), job.features),
    )

    def step() -> None:
        loss = model(inputs).square().mean()
        loss.backward()
        if width > 1:
            distributed.all_reduce(activations, group=tp)
        distributed.all_gather_into_tensor(gathered, inputs)
        distributed.all_to_all_single(received, sent, from_others, to_others)

    for _ in range(2):  # DistributedDataParallel makes its buckets anew at the second
        step()
    distributed.barrier()
    with recording(job, folder, rank) as profiler:
        for _ in range(job.steps):
            time.sleep(dict(job.late).get(rank, 0.0))
            inputs @ inputs.T if job.silent else step()
            profiler.step()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    settings = json.loads(sys.argv[3])
    settings["late"] = tuple((rank, seconds) for rank, seconds in settings["late"])
    train(Job(**settings), Path(sys.argv[1]), int(sys.argv[2]))
