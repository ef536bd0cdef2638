"""``ccbench predict``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ccbench.cli.output import as_json, print_json
from ccbench.cli.schedule import algorithm_completions, collective_completions

if TYPE_CHECKING:
    from ccbench.model import Machine

Point = dict[str, str | int | float]


@click.command(short_help="Price collectives on a machine without running them.")
@click.option("--machine", required=True, help="A name ('ccbench list machines'), a file, or 'detect'.")
@click.option("--collective", required=True, shell_complete=collective_completions, help="What to price.")
@click.option("--algorithm", shell_complete=algorithm_completions, help="Only this one; else all of them.")
@click.option("--ranks", type=click.IntRange(min=1), required=True, help="Number of ranks.")
@click.option(
    "--sizes", default="8:1GiB:2", show_default=True, help="FROM:TO:FACTOR, or sizes with commas between."
)
@click.option("--dtype", default="float32", show_default=True, help="Element type.")
@as_json
def predict(
    machine: str,
    collective: str,
    algorithm: str | None,
    ranks: int,
    sizes: str,
    dtype: str,
    as_json: bool,
) -> None:
    """Price a collective on a machine: the bound that no algorithm should beat, and what each should take."""
    names = (algorithm,) if algorithm is not None else _possible(collective, ranks)
    priced_on = _machine(machine)
    sizes_bytes = _sizes(sizes)
    points = [
        point for name in names for point in _points(priced_on, collective, name, ranks, sizes_bytes, dtype)
    ]
    if as_json:
        print_json(points)
    else:
        _print_table(points)


def _possible(collective: str, ranks: int) -> tuple[str, ...]:
    """Names of the algorithms that so many ranks can run."""
    from ccbench.algorithms import algorithm_row, algorithms_of

    rows = [algorithm_row(collective, name) for name in algorithms_of(collective)]
    return tuple(row.name for row in rows if row.unsupported(ranks, row.default_parameter(ranks, 0)) is None)


def _machine(name: str) -> Machine:
    from ccbench.model import load_machine
    from ccbench.model.calibration import quick_machine

    return quick_machine() if name == "detect" else load_machine(name)


def _sizes(text: str) -> tuple[int, ...]:
    """``8:1GiB:2`` or ``8,64KiB`` in bytes."""
    from ccbench.suite import parse_sizes

    try:
        return tuple(size for part in text.split(",") for size in parse_sizes(part))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 8:1GiB:2 or 8,64KiB", param_hint="--sizes") from None


def _points(
    machine: Machine, collective_name: str, algorithm: str, ranks: int, sizes: tuple[int, ...], dtype: str
) -> list[Point]:
    from ccbench.algorithms import schedule_for
    from ccbench.collectives import collective
    from ccbench.dtypes import item_bytes
    from ccbench.model import price

    row, item = collective(collective_name), item_bytes(dtype)
    # Sizes round down to whole elements, as in nccl-tests, so two of them may become one.
    counts = dict.fromkeys(row.count_for(size, ranks, item) for size in sizes)
    points: list[Point] = []
    for count in counts:
        size_bytes = row.size_bytes(count, ranks, item)
        schedule = schedule_for(collective_name, algorithm, ranks, size_bytes=size_bytes, prove=False)
        priced = price(schedule, count, item, machine, dtype=dtype)
        rate = size_bytes / priced.predicted_seconds / 1e9 if priced.predicted_seconds > 0 else 0.0
        points.append(
            {
                "collective": collective_name,
                "algorithm": algorithm,
                "protocol": "default",
                "ranks": ranks,
                "size_bytes": size_bytes,
                "bound_seconds": priced.bound_seconds,
                "predicted_seconds": priced.predicted_seconds,
                "algbw_GB_s": rate,
                "busbw_GB_s": rate * row.bus_factor(ranks),
                "bottleneck": priced.bottleneck,
            }
        )
    return points


def _print_table(points: list[Point]) -> None:
    from ccbench.units import format_seconds, format_size

    click.echo(
        f"{'algorithm':20} {'size':>10} {'bound':>10} {'predicted':>10} {'busbw GB/s':>10}  bottleneck"
    )
    for point in points:
        bound, busbw = float(point["bound_seconds"]), float(point["busbw_GB_s"])
        click.echo(
            f"{point['algorithm']:20} {format_size(int(point['size_bytes'])):>10} "
            # One rank sends nothing and a barrier moves no data: a zero is no speed and no limit.
            f"{format_seconds(bound) if bound > 0 else '-':>10} "
            f"{format_seconds(float(point['predicted_seconds'])):>10} "
            f"{f'{busbw:.3f}' if busbw > 0 else '-':>10}  {point['bottleneck']}"
        )
