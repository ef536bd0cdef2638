"""The model's constants fitted to a run: ``ccbench predict --from``."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ccbench.cli.output import check_writable, say
from ccbench.errors import MachineError, UsageError
from ccbench.report.present import Table, aligned, columns
from ccbench.units import plural

if TYPE_CHECKING:
    from ccbench.model.calibrated import Base, CalibratedCluster, Measured
    from ccbench.results import Run
    from ccbench.results.observed import RunPoints


def fitted(
    folder: Path,
    output: Path | None,
    machine: str | None,
    nodes: int | None,
    network: str | None,
    ranks: int | None,
) -> CalibratedCluster:
    """Fit the model's constants to the points of the run in ``folder``, and write them to ``output``, if any.

    Raises UsageError for what does not fit together, and for a file that is there.
    """
    from ccbench.model.calibrated import Provenance, calibrate_cluster, save_calibrated
    from ccbench.results import load_run
    from ccbench.results.observed import run_points

    if output is not None:
        if output.suffix not in (".yaml", ".yml"):
            raise UsageError(f"-o {output}: does not end in .yaml")
        check_writable(output, "-o")
        if output.exists():
            raise UsageError(f"-o {output}: is there already; name another file")
    run = load_run(folder, details=False)
    points = run_points(run, ranks, nodes)
    base = _base(run, points, machine, network)
    measured = measured_of(run, points, base)
    now = datetime.now(timezone.utc)
    driver = run.manifest.mapping("environment", "accelerators").get("driver")
    # An import's environment is that of the host that imported it.
    own = isinstance(driver, str) and not any(point.imported for point in run.points)
    provenance = Provenance(
        f"{base.cluster.name}, calibrated {now:%Y-%m-%d}",
        run.path.resolve().name,
        points.library,
        now.isoformat(timespec="seconds"),
        str(driver) if own else "",
    )
    calibrated = calibrate_cluster(base, measured, provenance)
    if output is not None:
        save_calibrated(calibrated, output)
        say(f"wrote {output}; use it with --machine {output}")
    return calibrated


def measured_of(run: Run, points: RunPoints, base: Base) -> list[Measured]:
    """Return those ``points`` that the model prices on ``base``; notes name the rest, and what is odd.

    Raises UsageError where the run's devices are others.
    """
    from ccbench.model.calibrated import faster_than_bound, modelled
    from ccbench.results.systems import remark_on_models

    # One machine is not fitted to the points of another; cards on the same slots are only remarked on.
    try:
        remark = remark_on_models(base.cluster.node, points.devices)
    except MachineError as error:
        raise UsageError(f"{run.path}: {error}") from None
    if remark:
        say(f"note: {remark}")
    measured, unknown = modelled(base, points.requests)
    for line in (
        *run.problems,
        *(f"left out {reason}" for reason in (*points.left_out, *unknown)),
    ):
        say(f"note: {line}")
    impossible = faster_than_bound(base, measured)
    if impossible:
        say(
            f"note: {impossible} points are faster than anything can be on {base.cluster.name}; "
            "is that what was measured? --machine, --nodes and --network say so"
        )
    return measured


def _base(run: Run, points: RunPoints, machine: str | None, network: str | None) -> Base:
    """The machine as told, else as the run says."""
    from ccbench.errors import MachineError
    from ccbench.model.calibrated import open_base
    from ccbench.results.observed import recorded_machine

    if machine is None:
        machine, why = recorded_machine(run, points)
        say(f"note: --machine {machine}, {why}")
    if points.nodes == 1 and network is not None:
        raise UsageError(
            f"--network {network}: {run.path} holds points of {points.ranks} ranks on one node; leave it out"
        )
    network = None if points.nodes == 1 else network or run.manifest.network or None
    try:
        return open_base(machine, points.nodes or None, network, points.ranks, points.path)
    except MachineError as error:
        raise UsageError(
            f"{run.path}: holds points of {points.ranks} ranks"
            + (f" on {points.nodes} nodes" if points.nodes else "")
            + f", which {machine} does not fit: {error}"
        ) from None


def summary(machine: CalibratedCluster) -> str:
    """Lines: scales with what tells them, and what was measured."""
    from ccbench.model.library.calibration import APART

    rows = []
    for level in machine.scales:
        text = plural(level.points, "point") + (
            " (not separable from other factors)" if level.apart < APART else ""
        )
        rows.append((level.term, f"{level.scale:.3f}", text if level.points else "no data"))
    scales = Table(columns("<scale of", "factor", "<from"), rows)
    lines = [
        f"{machine.name}: {machine.points} points of {machine.ranks} ranks",
        "",
        *aligned(scales),
        "",
        f"measured: {', '.join(machine.measured)}",
    ]
    # Predictions of a calibrated machine are for launches like those that it was fitted to.
    used = machine.measured_as
    if used.gpus_per_process > 1:
        lines.append(
            f"launches: one thread on {used.gpus_per_process} GPUs; predictions are for the same"
        )
    if used.multicast_off:
        lines.append("NVLS: switched off; predictions are for the same")
    return "\n".join(lines)
