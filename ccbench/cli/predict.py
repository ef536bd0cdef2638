"""``ccbench predict`` and ``ccbench plan``: prices without running anything, of a collective or of those of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cli.naming import ALGORITHM, COLLECTIVE, DTYPE, plans, suites
from ccbench.cli.output import (
    as_json,
    completing,
    numbers,
    print_json,
    say,
    show_lines,
    table_lines,
)
from ccbench.cli.pricing import (
    ANOTHER_LIBRARY,
    LIBRARY,
    OWN,
    Point,
    Query,
    cluster_points,
    library_point,
    rates,
)
from ccbench.cli.stating import on_machine, stated_source, states_the_machine
from ccbench.errors import UsageError

if TYPE_CHECKING:
    from ccbench.model.calibrated import CalibratedCluster, CalibratedPoint
    from ccbench.model.cluster import Cluster


@click.command(short_help="Price collectives on a machine without running them.")
@on_machine(
    "A name of 'ccbench list machines', a file (also of -o), a dump, or 'detect'; of --from as RUN says"
)
@click.option(
    "--from",
    "run",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Fit the model's constants to a run of NCCL or RCCL first.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --from: write what was fitted as a machine file, .yaml.",
)
@click.option(
    "--collective", type=COLLECTIVE, help="What to price; of --from what it measured."
)
@click.option("--algorithm", type=ALGORITHM, help="Only this one.")
@click.option(
    "--protocol",
    default="default",
    show_default=True,
    help="Of a library: ll, ll128 or simple.",
)
@click.option(
    "--ranks", type=click.IntRange(min=1), help="Number of ranks; default: every GPU."
)
@click.option(
    "--sizes",
    default="8:1GiB:2",
    show_default=True,
    callback=numbers,
    help="FROM:TO:FACTOR, or sizes with commas between.",
)
@click.option("--dtype", type=DTYPE, default="float32", show_default=True, help="Element type.")
@click.option(
    "--model",
    type=click.Choice([LIBRARY, OWN]),
    help="GPUs: a collective library (NCCL, RCCL), which chooses by itself, or ccbench's own schedules.",
)
@click.option(
    "--gate-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the intervals as YAML for --gate; more collectives of the same machine join them.",
)
@click.option(
    "--suite",
    metavar="SUITE",
    shell_complete=completing(suites, "file"),
    help="What its work should take, and the winner by size: serving, beside what servers publish.",
)
@states_the_machine
@as_json
def predict(
    machine: str | None,
    run: Path | None,
    output: Path | None,
    nodes: int | None,
    network: str | None,
    collective: str | None,
    algorithm: str | None,
    protocol: str,
    ranks: int | None,
    sizes: tuple[int, ...],
    dtype: str,
    model: str | None,
    gate_file: Path | None,
    suite: str | None,
    gpu: str | None,
    pcie: str | None,
    as_json: bool,
) -> None:
    """Price a collective on a machine: the bound that no algorithm should beat, and what each should take.

    --from fits the model to a run, whose machine it is then; -o keeps that for 'ccbench run --machine FILE'.
    """
    from ccbench.cli.fitting import fitted, summary

    name = stated_source(machine, gpu, pcie) or machine
    own = None
    if run is not None:
        own = fitted(run, output, name, nodes, network, ranks)
        collective = collective or own.measured[0]
        show_lines([] if as_json else [*summary(own).splitlines(), ""])
    elif output is not None:
        raise UsageError("-o: is of what --from fits; name a run with it, or leave -o out")
    elif name is None:
        raise UsageError(
            "missing: --machine hgx-h100, or another of 'ccbench list machines'; or --from RUN"
        )
    elif suite is not None:
        from ccbench.cli.suite_prices import show_suite

        show_suite(suite, (name, nodes, network, ranks), as_json)
        return
    elif collective is None:
        raise UsageError(
            "missing: --collective all_reduce, or another of 'ccbench list collectives'"
        )
    query = Query(collective, algorithm, protocol, sizes, dtype)
    fixed: dict[str, object] = {
        "--nodes": nodes,
        "--network": network,
        "--ranks": ranks,
        "--model": model,
    }
    own = own or _calibrated(name or "", fixed)
    cluster = own.cluster if own is not None else None
    if own is not None:
        where, by = own.cluster.name, "the calibrated library"
        from ccbench.model.calibrated import calibrated_points

        points = _beside(calibrated_points(own, query.of_library(own.ranks)))
    else:
        stated = name or "", nodes, network, ranks
        cluster, by, points = _on_cluster(stated, query, model)
        where = cluster.name
    if gate_file is not None:
        _write_gates(gate_file, query, points, cluster)
    if as_json:
        print_json(points)
    else:
        _print_table(points, f"{collective} {dtype} on {where}", by)


def _on_cluster(
    stated: tuple[str, int | None, str | None, int | None],
    query: Query,
    model: str | None,
) -> tuple[Cluster, str, list[Point]]:
    """Return (cluster, what would run there, points) of ``stated``: machine, nodes, network and ranks."""
    from ccbench.model.calibrated import open_base

    base = open_base(*stated)
    cluster, network = base.cluster, stated[2]
    # A number of nodes forgotten, not a wish.
    if network is not None and cluster.nodes == 1:
        raise UsageError(
            f"--network {network}: {cluster.ranks} ranks are one {cluster.name}, joined to no other; "
            "give --nodes, or leave --network out"
        )
    if cluster.ranks == 1:
        raise UsageError(f"--ranks: one rank of {cluster.name} sends nothing; give 2 or more")
    by, points = cluster_points(cluster, query, model)
    return cluster, by, points


def _write_gates(
    path: Path, query: Query, points: Sequence[Point], cluster: Cluster | None
) -> None:
    """Write the intervals of ``points``, calibrated where the machine is. Raises UsageError without them."""
    from ccbench.analysis.gate_file import EDGES, FORM, gate_point, write_gates

    forced = query.algorithm is not None or query.protocol != "default"
    if cluster is None or forced or "predicted_origin" not in points[0]:
        raise UsageError(
            "--gate-file: holds intervals of what a library on GPUs chooses by itself; leave --algorithm, "
            "--protocol and --model out, and name the GPUs' own machine, such as hgx-h100"
        )
    # A size below one element of every rank's block is rounded down to none.
    sized = [point for point in points if point["size_bytes"]]
    if not sized:
        raise UsageError("--gate-file: every size is rounded down to 0 B; name larger --sizes")
    gates = []
    for point in sized:
        of = "calibrated" if "calibrated_seconds" in point else "predicted"
        times = {f"{edge}_seconds": point[f"{of}_{edge}_seconds"] for edge in EDGES}
        times = {"predicted_seconds": point[f"{of}_seconds"], **times}
        gates.append(
            gate_point(point["collective"], point["size_bytes"], point["ranks"], times)
        )
        origin = point[f"{of}_origin"]
    header = {
        "format": FORM,
        "machine": cluster.node.name,
        "nodes": cluster.nodes,
        "ranks": cluster.ranks,
        "network": str(cluster.stated or cluster.network) if cluster.network else None,
        "library": "RCCL" if cluster.system.is_amd else "NCCL",
        "dtype": query.dtype,
        "origin": origin,
    }
    write_gates(path, {**header, "gates": gates})
    say(f"wrote {path}")


def _calibrated(name: str, fixed: dict[str, object]) -> CalibratedCluster | None:
    """The machine of a file that 'predict --from' wrote; None where ``name`` is something else."""
    from ccbench.model.calibrated import is_calibrated_file, load_calibrated

    if not is_calibrated_file(name):
        return None
    from ccbench.machine.accelerators import driver_version
    from ccbench.machine.files import Files
    from ccbench.model.machine_files import too_old

    machine = load_calibrated(name)
    cure = "drivers and libraries may have changed since: ccbench predict --from a new RUN"
    here = driver_version(Files()) or ""
    if machine.driver and here and here != machine.driver:
        differs = f"was measured with driver {machine.driver}, and this host has {here}"
        say(f"note: {name}: {machine.name} {differs}; {cure}")
    elif warning := too_old(f"{name}: {machine.name}", [machine.calibrated_at], cure):
        say(f"note: {warning}")
    for option, value in fixed.items():
        if value is not None and (option, value) not in {
            ("--ranks", machine.ranks),
            ("--model", LIBRARY),
        }:
            raise UsageError(
                f"{option} {value}: {name} is calibrated for a library on {machine.ranks} ranks of "
                f"{machine.cluster.name}; leave {option} out, or name the machine itself"
            )
    return machine


def _beside(calibrated: Sequence[CalibratedPoint]) -> list[Point]:
    """The usual predictions, and beside each the calibrated time with the rates of that time."""
    points = []
    for point in calibrated:
        usual = point.point
        algbw, busbw = rates(
            usual.collective, usual.ranks, usual.size_bytes, point.calibrated_seconds
        )
        figures = {
            "seconds": point.calibrated_seconds,
            "algbw_GB_s": algbw,
            "busbw_GB_s": busbw,
        }
        figures |= asdict(point.interval)
        further = {f"calibrated_{name}": value for name, value in figures.items()}
        points.append(library_point(usual) | further)
    return points


def _print_table(points: Sequence[Point], what: str, by: str) -> None:
    from ccbench.report.case_table import rate_text
    from ccbench.report.present import ShownColumn, filled, table_of
    from ccbench.units import format_seconds, format_size, plural

    ranks = "".join(f", {plural(point['ranks'], 'rank')}" for point in points[:1])
    show_lines(
        [f"{what}{ranks}, as {by} would run it (times of one launch; 1 GB/s is 1e9 B/s)"]
    )
    protocols = any(point["protocol"] != "default" for point in points)
    calibrated = any("calibrated_seconds" in point for point in points)
    of = "calibrated" if calibrated else "predicted"
    # Rates are of the time that is the best known: calibrated where the machine was.
    best = "calibrated_" if calibrated else ""

    # Of Ascend's library no constants are published: there NCCL's are told, and named.
    theirs = {"NCCL": "NCCL", "RCCL": "RCCL", ANOTHER_LIBRARY: "NCCL"}
    own = f"{theirs.get(by, 'library')}'s own"
    word = partial(ShownColumn, right=False, absent="")
    seconds = partial(ShownColumn, form=format_seconds, absent="")
    # One rank sends nothing and a barrier moves no data: a zero is no speed and no limit.
    bound = ShownColumn(
        "bound",
        keep=5,
        value=lambda point: point["bound_seconds"] or None,
        form=format_seconds,
    )
    rate = partial(ShownColumn, form=lambda rate: rate_text(rate, 3) if rate > 0 else "-")
    shown = (
        word("algorithm", keep=9, value="algorithm"),
        *([word("protocol", keep=8, value="protocol")] if protocols else []),
        ShownColumn("size", keep=9, value="size_bytes", form=format_size),
        bound,
        seconds("predicted", keep=9, value="predicted_seconds"),
        seconds(own, keep=1, value="nccl_seconds"),
        *([seconds("calibrated", keep=9, value="calibrated_seconds")] if calibrated else []),
        seconds("80 % from", keep=6, value=f"{of}_low_80_seconds"),
        seconds("to", keep=4, value=f"{of}_high_80_seconds"),
        rate("algbw GB/s", keep=2, value=f"{best}algbw_GB_s"),
        rate("busbw GB/s", keep=8, value=f"{best}busbw_GB_s"),
        word("bottleneck", keep=3, value="bottleneck"),
    )
    lines = table_lines(filled(table_of(shown, points)))
    for origin in dict.fromkeys(point.get(f"{of}_origin", "") for point in points):
        if origin:
            lines.append(
                f"80 % of measured times lie between: errors of predictions on {origin}"
            )
    if any(point.get("nccl_seconds") for point in points):
        lines.append(f"{own}: by the constants of its tuning model")
    for remark in dict.fromkeys(point.get("extrapolated", "") for point in points):
        if remark:
            lines.append(f"extrapolated: {remark}")
    show_lines(lines)


@click.command(short_help="Price a training step's collectives on a machine.")
@click.argument(
    "plan_file",
    type=click.Path(path_type=Path),
    metavar="PLAN.yaml",
    shell_complete=completing(plans, "file"),
)
@on_machine("Instead of the plan's: a name of 'ccbench list machines', a file, a dump")
@as_json
def plan(
    plan_file: Path, machine: str | None, nodes: int | None, network: str | None, as_json: bool
) -> None:
    """List the collectives of a training step: how large, how often, what each costs on a machine.

    PLAN.yaml names a model, a machine and a layout; docs/suites.md has its keys. A
    plan that ships goes by its name, such as gpt3. For each collective: which ranks, how large, how often,
    how long, and which link limits it.
    """
    from ccbench.plan.document import load_plan
    from ccbench.plan.pricing import price_plan
    from ccbench.report.plan_text import plan_document, plan_lines

    priced = price_plan(load_plan(plan_file), machine, nodes, network)
    if as_json:
        print_json(plan_document(priced))
    else:
        show_lines(plan_lines(priced, table_lines))
