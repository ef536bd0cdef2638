"""Whole logs of NCCL as a job prints them, in the forms of several releases, healthy unless a line is changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """A release's way to print channels. pair: of ranks; inside, between: transports."""

    version: str
    channel: str
    between_channel: str
    inside: str
    between: str
    start: str


FORMS = (
    Form(
        "2.4.8+cuda10.1",
        "Ring 00 : {a}[{x}] -> {b}[{y}] via {via}",
        "Ring 00 : {a} -> {b} [receive] via {via}",
        "P2P/IPC",
        "NET/IB/0/GDRDMA",
        "comm 0x7f52d4001 rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device} - Init START",
    ),
    Form(
        "2.10.3+cuda11.3",
        "Channel 00 : {a}[1{x}000] -> {b}[1{y}000] via {via}",
        "Channel 00 : {a}[1{x}000] -> {b}[1{y}000] [receive] via {via}",
        "P2P/IPC/read",
        "NET/IB/0/GDRDMA",
        "comm 0x7f52d4001 rank {rank} nranks {ranks} cudaDev {device} busId 1{device}000 - Init START",
    ),
    Form(
        "2.18.3+cuda12.2",
        "Channel 00/0 : {a}[{x}] -> {b}[{y}] via {via}",
        "Channel 00/0 : {a}[{x}] -> {b}[{y}] [receive] via {via}",
        "P2P/IPC/read",
        "NET/IB/0/GDRDMA",
        "comm 0x55e rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device} busId 1{device}000 commId 0x1 - "
        "Init START",
    ),
    Form(
        "2.27.3+cuda12.9",
        "Channel 00/0 : {a}[{x}] -> {b}[{y}] via {via}",
        "Channel 00/0 : {a}[{x}] -> {b}[{y}] [receive] via {via}",
        "P2P/CUMEM",
        "NET/IB/0/GDRDMA",
        "ncclCommInitRankConfig comm 0x55e rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device} busId "
        "1{device}000 commId 0x1 - Init START",
    ),
)

OLD, V210, V218, V227 = FORMS


def log(
    form: Form = V218,
    nodes: int = 2,
    local_ranks: int = 8,
    inside: str = "",
    between: str = "",
    network: str = "IB",
    lines: Sequence[str] = (),
    without: Sequence[str] = (),
) -> str:
    """Return a log of every rank. lines: what each process says besides; without: parts of lines left out."""
    ranks = nodes * local_ranks
    printed: list[str] = []
    for rank in range(ranks):
        node, device = divmod(rank, local_ranks)
        prefix = f"node{node}:{1000 + rank}:{2000 + rank} [{device}] NCCL INFO "
        printed += [
            prefix + line for line in _lines(form, rank, ranks, nodes, local_ranks, network)
        ]
        printed += [
            line.replace("INFO", "INFO").format(prefix=prefix)
            if "{prefix}" in line
            else prefix + line
            for line in lines
        ]
        following = (rank + 1) % ranks
        if following // local_ranks == node:
            text, via = form.channel, inside or form.inside
        else:
            text, via = form.between_channel, between or form.between
        if ranks > 1:
            printed.append(
                prefix
                + text.format(a=rank, b=following, x=device, y=following % local_ranks, via=via)
            )
        printed.append(f"{prefix}Connected all rings")
    first = [f"node0:1000:1000 [0] NCCL INFO NCCL version {form.version}"]
    return (
        "\n".join(
            line for line in [*first, *printed] if not any(part in line for part in without)
        )
        + "\n"
    )


def _lines(
    form: Form, rank: int, ranks: int, nodes: int, local_ranks: int, network: str
) -> Iterable[str]:
    device = rank % local_ranks
    yield "Bootstrap : Using eth0:10.0.0.1<0>"
    yield "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation"
    if network == "IB":
        listed = " ".join(f"[{index}]mlx5_{index}:1/IB" for index in range(1))
        yield f"NET/IB : Using {listed} [RO]; OOB eth0:10.0.0.1<0>"
    yield f"Using network {network}"
    yield form.start.format(rank=rank, ranks=ranks, device=device)
    yield (
        f"comm 0x55e rank {rank} nRanks {ranks} nNodes {nodes} localRanks {local_ranks} localRank {device} MNNVL 0"
    )
