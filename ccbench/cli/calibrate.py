"""``ccbench calibrate``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cli.naming import MACHINE, NETWORK
from ccbench.cli.output import as_json, check_writable, print_json, say
from ccbench.errors import UsageError
from ccbench.report.present import Table, aligned, columns
from ccbench.units import plural

if TYPE_CHECKING:
    from ccbench.model.calibrated import Base, CalibratedCluster, Measured
    from ccbench.results import Run
    from ccbench.results.observed import RunPoints


@click.command(short_help="Fit the model's constants to a run.")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Machine file, such as mine.yaml.",
)
@click.option(
    "--machine",
    type=MACHINE,
    help="A machine of 'ccbench list machines', a file or a dump; default: as it says.",
)
@click.option("--nodes", type=click.IntRange(min=1), help="How many of these machines.")
@click.option("--network", type=NETWORK, help="Network between them, such as ib-ndr-400x8.")
@click.option(
    "--ranks", type=click.IntRange(min=2), help="Which points, where RUN holds several."
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@as_json
def calibrate(
    run: Path | None,
    output: Path,
    machine: str | None,
    nodes: int | None,
    network: str | None,
    ranks: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Fit the model's constants to the points of RUN, and write them as a machine file of those GPUs.

    RUN is a run folder of NCCL or RCCL, measured or imported. Use the file with 'ccbench run SUITE --machine FILE'
    or 'ccbench predict --machine FILE'.
    """
    if run is None:
        raise UsageError(
            "RUN: missing; name a run folder of NCCL or RCCL (the CPU has predictions only within a run, which "
            "measures what they are made of: ccbench run quick)"
        )
    if output.suffix not in (".yaml", ".yml"):
        raise click.BadParameter(
            f"{str(output)!r} does not end in .yaml", param_hint="--output"
        )
    if output.exists() and not force:
        raise UsageError(
            f"--output {output}: is there already; name another file, or add --force"
        )
    check_writable(output, "--output")
    calibrated = _fit(run, output, machine, nodes, network, ranks)
    if as_json:
        print_json({"file": str(output), **asdict(calibrated)})
        return
    click.echo(summary(calibrated))
    click.echo(
        f"wrote {output}; ccbench predict --machine {output} --collective {calibrated.measured[0]}"
    )


def _fit(
    folder: Path,
    output: Path,
    machine: str | None,
    nodes: int | None,
    network: str | None,
    ranks: int | None,
) -> CalibratedCluster:
    from ccbench.model.calibrated import Provenance, calibrate_cluster, save_calibrated
    from ccbench.results import load_run
    from ccbench.results.observed import run_points

    run = load_run(folder, details=False)
    points = run_points(run, ranks, nodes)
    base = _base(run, points, machine, network)
    measured = measured_of(run, points, base)
    now = datetime.now(timezone.utc)
    name = f"{base.cluster.name}, calibrated {now:%Y-%m-%d}"
    run_name = folder.resolve().name
    driver = run.manifest.mapping("environment", "accelerators").get("driver")
    at = now.isoformat(timespec="seconds")
    # An import's environment is that of the host that imported it.
    driver_version = (
        driver
        if isinstance(driver, str) and not any(point.imported for point in run.points)
        else ""
    )
    provenance = Provenance(name, run_name, points.library, at, driver_version)
    calibrated = calibrate_cluster(base, measured, provenance)
    save_calibrated(calibrated, output)
    return calibrated


def measured_of(run: Run, points: RunPoints, base: Base) -> list[Measured]:
    """Return those ``points`` that the model prices on ``base``; notes name the rest, and what is odd.

    Raises UsageError where the run's devices are others.
    """
    from ccbench.model.calibrated import faster_than_bound, modelled
    from ccbench.results.systems import cure, difference

    # One machine is not fitted to the points of another; cards on the same slots are only remarked on.
    differs = difference(base.cluster.node, points.devices)
    if differs is not None and not differs.same_links:
        raise UsageError(f"{run.path}: {differs}; {cure(differs.listed)}")
    if differs is not None:
        say(f"note: {differs}; predictions are of the former, on the same kind of slots")
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
        return open_base(machine, points.nodes or None, network, points.ranks)
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
        text = plural(level.points, "point") + " (not separable from other factors)" * (
            level.apart < APART
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
