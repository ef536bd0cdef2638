"""The card of a box whose GPUs PCIe joins: slots, path, place among published boxes, and what NCCL's variables give.

Of a run whose suite asks for it (``verdict: box``). What could not be looked at or measured has a line that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ccbench.analysis.speed_verdict import SHM_BY_COPY_ENGINES, SHM_CAUTION
from ccbench.analysis.winner import varied
from ccbench.cases.capabilities import PricedBy, capabilities_of
from ccbench.errors import MachineError
from ccbench.model.library.clusters import lanes_are_assumed
from ccbench.model.library.intervals import is_pcie_alone
from ccbench.model.library.paths import place_among_boxes
from ccbench.results import Point, Run
from ccbench.results.systems import recorded_system
from ccbench.topology.diagnosis import pcie_links
from ccbench.topology.graph import Topology
from ccbench.units import format_rate, percent, plain

BOX = "box"

NOT_MEASURED = (
    "Not measured: path, share of the link, NCCL's variables: no all_reduce of a GPU library between GPUs has a time "
    "here; 'ccbench doctor' says what is missing"
)


def box_lines(run: Run) -> list[str]:
    """Return the lines of the card; none where the run's suite does not ask for one."""
    if run.manifest.at("suite", "verdict") != BOX:
        return []
    topology, (_, base) = run.manifest.topology, varied(run)
    lines = [*_slots(topology)] if topology and topology.gpus else ["Slots: no GPU is visible"]
    usual = [
        point
        for point in run.points
        if (point.collective, point.variant) == ("all_reduce", base)
        and capabilities_of(point.backend).priced_by is PricedBy.GPU_LIBRARY
        and point.is_timed
        and point.of_links
    ]
    if not usual:
        return [*lines, NOT_MEASURED]
    return [*lines, *_place(run, usual[-1]), *_variables(run)]


def _slots(topology: Topology) -> Iterator[str]:
    """``4 x NVIDIA L4 on PCIe 4 x8``: the speed that both ends can, the lanes in use; and what is wrong with them."""
    slots = Counter[str]()
    for gpu in topology.gpus:
        generation, width = map(gpu.attributes.get, ("pcie_max_generation", "pcie_width"))
        lanes = f"{generation} x{width}" if generation and width else "of lanes not shown"
        slots[plain(f"{gpu.model or 'GPU'} on PCIe {lanes}")] += 1
    yield "Slots: " + "; ".join(f"{count} x {slot}" for slot, count in slots.items())
    for finding in pcie_links(topology):
        # Links that rest are slow, and wake with the first copy.
        if finding.kind != "pcie_idle":
            yield f"Slots: {finding.evidence}. Do: {finding.advice}"


def _place(run: Run, point: Point) -> list[str]:
    """The path with its evidence; ``point`` as a share of the link, and its place among published boxes."""
    figure = f"all_reduce of {point.size}: {point.busbw:.3g} GB/s"
    try:
        system = recorded_system(run.manifest, point)
    except MachineError as error:
        return [f"Path: not known: {error}", figure]
    if not is_pcie_alone(system):
        return [f"Path: {system.intra.value}; published PCIe boxes are unlike it", figure]
    rate = system.intra_bytes_per_second
    share = 1e9 * (point.busbw or 0.0) / rate
    lanes = ", if its slots have 16 lanes" * lanes_are_assumed(system)
    figure += f", {percent(share)} of the link ({format_rate(rate)}{lanes})"
    path = f"Path: {system.path.value}: {system.origins['path']}"
    return [path, f"{figure}; {place_among_boxes(system.path, share)}"]


def _variables(run: Run) -> Iterator[str]:
    """A line for what each variant sets: its rates, or why it has none."""
    for name in run.manifest.mapping("suite", "variants"):
        env = run.manifest.mapping("suite", "variants", name, "env")
        settings = " ".join(f"{variable}={value}" for variable, value in env.items()) or name
        parts = [
            f"{point.collective} {point.busbw:.3g} GB/s"
            if point.busbw
            else f"{point.collective} {point.status.value} ({point.detail})"
            for point in run.points
            if point.variant == name
        ]
        parts += [SHM_CAUTION] if settings == SHM_BY_COPY_ENGINES else []
        yield plain(f"{settings}: {'; '.join(parts)}", 400)
