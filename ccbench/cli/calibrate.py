"""``ccbench calibrate``."""

from __future__ import annotations

from pathlib import Path

import click

from ccbench.cli.output import duration, say


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
def calibrate(output: Path, seconds: float) -> None:
    """Measure what predictions are made of (rates, latencies) and write it as a machine file.

    Use it with 'ccbench run SUITE --machine FILE' or 'ccbench predict --machine FILE'.
    """
    from ccbench.model import save_machine
    from ccbench.model.calibration import measure_machine

    if output.suffix not in (".yaml", ".yml"):
        raise click.BadParameter(f"{str(output)!r} does not end in .yaml", param_hint="--output")
    say(f"measuring for about {seconds:g} s")
    machine = measure_machine(seconds)
    save_machine(machine, output)
    click.echo(f"wrote {output}: {machine.name}, {machine.fabric.cores} cores")
