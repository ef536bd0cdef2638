"""Why a time is what it is: the term that costs most, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from ccbench.model.library.costs import Cost
from ccbench.model.library.shapes import busy_nics, gpus_of_network, links_share
from ccbench.model.library.system import LibraryPoint, LibrarySystem
from ccbench.units import format_seconds


@dataclass(frozen=True)
class _Split:
    """Seconds of one size. launches: what launching alone takes."""

    latency: float
    fill: float
    transfer: float
    launches: float

    @property
    def total(self) -> float:
        return self.latency + self.fill + self.transfer

    def share(self, term: float) -> str:
        return f"{term / self.total:.0%}"


def explained(
    system: LibrarySystem, option: Cost, place: int, size_bytes: int, launch_seconds: float, why: str
) -> LibraryPoint:
    """The point of ``option`` at the ``place``-th of its sizes; why: it is extrapolated, "" if it is not."""
    split = _Split(
        max(option.latency_seconds, launch_seconds),
        float(option.fill_seconds[place]),
        float(option.bandwidth_seconds[place]),
        launch_seconds,
    )
    return LibraryPoint(
        size_bytes,
        option.shape.algorithm,
        option.protocol,
        split.total,
        split.latency,
        split.fill,
        split.transfer,
        _bottleneck(system, option, size_bytes, split),
        why,
    )


def _bottleneck(system: LibrarySystem, option: Cost, size_bytes: int, split: _Split) -> str:
    if split.transfer >= max(split.latency, split.fill):
        return _slowest_link(system, option, size_bytes, split)
    if split.fill > split.latency:
        return f"filling the pipeline: {split.share(split.fill)} ({format_seconds(split.fill)})"
    if split.launches == split.latency:
        return f"launches: {format_seconds(split.launches)} for one thread to launch on its GPUs"
    shape = option.shape
    told = [(option.base_seconds, f"{format_seconds(option.base_seconds)} of base")]
    for hops, seconds, where in (
        (shape.inside_hops, option.hop_seconds, "inside a node"),
        (shape.network_hops, option.network_hop_seconds, "across"),
    ):
        if hops:
            told.append((hops * seconds, f"{hops} x {format_seconds(seconds)} {where}"))
    parts = ", ".join(words for _, words in sorted(told, key=lambda part: -part[0]))
    return f"latency: {split.share(split.latency)} ({parts})"


def _slowest_link(system: LibrarySystem, option: Cost, size_bytes: int, split: _Split) -> str:
    shape, rates = option.shape, option.rates
    if shape.node_bytes / rates.network > shape.port_bytes / rates.inside:
        where, moved, rate = "network", shape.node_bytes, rates.network
        through = "the NICs beside one GPU" if shape.one_rail else "the NICs of a node"
        nominal = system.network.bytes_per_second if system.network is not None else 0.0
        if (
            gpus_of_network(shape, system) * system.gpu_port_bytes_per_second
            < busy_nics(shape, system) * nominal
        ):
            through = "one GPU's port" if shape.one_rail else "the ports of a node's GPUs"
            through += " towards NICs"
    else:
        where, moved, rate = system.intra.value, shape.port_bytes, rates.inside
        through = "the links of one pair of GPUs" if links_share(shape, system) < 1 else "each GPU's links"
    gigabytes = moved * size_bytes / 1e9
    share = split.share(split.transfer)
    return f"{where}: {share} ({gigabytes:.3g} GB through {through} at {rate / 1e9:.4g} GB/s)"
