"""Outputs in the forms of nccl-tests' versions, with figures made up here so that they hang together."""

from __future__ import annotations

from collections.abc import Sequence

_HEAD = "#       size         count      type   redop    root"
TITLES = _HEAD + "     time   algbw   busbw #wrong" * 2
UNITS = (
    "#        (B)    (elements)                         "
    + "      (us)  (GB/s)  (GB/s)       " * 2
)


def microseconds(value: float) -> str:
    """As src/common.cu prints times."""
    return (
        f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 10_000 else f"{value:.0f}"
    )


def figures(size: int, factor: float, time: float, wrong: str = "0") -> str:
    """One placement's columns."""
    algbw = size / time / 1e3
    return f"  {microseconds(time):>7}  {algbw:>6.2f}  {algbw * factor:>6.2f}  {wrong:>5}"


def row(
    size: int, factor: float = 1.75, time: float = 50.0, wrong: str = "0", words: str = ""
) -> str:
    """One row: float, sum, no root, whole buffers, unless ``words`` says otherwise."""
    start = words or f"{size:>12}  {size // 4:>12}  {'float':>8}  {'sum':>6}  {'-1':>6}"
    return (
        start + figures(size, factor, time, wrong) + figures(size, factor, time * 1.01, wrong)
    )


SIZES = (1 << 20, 1 << 22, 1 << 24)
ROWS = tuple(row(size, time=20 + size / 1e5) for size in SIZES)


def devices(ranks: Sequence[int], per_host: int = 8) -> list[str]:
    """Lines of "Using devices"."""
    return [
        f"#  Rank {rank:>2} Group  0 Pid {100 + rank:>6} on      box{rank // per_host} device "
        f"{rank % per_host:>2} [0000:{rank % per_host + 16:02x}:00] NVIDIA H100 80GB HBM3"
        for rank in ranks
    ]


def average(rows: Sequence[str]) -> str:
    """The closing average of rows with two placements of four columns."""
    rates = [float(words[i]) for words in (row.split() for row in rows) for i in (-6, -2)]
    return f"# Avg bus bandwidth    : {sum(rates) / len(rates):g} "


def output(
    rows: Sequence[str] = ROWS,
    ranks: Sequence[int] = range(8),
    program: str = "all_reduce_perf",
) -> str:
    """A whole output of version 2.17 or later, from the first line to the last."""
    sizes = [int(row.split()[0]) for row in rows]
    return "\n".join(
        [
            "# nccl-tests version 2.17.1 nccl-headers=22809 nccl-library=22809",
            f"# Collective test starting: {program}",
            f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: 4(factor) "
            "warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0",
            "#",
            "# Using devices",
            *devices(ranks),
            "NCCL version 2.28.9+cuda13.0",
            "#",
            "#" + " " * 62 + "out-of-place" + " " * 23 + "in-place",
            TITLES,
            UNITS,
            *rows,
            "# Out of bounds values : 0 OK",
            average(rows),
            "#",
            f"# Collective test concluded: {program}",
            "",
        ]
    )


ALL_RIGHT = output([row(1 << 20), row(2 << 20)])
ONE_WRONG = output([row(1 << 20), row(2 << 20).replace("      0", "      2", 1)])
"""Four placements of an all-reduce on eight H100, one of them with wrong elements."""
