"""Prices of a collective on a cluster, and the table of ``ccbench schedule --machine``.

There stands what an algorithm should take, beside those that it has to beat.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ccbench.cli.output import show_lines, table_lines
from ccbench.cli.stating import system_of
from ccbench.errors import MachineError, UsageError

if TYPE_CHECKING:
    from ccbench.model import Prediction
    from ccbench.model.cluster import Cluster, ClusterPoint
    from ccbench.model.library import LibraryRequest

Point = dict[str, Any]

OWN = "schedule"
LIBRARY = "nccl"
ANOTHER_LIBRARY = "a collective library"
"""Ascend's, which is priced with the algorithms and constants of NCCL."""


@dataclass(frozen=True)
class Query:
    """A request of the command line."""

    collective: str
    algorithm: str | None
    protocol: str
    sizes_bytes: tuple[int, ...]
    dtype: str

    def counts(self, ranks: int) -> dict[int, int]:
        """Size -> count; sizes round down to whole elements, as in nccl-tests, so two may become one."""
        from ccbench.collectives import collective
        from ccbench.dtypes import item_bytes

        row, item = collective(self.collective), item_bytes(self.dtype)
        counts = dict.fromkeys(row.count_for(size, ranks, item) for size in self.sizes_bytes)
        return {row.size_bytes(count, ranks, item): count for count in counts}

    def only(self, algorithm: str) -> Query:
        """Return the request for one algorithm."""
        return replace(self, algorithm=algorithm)

    def schedules(self, ranks: int) -> tuple[str, ...]:
        """The algorithm asked for, else those that so many ranks can run; schedules have no protocol."""
        from ccbench.schedules import algorithm_row, algorithms_of

        if self.protocol != "default":
            raise UsageError(
                f"--protocol {self.protocol}: schedules have none; it is for libraries on machines with GPUs"
            )
        if self.algorithm is not None:
            return (self.algorithm,)
        rows = [algorithm_row(self.collective, name) for name in algorithms_of(self.collective)]
        return tuple(
            row.name
            for row in rows
            if row.unsupported(ranks, row.default_parameter(ranks, 0)) is None
        )

    def of_library(self, ranks: int) -> LibraryRequest:
        """Return the request as a library's model takes it, in NCCL's own spelling (LL128, NVLSTree) too."""
        from ccbench.dtypes import item_bytes
        from ccbench.model.library import ALGORITHMS, PROTOCOLS, LibraryRequest
        from ccbench.units import shown

        words = {}
        for option, word, names in (
            ("algorithm", self.algorithm or "default", ALGORITHMS),
            ("protocol", self.protocol, PROTOCOLS),
        ):
            words[option] = word.lower()
            if words[option] not in ("default", *names):
                raise UsageError(
                    f"--{option} {shown(word)}: a library has no such thing; "
                    f"one of default, {', '.join(names)}"
                )
        return LibraryRequest(
            self.collective,
            tuple(self.counts(ranks)),
            item_bytes(self.dtype),
            self.dtype.startswith("float8"),
            algorithm=words["algorithm"],
            protocol=words["protocol"],
        )


def cluster_points(
    cluster: Cluster, query: Query, model: str | None
) -> tuple[str, list[Point]]:
    """Return (the library or schedules that would run it, the points)."""
    from ccbench.model.cluster import library_points, schedule_points
    from ccbench.model.library import Intra
    from ccbench.model.library.predictor import nccl_seconds

    if model != OWN:
        request = query.of_library(cluster.ranks)
        by = "RCCL" if cluster.system.is_amd else "NCCL"
        if cluster.system.intra is Intra.HCCS:
            by = ANOTHER_LIBRARY
        return by, [
            library_point(point) | {"nccl_seconds": seconds}
            for point, seconds in zip(
                library_points(cluster, request),
                nccl_seconds(cluster.system, request).tolist(),
                strict=True,
            )
        ]
    whole = tuple(query.counts(cluster.ranks))
    return "ccbench's own schedules", [
        _point(
            query.collective, name, "default", point.ranks, point.size_bytes, point.prediction
        )
        for name in query.schedules(cluster.ranks)
        for point in schedule_points(cluster, query.collective, name, whole)
    ]


def library_point(point: ClusterPoint) -> Point:
    """Return a library's prediction with the edges of its interval."""
    priced = _point(
        point.collective,
        point.algorithm,
        point.protocol,
        point.ranks,
        point.size_bytes,
        point.prediction,
    )
    interval = point.prediction.interval
    assert interval is not None  # every prediction of a library has one
    edges = {f"predicted_{name}": value for name, value in asdict(interval).items()}
    return priced | edges | {"extrapolated": point.extrapolated}


def _point(
    collective: str,
    algorithm: str,
    protocol: str,
    ranks: int,
    size_bytes: int,
    priced: Prediction,
) -> Point:
    algbw, busbw = rates(collective, ranks, size_bytes, priced.predicted_seconds)
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


def rates(collective: str, ranks: int, size_bytes: int, seconds: float) -> tuple[float, float]:
    """algbw and busbw in GB/s of a collective that takes ``seconds``; 0 where it takes no time."""
    from ccbench.collectives import collective as row_of

    rate = size_bytes / seconds / 1e9 if seconds > 0 else 0.0
    return rate, rate * row_of(collective).bus_factor(ranks)


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
