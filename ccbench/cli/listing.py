"""``ccbench list``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ccbench.cli.output import (
    as_json,
    exit_code_of,
    print_json,
    show_lines,
)
from ccbench.exit_codes import NO_VERDICT
from ccbench.units import plural

if TYPE_CHECKING:
    from ccbench.results import Run

SCHEMA, RUNS = "suite-schema", "runs"

Listing = Mapping[str, str | list[str]]
"""Name -> what there is to say about it; a collective's algorithms and a kernel's collectives are lists."""


def axes() -> Listing:
    """Axes that a suite may name besides collective, ranks and sizes, by its key in a sweep."""
    from ccbench.cases.axes import AXES
    from ccbench.suite.grouping import GROUP_MODES

    listed = [axis for axis in AXES if axis.default_label or axis.values]
    bounds = {
        axis.key: f"{axis.bounds[0]} to {axis.bounds[1]}" for axis in listed if axis.bounds
    }
    values = {axis.key: ", ".join(axis.values) or bounds.get(axis.key, "") for axis in listed}
    # A suite names ways to run groups, the column the group that ran.
    values["group_mode"] = ", ".join(GROUP_MODES)
    meanings = {axis.key: axis.meaning for axis in listed} | {
        "group_mode": "which groups run at once"
    }
    return {
        key: meaning + (f" ({values[key]})" if values[key] else "")
        for key, meaning in meanings.items()
    }


def collectives() -> Listing:
    """Collectives, each with its algorithms."""
    from ccbench.collectives import COLLECTIVES
    from ccbench.schedules import algorithms_of

    return {name: list(algorithms_of(name)) for name in COLLECTIVES}


def algorithms() -> Listing:
    """Algorithms of collectives, each with its source and parameter."""
    from ccbench.schedules import ALGORITHMS

    parameters = {True: "", False: "; parameter: "}
    return {
        f"{row.collective} {row.name}": row.source
        + parameters[not row.parameter]
        + row.parameter
        for row in ALGORITHMS
    }


def kernels() -> Listing:
    """Own kernels by the name a suite gives them, each with its collectives."""
    from ccbench.backends.kernels.sources import INTERPRETED, kernel_algorithms
    from ccbench.collectives import COLLECTIVES

    collectives_of: dict[str, list[str]] = {}
    for collective in COLLECTIVES:
        for algorithm in kernel_algorithms(collective):
            name = algorithm.partition(":")[0]
            name = f"{INTERPRETED}:NAME" if name == INTERPRETED else name
            collectives = collectives_of.setdefault(name, [])
            collectives += [] if collective in collectives else [collective]
    return collectives_of


def backends() -> Listing:
    """Backends, each with its version or what it lacks here."""
    from ccbench.backends import open_backend
    from ccbench.cases.capabilities import DECLARED, backend_names

    opened = [open_backend(name) for name in backend_names()]
    texts = {
        backend.name: backend.version()
        if (reason := backend.unavailable()) is None
        else f"not here: {reason}"
        for backend in opened
    }
    unproven = {name for name in texts if DECLARED[name].never_run}
    return {
        name: f"{'(never run) ' if name in unproven else ''}{text}"
        for name, text in texts.items()
    }


def machines() -> Listing:
    """Machines of the catalog."""
    from ccbench.topology.files import catalog_names, load_catalog

    listed = {}
    for name in catalog_names():
        topology = load_catalog(name)
        gpus = f"{plural(len(topology.gpus), 'GPU')}, {topology.topology_class.value}"
        listed[name] = f"{gpus}: {topology.facts.get('description', '')}".rstrip(": ")
    return listed


def networks() -> Listing:
    """Kinds of networks, each as --network takes it."""
    from ccbench.topology.node_nics import KINDS, PORT_GIGABITS

    rates = {word: PORT_GIGABITS.get(word, 100) for word in KINDS}
    return {
        word: f"{link.value}, such as {word}-{rates[word]}x8: Gb/s of a NIC and NICs of a node"
        for word, link in KINDS.items()
    }


def suites() -> Listing:
    """Suites that ship, each with its question."""
    from ccbench.suite.model import load_suite, shipped_suites

    return {name: load_suite(path).question for name, path in shipped_suites().items()}


LISTINGS: Mapping[str, Callable[[], Listing]] = {
    "collectives": collectives,
    "axes": axes,
    "algorithms": algorithms,
    "kernels": kernels,
    "backends": backends,
    "machines": machines,
    "networks": networks,
    "suites": suites,
}


def runs() -> list[dict[str, Any]]:
    """Runs of results/, the newest last; RunFolderError where there is none."""
    from ccbench.results import load_run
    from ccbench.results.loading import named_run, runs_of

    named_run("latest")
    return [
        {
            "name": run.path.name,
            "started": f"{run.manifest.created_at[:19]}Z",
            "host": run.manifest.host,
            "suite": run.suite,
            "cases": len(run.points),
            "state": _state(run),
        }
        for run in (load_run(path, details=False) for path in runs_of())
    ]


def _state(run: Run) -> str:
    """How the run ended: complete, interrupted or failed; one that goes on counts as interrupted."""
    from ccbench.cases.measurement import MORE_ROUNDS, Status

    if exit_code_of([run]) not in (0, NO_VERDICT):
        return "failed"
    cut = run.manifest.planned_cases > len(run.points) or any(
        point.status is Status.SKIPPED or point.stop_reason == MORE_ROUNDS
        for point in run.points
    )
    return "interrupted" if cut else "complete"


@click.command(
    "list",
    short_help="List your runs, or collectives, algorithms, backends, machines, suites ...",
)
@click.argument("kind", required=False, type=click.Choice([*LISTINGS, RUNS, SCHEMA]))
@as_json
def list_names(kind: str | None, as_json: bool) -> None:
    """List what there is: everything, or one KIND; runs are those of ./results.

    suite-schema is the JSON schema of suite files: an editor that knows it completes and checks suites.
    """
    if kind == SCHEMA:
        from ccbench.suite.model import suite_schema

        print_json(suite_schema())
        return
    if kind == RUNS:
        from ccbench.report.present import Table, aligned, columns

        listed = runs()
        if as_json:
            print_json({RUNS: listed})
            return
        rows = [[*map(str, row.values())] for row in listed]
        show_lines(aligned(Table(columns(*(f"<{key}" for key in listed[0])), rows)))
        return
    listings = {
        heading: make() for heading, make in LISTINGS.items() if kind in (None, heading)
    }
    if as_json:
        print_json(listings)
        return
    for heading, names in listings.items():
        if kind is None:
            click.echo(heading)
        width = max(map(len, names), default=0)
        for name, entry in names.items():
            text = entry if isinstance(entry, str) else ", ".join(entry)
            line = f"{'' if kind else '  '}{name:{width}}  {text}".rstrip()
            show_lines([line], hang=width + 2)
