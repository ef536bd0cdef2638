"""No text of a topology's picture covers another or leaves its box, and none is too small to read."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox, BboxBase

from ccbench.machine.detection import load_cluster, load_topology
from ccbench.report.drawing import drawing_settings
from ccbench.report.topology_figure import picture
from ccbench.report.topology_layout import laid_out
from ccbench.topology.catalog import catalog_names
from ccbench.topology.composition import compose
from ccbench.topology.dragonflies import dragonfly, dragonfly_plus
from ccbench.topology.fabrics import Wire, full_mesh, hypercube, single_switch, torus
from ccbench.topology.fat_trees import fat_tree
from ccbench.topology.graph import Topology
from tests.model.fabrics import ring

WIRE = Wire(50e9)
SMALLEST_POINTS = 7.0
WIDEST_INCHES = 11.0
"""On 800 pixels letters of seven points are then seven pixels."""


CLUSTERS: dict[str, Callable[[], Topology]] = {
    "two machines": lambda: load_cluster("hgx-h100", 2, "ib-ndr-400x8"),
    "four machines": lambda: load_cluster("dgx-a100", 4, "efa-100x4"),
    "meshes": lambda: load_cluster("mi300x", 2, "roce-400x8"),
    "one NIC": lambda: load_cluster("rtx-pcie", 3, "tcp-25x1"),
    "two racks": lambda: load_cluster("gb200-nvl72", 2, "ib-ndr-400x72"),
    "more than a graph holds": lambda: load_cluster("hgx-h100", 4096, "ib-ndr-400x8"),
    "two levels": lambda: compose(
        load_topology("hgx-h100"), 16, "ib-ndr-400x8", fat_tree([16, 8], WIRE)
    ),
    "three levels": lambda: compose(
        load_topology("hgx-h100"), 16, "ib-ndr-400x8", fat_tree([16, 4, 2], WIRE)
    ),
    "rails": lambda: compose(
        load_topology("hgx-h100"), 16, "ib-ndr-400x8", fat_tree([8, 16], WIRE, rails=8)
    ),
    "rails without spines": lambda: compose(load_topology("hgx-h100"), 16, "ib-ndr-400x8", rails=True),
    "bare tree": lambda: fat_tree([16, 16], WIRE).topology(),
    "bare tree of three levels": lambda: fat_tree([16, 4, 4], WIRE).topology(),
    "tree of 3712 vertices": lambda: fat_tree([16, 16, 12], WIRE).topology(),
    "dragonfly": lambda: dragonfly(9, 4, 2, 2, WIRE).topology(),
    "dragonfly+": lambda: dragonfly_plus(5, 2, 2, 2, 2, WIRE).topology(),
    "torus": lambda: torus((8, 8), WIRE).topology(),
    "torus of 4096": lambda: torus((16, 16, 16), WIRE).topology(),
    "mesh": lambda: full_mesh(100, WIRE).topology(),
    "ring": lambda: ring(16, WIRE).topology(),
    "hypercube": lambda: hypercube(4, WIRE).topology(),
    "switch": lambda: single_switch(256, WIRE).topology(),
}  # fmt: skip


def agg(figure: Figure) -> RendererBase:
    """What measures letters."""
    renderer: RendererBase = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]  # untyped there
    return renderer


def texts(topology: Topology) -> tuple[list[tuple[Text, Bbox]], BboxBase]:
    """Every text with its place on paper, in points, and the paper."""
    with drawing_settings():
        figure = picture(topology)
        figure.set_dpi(72)
        renderer = agg(figure)
        found = [*figure.texts, *(one for axes in figure.axes for one in axes.texts)]
        found += [one for legend in figure.legends for one in legend.get_texts()]
        figure.draw(renderer)
        places = [(one, Text.get_window_extent(one, renderer)) for one in found if one.get_text()]
    return places, figure.bbox


def check(topology: Topology) -> None:
    places, paper = texts(topology)
    assert places
    for (one, first), (other, second) in itertools.combinations(places, 2):
        apart = (
            first.x1 <= second.x0 or second.x1 <= first.x0 or first.y1 <= second.y0 or second.y1 <= first.y0
        )
        # Lines of a box are set close; the letters themselves still do not touch.
        overlap = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert apart or overlap < 2.5, (one.get_text(), other.get_text())
    for one, place in places:
        assert float(one.get_fontsize()) >= SMALLEST_POINTS, one.get_text()
        assert min(place.x0, place.y0) >= 0, one.get_text()
        assert place.x1 <= paper.width, one.get_text()
        assert place.y1 <= paper.height, one.get_text()
    assert paper.width <= WIDEST_INCHES * 72


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", catalog_names())
def test_no_text_of_a_machine_covers_another(name: str) -> None:
    check(load_topology(name))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", CLUSTERS)
def test_no_text_of_a_cluster_covers_another(name: str) -> None:
    check(CLUSTERS[name]())


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", CLUSTERS)
def test_texts_of_boxes_stay_inside_them(name: str) -> None:
    topology = CLUSTERS[name]()
    widths: dict[str, float] = {}
    for box in laid_out(topology).devices.values():
        for words in (box.label, box.detail):
            widths[words] = min(box.width * 72, widths.get(words, 1e9))
    for one, place in texts(topology)[0]:
        if one.get_zorder() == 6:
            assert place.width <= widths[one.get_text()], one.get_text()


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", CLUSTERS)
def test_labels_of_lines_cover_no_box(name: str) -> None:
    topology = CLUSTERS[name]()
    layout = laid_out(topology)
    assert any(line.label for line in layout.links) or "ring" in name or "hypercube" in name
    with drawing_settings():
        figure = picture(topology)
        renderer = agg(figure)
        axes = figure.axes[0]
        for one in axes.texts:
            if one.get_zorder() != 4:
                continue
            place = Text.get_window_extent(one, renderer).transformed(axes.transData.inverted())
            for box in layout.devices.values():
                across = place.x1 > box.x - box.width / 2 and place.x0 < box.x + box.width / 2
                upward = place.y1 > box.y - box.height / 2 + 0.02 and place.y0 < box.y + box.height / 2 - 0.02
                assert not (across and upward), (one.get_text(), box.label)
