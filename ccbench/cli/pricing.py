"""The table of ``ccbench schedule --machine``: what an algorithm should take, beside those that it has to beat."""

from __future__ import annotations

from functools import partial

from ccbench.cli.output import show_lines, table_lines
from ccbench.cli.predict import OWN, Point, Query, cluster_points
from ccbench.cli.stating import system_of
from ccbench.errors import MachineError

SIZES_BYTES = tuple(1 << power for power in range(10, 31, 5))
"""1 KiB to 1 GiB."""


def show_beside(machine: str, collective: str, algorithm: str, ranks: int) -> None:
    """Print prices of ``algorithm`` beside ring, the best of ccbench's own and the machine's library."""
    from ccbench.model.calibrated import open_base
    from ccbench.report.present import ShownColumn, filled, table_of
    from ccbench.units import format_seconds, format_size

    name, nodes, network = system_of(machine)
    cluster = open_base(name, nodes, network, ranks).cluster
    query = Query(collective, None, "default", SIZES_BYTES, "float32")
    others = [each for each in query.schedules(ranks) if each != algorithm]
    priced = {
        each: cluster_points(cluster, query.only(each), OWN)[1]
        for each in dict.fromkeys((algorithm, *others))
    }
    try:
        library, prices = cluster_points(cluster, query, None)
    except MachineError:
        library, prices = "", []  # its model has nothing about this collective

    def of(name: str, point: Point) -> Point | None:
        same = (
            each
            for each in priced.get(name, prices)
            if each["size_bytes"] == point["size_bytes"]
        )
        return next(same, None)

    def seconds(name: str, point: Point) -> float | None:
        there = of(name, point)
        return None if there is None else float(there["predicted_seconds"])

    def best(point: Point) -> str:
        quickest = min(others, key=lambda name: seconds(name, point) or 0.0)
        return f"{format_seconds(seconds(quickest, point) or 0.0)} {quickest}"

    column = partial(ShownColumn, form=format_seconds, absent="", keep=9)
    named = [algorithm, *(["ring"] if "ring" in others else []), *([library] if prices else [])]
    shown = (
        ShownColumn("size", keep=9, value="size_bytes", form=format_size),
        *(column(name, value=partial(seconds, name)) for name in named),
        *(
            [ShownColumn("best of ccbench's others", right=False, keep=9, value=best)]
            if others
            else []
        ),
        ShownColumn("bound", keep=5, value="bound_seconds", form=format_seconds),
    )
    mine = priced[algorithm]
    show_lines(
        [
            f"{collective} float32 on {cluster.name}, {ranks} ranks, predicted times of one launch"
        ]
    )
    show_lines(table_lines(filled(table_of(shown, mine))))
    ends = {point["size_bytes"]: point for point in (mine[0], mine[-1])}
    show_lines(
        [
            f"{algorithm} at {format_size(size)}: {point['bottleneck']}"
            for size, point in ends.items()
        ]
    )
