"""What NCCL's example tuner plug-in does with its CSV, as its README and its source (plugin.c, NCCL 2.27.5)
say.

Two things that a reader of the README alone would not know are in the source and here too: unknown names
become all_reduce, ring and Simple, and ``-1`` channels leave one channel.
"""

from __future__ import annotations

from dataclasses import dataclass

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
LINE_LIMIT = 255


@dataclass(frozen=True)
class Line:
    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int
    pipe_operations: int = -1
    registered: int = -1


def read(text: str) -> list[Line]:
    lines = []
    for whole in text.splitlines():
        pieces = [whole[at : at + LINE_LIMIT] for at in range(0, len(whole), LINE_LIMIT)]
        for piece in pieces:
            if piece.startswith("#"):
                continue
            fields = [field.strip(" \t") for field in piece.split(",")]
            if 8 <= len(fields) <= 10:
                collective, low, high, algorithm, protocol, *numbers = fields
                lines.append(
                    Line(
                        collective if collective in COLLECTIVES else "allreduce",
                        int(low),
                        int(high),
                        algorithm if algorithm in ALGORITHMS else "ring",
                        protocol if protocol in PROTOCOLS else "simple",
                        *map(int, numbers),
                    )
                )
    return lines


def decided(
    lines: list[Line], collective: str, size_bytes: int, nodes: int, ranks: int
) -> tuple[str, str, int] | None:
    """(algorithm, protocol, most channels; 0 for NCCL's choice) of the first line that matches."""
    for line in lines:
        fits = line.collective == collective and line.min_bytes <= size_bytes <= line.max_bytes
        if fits and line.nodes in (-1, nodes) and line.ranks in (-1, ranks):
            return line.algorithm, line.protocol, 1 if line.channels == -1 else line.channels
    return None
