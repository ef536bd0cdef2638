"""What ``ccbench calibrate RUN`` says about the machine it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccbench.units import format_size

if TYPE_CHECKING:
    from ccbench.model.calibrated import CalibratedCluster, MeasuredCollective


def summary(machine: CalibratedCluster) -> str:
    """Lines: scales with intervals, held-out error, domain, what is extrapolated."""
    lines = [
        f"{machine.name}: {machine.points} points of {machine.ranks} ranks",
        "",
        f"{'scale of':20} {'factor':>8} {'95% interval':>18} {'points':>7}",
    ]
    for one in machine.scales:
        between = f"{one.low:.3f} to {one.high:.3f}" if one.points else "none depends on it"
        lines.append(f"{one.term:20} {one.scale:8.3f} {between:>18} {one.points:7}")
    lines += ["", _held_out(machine), *_domain(machine)]
    return "\n".join(lines)


def _held_out(machine: CalibratedCluster) -> str:
    held = machine.held_out
    if held is None:
        return "held-out error: none, there are too few sizes to fit to half of them"
    return (
        f"held-out error, every other size: median {held.median:.1%}, mean {held.mean:.1%} of {held.points} "
        f"points; without calibration {held.median_without:.1%}, {held.mean_without:.1%}"
    )


def _domain(machine: CalibratedCluster) -> list[str]:
    lines = []
    for one in machine.measured:
        placed = "in place" if one.in_place else "out of place"
        lines.append(f"measured: {one.collective} {placed}, {_sizes(one)}, {one.points} points{_asked(one)}")
    used = machine.measured_as
    if used.gpus_per_process > 1:
        lines.append(f"launches: one thread on {used.gpus_per_process} GPUs; predictions are for the same")
    if used.multicast_off:
        lines.append("NVLS: switched off; predictions are for the same")
    lines.append(
        "extrapolated: other collectives, sizes beyond twice these, algorithms and protocols not listed"
    )
    return lines


def _sizes(one: MeasuredCollective) -> str:
    return f"{format_size(one.smallest_bytes)} to {format_size(one.largest_bytes)}"


def _asked(one: MeasuredCollective) -> str:
    words = [
        " ".join(word for word in (ask.algorithm, ask.protocol) if word != "default")
        or "the library's choice"
        for ask in one.asked
    ]
    return f", {', '.join(words)}"
