"""The table of what bits depend on, as text and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ccbench.analysis.bits import bit_rows, share_text
from ccbench.report.present import ShownColumn, Table, documents, filled, named, table_of
from ccbench.results import Point
from ccbench.results.points import ORDER
from ccbench.units import percent, plural

TEXT = (
    "Elements whose bits differ when nothing changes but what heads the column; a dash: not tried. Added in: "
    "what explains the first period of results. Right: rounded as the exact sum is, at the least; off by: largest "
    "error in units in the last place."
)


def _share(name: str, title: str, keep: int = 8) -> ShownColumn:
    return ShownColumn(
        title,
        keep=keep,
        value=lambda row: row.shares.get(name),
        form=share_text,
        name=f"differing_over_{name}",
    )


COLUMNS = (
    ShownColumn(
        "configuration", right=False, keep=12, tells=True, value="subject", name="configuration"
    ),
    _share("launches", "launches", 9),
    _share("rounds", "rounds", 5),
    _share("starts", "starts"),
    _share("ranks", "ranks", 9),
    _share("positions", "positions"),
    _share("sizes", "sizes", 10),
    _share("placement", "placement"),
    ShownColumn(
        "other choices",
        right=False,
        keep=6,
        show=lambda row: ", ".join(
            f"{name} {share_text(share)}" for name, share in row.choices.items()
        ),
    ),
    ShownColumn("added in", right=False, keep=7, name="accumulation"),
    ShownColumn(
        "right",
        keep=6,
        form=percent,
        name="correctly_rounded_share",
    ),
    ShownColumn(
        "off by",
        keep=4,
        form=lambda error: f"{error:.3g}",
        name="largest_error_ulp",
    ),
    *named(
        "point.backend_version", *(f"point.{name}" for name in ORDER if name != "size_bytes")
    ),
    *named("point.inexact_data", "pins", "choices", "reproducible"),
    ShownColumn(
        name="sizes_bytes", value=lambda row: sorted({p.size_bytes for p in row.points})
    ),
)


def bits_table(points: Sequence[Point]) -> Table:
    """Return what bits depend on in each configuration of ``points``; no rows where none has bits."""
    rows = bit_rows(points)
    elements = sum(len(point.result_bits) for row in rows for point in row.points)
    text = f"{TEXT} {plural(elements, 'element')} looked at." if rows else ""
    return filled(table_of(COLUMNS, rows, "Bits", text))


def bits_documents(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the rows of ``bits_table`` with their values, for JSON."""
    return documents(COLUMNS, bit_rows(points))
