"""``ccbench predict``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from ccbench.cli.output import as_json, print_json
from ccbench.cli.schedule import algorithm_completions, collective_completions

if TYPE_CHECKING:
    from ccbench.model import Machine, Prediction
    from ccbench.model.calibrated import CalibratedCluster
    from ccbench.model.calibrated_points import CalibratedPoint
    from ccbench.model.cluster import Cluster, ClusterPoint
    from ccbench.model.library.system import LibraryRequest

Point = dict[str, str | int | float]

OWN = "schedule"
LIBRARY = "library"


@click.command(short_help="Price collectives on a machine without running them.")
@click.option(
    "--machine",
    required=True,
    help="A machine of 'ccbench list machines', a file (also of 'ccbench calibrate'), a dump, or 'detect'.",
)
@click.option("--nodes", type=click.IntRange(min=1), help="Machines; default: as many as hold --ranks.")
@click.option("--network", help="What joins them: <kind>-<Gb/s>x<NICs>, such as ib-ndr-400x8.")
@click.option("--collective", required=True, shell_complete=collective_completions, help="What to price.")
@click.option("--algorithm", shell_complete=algorithm_completions, help="Only this one.")
@click.option("--protocol", default="default", show_default=True, help="Of a library: ll, ll128 or simple.")
@click.option("--ranks", type=click.IntRange(min=1), help="Number of ranks; default: every GPU.")
@click.option(
    "--sizes", default="8:1GiB:2", show_default=True, help="FROM:TO:FACTOR, or sizes with commas between."
)
@click.option("--dtype", default="float32", show_default=True, help="Element type.")
@click.option(
    "--model",
    "of",
    type=click.Choice([LIBRARY, OWN]),
    help="GPUs: a collective library (NCCL, RCCL), which chooses unless told, or ccbench's own schedules.",
)
@as_json
def predict(
    machine: str,
    nodes: int | None,
    network: str | None,
    collective: str,
    algorithm: str | None,
    protocol: str,
    ranks: int | None,
    sizes: str,
    dtype: str,
    of: str | None,
    as_json: bool,
) -> None:
    """Price a collective on a machine: the bound that no algorithm should beat, and what each should take."""
    sizes_bytes = _sizes(sizes)
    own = _calibrated(machine, {"--nodes": nodes, "--network": network, "--ranks": ranks, "--model": of})
    host = _host(machine, (nodes, network, of)) if own is None else None
    if own is not None:
        points = _calibrated_points(own, collective, algorithm, protocol, sizes_bytes, dtype)
        where, by = own.cluster.name, "the calibrated library"
    elif host is not None:
        _refuse_protocol(protocol)
        points = _host_points(host, collective, algorithm, ranks, sizes_bytes, dtype)
        where, by = host.name, "ccbench's own schedules"
    else:
        from ccbench.model.cluster import open_cluster

        cluster = open_cluster(machine, nodes, network, ranks)
        _refuse_network(cluster, network)
        where = cluster.name
        if of == OWN:
            _refuse_protocol(protocol)
            points, by = (
                _schedule_points(cluster, collective, algorithm, sizes_bytes, dtype),
                "ccbench's own schedules",
            )
        else:
            points = _library_points(cluster, collective, algorithm, protocol, sizes_bytes, dtype)
            by = "a collective library"
    if as_json:
        print_json(points)
    else:
        _print_table(points, f"{collective} {dtype} on {where}", by)


def _calibrated(name: str, fixed: dict[str, object]) -> CalibratedCluster | None:
    """The machine of a file that 'ccbench calibrate RUN' wrote; None where ``name`` is something else."""
    from ccbench.errors import UsageError
    from ccbench.model.calibrated import is_calibrated_file, load_calibrated

    if not is_calibrated_file(name):
        return None
    machine = load_calibrated(name)
    for option, value in fixed.items():
        if value is not None and (option, value) not in {("--ranks", machine.ranks), ("--model", LIBRARY)}:
            raise UsageError(
                f"{option} {value}: {name} is calibrated for a library on {machine.ranks} ranks of "
                f"{machine.cluster.name}; leave {option} out, or name the machine itself"
            )
    return machine


def _host(name: str, of_clusters: tuple[object, ...]) -> Machine | None:
    """A machine whose ranks are processes on processors; None where ``name`` is one with GPUs."""
    from ccbench.errors import UsageError
    from ccbench.model import load_machine, machine_names
    from ccbench.model.machine import is_machine_file

    known = name in machine_names() or name == "detect" or is_machine_file(name)
    if not known:
        return None
    if name == "detect":
        from ccbench.machine.detection import load_topology

        if load_topology(None).gpus:
            return None
    if any(option is not None for option in of_clusters):
        raise UsageError(
            f"--machine {name}: is one host; --nodes, --network and --model are for machines with GPUs"
        )
    if name == "detect":
        from ccbench.model.calibration import quick_machine

        return quick_machine()
    return load_machine(name)


def _refuse_network(cluster: Cluster, network: str | None) -> None:
    """A network between one machine and nothing is a number of nodes forgotten, not a wish."""
    from ccbench.errors import UsageError

    if network is not None and cluster.nodes == 1:
        raise UsageError(
            f"--network {network}: {cluster.ranks} ranks are one {cluster.name}, joined to no other; "
            "give --nodes, or leave --network out"
        )


def _of_library(option: str, word: str, known: tuple[str, ...]) -> str:
    """``word`` as the model spells it; NCCL's own spelling (LL128, NVLSTree) is the same."""
    from ccbench.errors import UsageError
    from ccbench.units import shown

    named = word.lower()
    if named != "default" and named not in known:
        raise UsageError(
            f"{option} {shown(word)}: a library has no such thing; one of default, {', '.join(known)}"
        )
    return named


def _refuse_protocol(protocol: str) -> None:
    from ccbench.errors import UsageError

    if protocol != "default":
        raise UsageError(
            f"--protocol {protocol}: schedules have none; it is for libraries on machines with GPUs"
        )


def _possible(collective: str, ranks: int) -> tuple[str, ...]:
    """Names of the algorithms that so many ranks can run."""
    from ccbench.schedules import algorithm_row, algorithms_of

    rows = [algorithm_row(collective, name) for name in algorithms_of(collective)]
    return tuple(row.name for row in rows if row.unsupported(ranks, row.default_parameter(ranks, 0)) is None)


def _sizes(text: str) -> tuple[int, ...]:
    """``8:1GiB:2`` or ``8,64KiB`` in bytes."""
    from ccbench.suite import parse_sizes

    try:
        return tuple(size for part in text.split(",") for size in parse_sizes(part))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 8:1GiB:2 or 8,64KiB", param_hint="--sizes") from None


def _whole_sizes(collective: str, sizes: Iterable[int], ranks: int, dtype: str) -> dict[int, int]:
    """Size -> count; sizes round down to whole elements, as in nccl-tests, so two of them may become one."""
    from ccbench.collectives import collective as row_of
    from ccbench.dtypes import item_bytes

    row, item = row_of(collective), item_bytes(dtype)
    counts = dict.fromkeys(row.count_for(size, ranks, item) for size in sizes)
    return {row.size_bytes(count, ranks, item): count for count in counts}


def _host_points(
    machine: Machine,
    collective: str,
    algorithm: str | None,
    ranks: int | None,
    sizes: tuple[int, ...],
    dtype: str,
) -> list[Point]:
    from ccbench.dtypes import item_bytes
    from ccbench.errors import UsageError
    from ccbench.model import price
    from ccbench.schedules import schedule_for

    if ranks is None:
        raise UsageError("--ranks: missing; on a host any number of processes can take part, so say how many")
    names = (algorithm,) if algorithm is not None else _possible(collective, ranks)
    points = []
    for name in names:
        for size, count in _whole_sizes(collective, sizes, ranks, dtype).items():
            schedule = schedule_for(collective, name, ranks, size_bytes=size, prove=False)
            priced = price(schedule, count, item_bytes(dtype), machine, dtype=dtype)
            points.append(_point(collective, name, "default", ranks, size, priced))
    return points


def _library_points(
    cluster: Cluster,
    collective: str,
    algorithm: str | None,
    protocol: str,
    sizes: tuple[int, ...],
    dtype: str,
) -> list[Point]:
    from ccbench.model.cluster import library_points

    request = _request(cluster.ranks, collective, algorithm, protocol, sizes, dtype)
    return [_library_point(point) for point in library_points(cluster, request)]


def _calibrated_points(
    machine: CalibratedCluster,
    collective: str,
    algorithm: str | None,
    protocol: str,
    sizes: tuple[int, ...],
    dtype: str,
) -> list[Point]:
    from ccbench.model.calibrated_points import calibrated_points

    request = _request(machine.ranks, collective, algorithm, protocol, sizes, dtype)
    return [_calibrated_point(one) for one in calibrated_points(machine, request)]


def _calibrated_point(one: CalibratedPoint) -> Point:
    """The usual prediction, and beside it the calibrated time with the rates of that time."""
    usual = one.point
    algbw, busbw = _rates(usual.collective, usual.ranks, usual.size_bytes, one.calibrated_seconds)
    return _library_point(usual) | {
        "calibrated_seconds": one.calibrated_seconds,
        "calibrated_algbw_GB_s": algbw,
        "calibrated_busbw_GB_s": busbw,
        "label": one.label,
    }


def _request(
    ranks: int, collective: str, algorithm: str | None, protocol: str, sizes: tuple[int, ...], dtype: str
) -> LibraryRequest:
    from ccbench.dtypes import item_bytes
    from ccbench.model.library.system import ALGORITHMS, PROTOCOLS, LibraryRequest

    return LibraryRequest(
        collective,
        tuple(_whole_sizes(collective, sizes, ranks, dtype)),
        item_bytes(dtype),
        dtype.startswith("float8"),
        algorithm=_of_library("--algorithm", algorithm or "default", ALGORITHMS),
        protocol=_of_library("--protocol", protocol, PROTOCOLS),
    )


def _library_point(point: ClusterPoint) -> Point:
    priced = _point(
        point.collective, point.algorithm, point.protocol, point.ranks, point.size_bytes, point.prediction
    )
    return priced | {"extrapolated": point.extrapolated}


def _schedule_points(
    cluster: Cluster, collective: str, algorithm: str | None, sizes: tuple[int, ...], dtype: str
) -> list[Point]:
    from ccbench.model.cluster import schedule_points

    names = (algorithm,) if algorithm is not None else _possible(collective, cluster.ranks)
    whole = tuple(_whole_sizes(collective, sizes, cluster.ranks, dtype))
    return [
        _point(collective, name, "default", point.ranks, point.size_bytes, point.prediction)
        for name in names
        for point in schedule_points(cluster, collective, name, whole)
    ]


def _point(
    collective: str, algorithm: str, protocol: str, ranks: int, size_bytes: int, priced: Prediction
) -> Point:
    algbw, busbw = _rates(collective, ranks, size_bytes, priced.predicted_seconds)
    return {
        "collective": collective,
        "algorithm": algorithm,
        "protocol": protocol,
        "ranks": ranks,
        "size_bytes": size_bytes,
        "bound_seconds": priced.bound_seconds,
        "predicted_seconds": priced.predicted_seconds,
        "algbw_GB_s": algbw,
        "busbw_GB_s": busbw,
        "bottleneck": priced.bottleneck,
    }


def _rates(collective: str, ranks: int, size_bytes: int, seconds: float) -> tuple[float, float]:
    """algbw and busbw in GB/s of a collective that takes ``seconds``; 0 where it takes no time."""
    from ccbench.collectives import collective as row_of

    rate = size_bytes / seconds / 1e9 if seconds > 0 else 0.0
    return rate, rate * row_of(collective).bus_factor(ranks)


def _print_table(points: list[Point], what: str, by: str) -> None:
    from ccbench.units import format_seconds, format_size, plural

    ranks = "".join(f", {plural(int(point['ranks']), 'rank')}" for point in points[:1])
    click.echo(f"{what}{ranks}, as {by} would run it (times of one launch; 1 GB/s is 1e9 B/s)")
    protocols = any(point["protocol"] != "default" for point in points)
    calibrated = any("label" in point for point in points)
    head = f"{'algorithm':20} " + (f"{'protocol':8} " if protocols else "")
    head += f"{'size':>10} {'bound':>10} {'predicted':>10} " + (f"{'calibrated':>11} " if calibrated else "")
    click.echo(head + f"{'algbw GB/s':>10} {'busbw GB/s':>10}  bottleneck")
    for point in points:
        # Of the time that is the best known: calibrated where the machine was.
        bound = float(point["bound_seconds"])
        algbw, busbw = (
            float(point.get(f"calibrated_{name}", point[name])) for name in ("algbw_GB_s", "busbw_GB_s")
        )
        click.echo(
            f"{point['algorithm']:20} "
            + (f"{point['protocol']:8} " if protocols else "")
            + f"{format_size(int(point['size_bytes'])):>10} "
            # One rank sends nothing and a barrier moves no data: a zero is no speed and no limit.
            f"{format_seconds(bound) if bound > 0 else '-':>10} "
            f"{format_seconds(float(point['predicted_seconds'])):>10} "
            + (f"{_calibrated_text(point):>11} " if calibrated else "")
            + f"{_rate_text(algbw):>10} {_rate_text(busbw):>10}  {point['bottleneck']}"
        )
    remarks = dict.fromkeys(str(point.get("extrapolated", "")) for point in points)
    for remark in filter(None, remarks):
        click.echo(f"extrapolated: {remark}")
    if any(point.get("label") == "extrapolated" for point in points):
        click.echo("~ calibrated on other sizes, collectives or algorithms, and extrapolated from them")


def _rate_text(gigabytes: float) -> str:
    return f"{gigabytes:.3f}" if gigabytes > 0 else "-"


def _calibrated_text(point: Point) -> str:
    from ccbench.units import format_seconds

    mark = "~" if point["label"] == "extrapolated" else ""
    return mark + format_seconds(float(point["calibrated_seconds"]))
