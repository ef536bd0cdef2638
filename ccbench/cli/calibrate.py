"""``ccbench calibrate``."""

from __future__ import annotations

import platform
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import click

from ccbench.cli.output import check_writable, duration, say
from ccbench.errors import UsageError


@click.command(short_help="Measure this machine's constants for predictions.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Machine file, such as mine.yaml."
)
@click.option(
    "--time",
    "seconds",
    metavar="DURATION",
    callback=duration,
    default="2s",
    show_default=True,
    help="How long to measure.",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def calibrate(output: Path, seconds: float, force: bool) -> None:
    """Measure what predictions are made of (rates, latencies) and write it as a machine file.

    Use it with 'ccbench run SUITE --machine FILE' or 'ccbench predict --machine FILE'.
    """
    from ccbench.model import save_machine
    from ccbench.model.calibration import measure_machine

    if output.suffix not in (".yaml", ".yml"):
        raise click.BadParameter(f"{str(output)!r} does not end in .yaml", param_hint="--output")
    if output.exists() and not force:
        raise UsageError(f"--output {output}: is there already; name another file, or add --force")
    check_writable(output, "--output")
    say(f"measuring for about {seconds:g} s")
    machine = replace(measure_machine(seconds), name=_name())
    save_machine(machine, output)
    click.echo(f"wrote {output}: {machine.name}, {machine.fabric.cores} cores")


def _name() -> str:
    """Host and day, so that reports tell machines and calibrations apart."""
    return f"{platform.node() or 'host'}-{datetime.now(timezone.utc):%Y-%m-%d}"
