"""The machine of a run: the picture of its topology, and the most that was measured on it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.report.text import percent, plural
from ccbench.results import Manifest, Point
from ccbench.topology.graph import Topology
from ccbench.units import format_seconds, format_size, plain

LARGEST_PICTURE_BYTES = 1_500_000
"""Of the SVG; a larger one is put into the page as PNG."""

DOTS_PER_INCH = 110


@dataclass(frozen=True)
class MachinePicture:
    """A drawing as a data address, with words for those who cannot see it."""

    name: str
    words: str
    address: str


@dataclass(frozen=True)
class MeasuredRate:
    """The best that one kind of case reached, beside the bound."""

    case: str
    size: str
    time: str
    busbw: str
    of_bound: str


def topology_of(manifest: Manifest) -> Topology | None:
    """The machine that predictions were priced on where the catalog has it, else the one that was detected.

    None where neither is known.
    """
    from ccbench.topology.catalog import catalog_names, load_catalog

    name = manifest.machine
    return load_catalog(name) if name in catalog_names() else manifest.topology


def machine_picture(topology: Topology) -> MachinePicture:
    """The house's drawing of ``topology``, to be shown as an image, in which nothing can run."""
    from ccbench.report.picture_file import drawing_settings
    from ccbench.report.topology_figure import picture

    with drawing_settings():
        drawn = picture(topology)
        sink = io.BytesIO()
        drawn.savefig(sink, format="svg", metadata={"Date": None})
        kind, content = "svg+xml", sink.getvalue()
        if len(content) > LARGEST_PICTURE_BYTES:
            sink = io.BytesIO()
            drawn.savefig(sink, format="png", dpi=DOTS_PER_INCH)
            kind, content = "png", sink.getvalue()
    words = (
        f"{plain(topology.name)}: {plural(len(topology.gpus), 'GPU')}, {plural(len(topology.links), 'link')}"
    )
    address = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return MachinePicture(plain(topology.name), words, address)


def measured_rates(points: Sequence[Point]) -> tuple[MeasuredRate, ...]:
    """The case with the highest bus bandwidth of every collective, backend and number of ranks."""
    best: dict[tuple[str, str, int, int], Point] = {}
    for point in points:
        if point.busbw is None or point.group_ranks < 2 or point.emulated or point.baseline:
            continue
        key = (point.collective, point.backend, point.ranks, point.nodes)
        if key not in best or (best[key].busbw or 0.0) < point.busbw:
            best[key] = point
    return tuple(
        MeasuredRate(
            case=one.label,
            size=format_size(one.size_bytes),
            time=format_seconds(one.median_seconds or 0.0),
            busbw=f"{one.busbw:.4g} GB/s",
            of_bound="" if one.bound_share is None else percent(one.bound_share),
        )
        for _, one in sorted(best.items())
    )
