"""A plan's communication: lines for a terminal, plain values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ccbench.plan.pricing import PricedPlan
from ccbench.plan.strategy import parameters
from ccbench.report.present import ShownColumn, Table, aligned, documents, named, table_of
from ccbench.units import format_seconds, format_size


def _size(size_bytes: int) -> str:
    # Sizes of models are rarely round: two digits are enough.
    size = format_size(size_bytes)
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if len(size) > 10 and size_bytes >= 2**power:
            return f"{size_bytes / 2**power:.2f} {unit}"
    return size


def shortened(bottleneck: str) -> str:
    """The limit, the rate or the largest of several terms, and who shares it; JSON has all of it."""
    limit, semicolon, sharing = bottleneck.partition("; ")
    head, opens, detail = limit.removesuffix(")").partition(" (")
    way = detail.partition(" through ")[2]
    first, comma, _ = detail.partition(", ")
    inside = f" ({way or first + (', ...' if comma else '')})" if opens else ""
    return f"{head}{inside}{semicolon}{sharing}"


_SENT = "communication"
LINES = (
    ShownColumn("axis", right=False, keep=9, value=f"{_SENT}.axis", name="axis"),
    ShownColumn("ranks", keep=6, name="ranks"),
    ShownColumn(
        "collective", right=False, keep=9, value=f"{_SENT}.collective", name="collective"
    ),
    ShownColumn("size", keep=8, value=f"{_SENT}.size_bytes", form=_size, name="size_bytes"),
    ShownColumn("times", keep=8, value=f"{_SENT}.times", name="times"),
    ShownColumn("each", keep=5, form=format_seconds, name="seconds"),
    ShownColumn("total", keep=8, form=format_seconds, name="total_seconds"),
    ShownColumn("stage", right=False, keep=3, value=f"{_SENT}.stage", name="stage"),
    ShownColumn("of", right=False, keep=2, value=f"{_SENT}.purpose", name="purpose"),
    ShownColumn("bottleneck", right=False, keep=1, form=shortened, name="bottleneck"),
    *named("extrapolated"),
)
"""Of a communication of a step."""


def plan_lines(
    priced: PricedPlan, laid_out: Callable[[Table], list[str]] = aligned
) -> Iterator[str]:
    """Give lines about a plan. laid_out: lines of a table."""
    strategy, cluster, lines = priced.strategy, priced.cluster, priced.communication
    shape = strategy.shape
    billions = parameters(shape) / 1e9
    yield f"{shape.name}, {billions:.4g} billion parameters, on {cluster.ranks} devices: {cluster.name}"
    yield f"{strategy.layout}, {strategy.micro_batches} micro-batches of {strategy.settings.micro_batch}"
    yield ""
    # What takes most comes first.
    most = sorted(lines, key=lambda line: -line.total_seconds)
    yield from laid_out(table_of(LINES, most)) if most else ["no communication"]
    yield ""
    remarks = dict.fromkeys(line.extrapolated for line in lines if line.extrapolated)
    yield from (f"extrapolated: {remark}" for remark in remarks)
    yield "each: one launch; total: all launches of a step one after the other, of which computing may hide a part"


def plan_document(priced: PricedPlan) -> dict[str, Any]:
    """Return the plan as JSON values; times in seconds, sizes in bytes."""
    return {
        "model": priced.strategy.shape.name,
        "parameters": parameters(priced.strategy.shape),
        "machine": priced.cluster.name,
        "devices": priced.cluster.ranks,
        "layout": str(priced.strategy.layout),
        "micro_batches": priced.strategy.micro_batches,
        "communication": documents(LINES, priced.communication),
    }
