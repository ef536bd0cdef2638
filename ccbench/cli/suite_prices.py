"""``ccbench predict --suite``: what a machine should answer to a suite, by the model, beside what is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ccbench.cli.output import print_json, show_lines
from ccbench.cli.pricing import LIBRARY, OWN, Query, cluster_points
from ccbench.errors import MachineError, UsageError

if TYPE_CHECKING:
    from ccbench.analysis.tuning import Timing
    from ccbench.model.cluster import Cluster


def show_suite(
    suite: str, stated: tuple[str, int | None, str | None, int | None], as_json: bool
) -> None:
    """Print the winners by size of a suite's work on all GPUs of a machine, how they were priced and how far off.

    stated: its name, nodes, network and ranks. Raises UsageError for several nodes, which ccbench's kernels do not
    join, and where nothing is priced.
    """
    from ccbench.analysis.serving import answers_of, best_published
    from ccbench.cli.answering import answer_document, answer_lines
    from ccbench.model.calibrated import open_base

    cluster = open_base(*stated).cluster
    if cluster.nodes > 1:
        raise UsageError(
            f"--suite {suite}: prices are of one machine; name one, such as {cluster.node.name}"
        )
    timings = [*_timings(suite, cluster)]
    if not timings:
        raise UsageError(f"--suite {suite}: no model prices its collectives on {cluster.name}")
    answers = answers_of(timings, best_published({*cluster.node.models}))
    if as_json:
        print_json(answer_document(answers, None, ()))
        return
    beside = [
        each.times_published
        for answer in answers
        if answer.situation.mode == "graph"
        for each in answer.winners
        if each.times_published
    ]
    off = (
        f" ({min(beside):.2f} to {max(beside):.2f} times the best published)" if beside else ""
    )
    note = (
        f"predicted, not measured: ccbench's schedules as in a CUDA graph{off}; "
        "the library in a stream, with its launches"
    )
    show_lines([note, "", *answer_lines(answers, None, ())])


def _timings(suite: str, cluster: Cluster) -> Iterator[Timing]:
    from ccbench.analysis.tuning import timing_of
    from ccbench.collectives import collective
    from ccbench.dtypes import item_bytes
    from ccbench.results import Point
    from ccbench.runner.planning import RunOptions, plan_suite
    from ccbench.suite.model import load_suite

    plan = plan_suite(load_suite(suite), RunOptions(machine=cluster.node.name, only_plan=True))
    # Types of one size take the same time: one stands for all.
    work: dict[tuple[str, int], tuple[str, dict[int, None]]] = {}
    for case in sorted(plan.cases, key=lambda case: (case.dtype, case.size_bytes)):
        key = case.collective, item_bytes(case.dtype)
        work.setdefault(key, (case.dtype, {}))[1][case.size_bytes] = None
    for (name, _), (dtype, sizes) in work.items():
        query = Query(name, None, "default", tuple(sizes), dtype)
        op = "sum" if collective(name).reduces else "none"
        for model, mode in ((OWN, "graph"), (LIBRARY, "streaming")):
            try:
                library, points = cluster_points(cluster, query, model)
            except MachineError:
                continue  # its model has nothing about this collective
            backend = "ccbench" if model == OWN else library.lower()
            for priced in points:
                size = priced["size_bytes"]
                point = Point(
                    *(suite, backend, name, priced["algorithm"], dtype, op),
                    *(size, size // item_bytes(dtype), cluster.ranks),
                    nodes=cluster.nodes,
                    mode=mode,
                    median_seconds=priced["predicted_seconds"],
                )
                yield timing_of(point, cluster.name)
