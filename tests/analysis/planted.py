"""Outputs of all_reduce_perf with slow-downs planted into predicted times."""

from __future__ import annotations

from collections.abc import Callable, Mapping

MIB = 1 << 20
MODELS = {"hgx-h200": "NVIDIA H200", "dgx-a100": "NVIDIA A100-SXM4-80GB"}

Rows = Mapping[int, Mapping[str, float]]
Seconds = Callable[[int, Mapping[str, float]], float]


def table(machine: str, rows: Rows, seconds: Seconds) -> str:
    """Output of all_reduce_perf on 8 GPUs of ``machine``, out of place and in place alike."""
    lines = [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0",
        "# Using devices",
        *(
            f"#  Rank {rank:2} Group  0 Pid {900 + rank} on node1 device {rank:2} [0x{rank + 1:02x}] {MODELS[machine]}"
            for rank in range(8)
        ),
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
    ]
    for size, row in rows.items():
        taken = seconds(size, row)
        algbw = size / taken / 1e9
        cells = f"{taken * 1e6:.2f} {algbw:.2f} {algbw * 1.75:.2f} 0"
        lines.append(f"{size} {size // 4} float sum -1 {cells} {cells}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


def scaled(
    name: str, factor: float = 1.0, first: int = 0, last: int = 1 << 50
) -> Callable[[int, Mapping[str, float]], float]:
    """Times at ``name`` of the prediction, by ``factor``, from ``first`` to ``last`` bytes; else as predicted."""

    def seconds(size: int, row: Mapping[str, float]) -> float:
        return row[name] * factor if first <= size <= last else row["predicted_seconds"]

    return seconds


LARGE, SMALL = {"first": 64 * MIB}, {"last": 32 << 10}
PLANTED: tuple[tuple[str, Seconds, str, str], ...] = (
    ("as predicted", scaled("predicted_seconds"), "NORMAL", ""),
    (
        "large, just inside the 80 %",
        scaled("predicted_high_80_seconds", 0.99, **LARGE),
        "NORMAL",
        "",
    ),
    (
        "large, just outside the 80 %",
        scaled("predicted_high_80_seconds", 1.01, **LARGE),
        "LOW",
        "large",
    ),
    ("large, 1.76 times", scaled("predicted_seconds", 1.76, **LARGE), "SLOW", "large"),
    (
        "small, just inside the 80 %",
        scaled("predicted_high_80_seconds", 0.98, **SMALL),
        "NORMAL",
        "",
    ),
    (
        "small, just outside the 80 %",
        scaled("predicted_high_80_seconds", 1.02, **SMALL),
        "LOW",
        "small",
    ),
    (
        "small, just outside the 95 %",
        scaled("predicted_high_95_seconds", 1.02, **SMALL),
        "LOW",
        "small",
    ),
    ("small, 5.1 times", scaled("predicted_seconds", 5.1, **SMALL), "SLOW", "small"),
    *(
        (
            f"256 MiB alone, {factor} times",
            scaled("predicted_seconds", factor, 256 * MIB, 256 * MIB),
            "SLOW",
            "at 256 MiB",
        )
        for factor in (3, 100)
    ),
    ("8 GiB alone, 3 times", scaled("predicted_seconds", 3, 8 << 30), "SLOW", "at 8 GiB"),
    ("small, 0.4 times", scaled("predicted_seconds", 0.4, **SMALL), "FAST", "as fast: none"),
    ("impossible", scaled("predicted_seconds", 0.01), "CANNOT SAY", "impossible"),
)
CODES = {"NORMAL": 0, "LOW": 0, "FAST": 0, "SLOW": 1, "CANNOT SAY": 3}


def beside(first: str, second: str) -> str:
    """The table whose first placement is that of ``first``, the second that of ``second``."""
    pairs = zip(first.splitlines(), second.splitlines(), strict=True)
    return "\n".join(
        " ".join(one.split()[:9] + other.split()[9:]) if one[0].isdigit() else one
        for one, other in pairs
    )
