"""Preparation of a run: who is launched, a folder, and what predictions are priced on."""

from __future__ import annotations

import importlib
import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.backends.base import Backend, TeamLaunch
from ccbench.cases.axes import Case
from ccbench.cases.callables import digests_of
from ccbench.cases.capabilities import capabilities_of
from ccbench.errors import (
    BackendUnavailable,
    CcbenchError,
    RunFolderError,
    UsageError,
)
from ccbench.machine.files import command_shown
from ccbench.machine.host import address_space_limit, capture, usable_cores
from ccbench.model.cluster import Cluster
from ccbench.model.context import PredictionContext
from ccbench.readers.schedules import schedule_files
from ccbench.results import RunFolder, new_folder
from ccbench.results.loading import named_run
from ccbench.runner.planning import DETECT, Plan, RunOptions
from ccbench.runner.progress import Progress
from ccbench.runner.workers.discovery import discover_ranks
from ccbench.runner.workers.launcher import users_launch
from ccbench.topology.graph import Topology
from ccbench.topology.racks import racks_of
from ccbench.units import plural

if TYPE_CHECKING:
    from ccbench.suite.model import Suite

LEAST_ADDRESSES = 1 << 30
ADDRESSES_PER_CORE = 64 << 20
"""Address space of a run's libraries, and for each thread the heap that glibc reserves (HEAP_MAX_SIZE of malloc)."""


def refuse_small_address_space() -> None:
    """Raise UsageError where ``ulimit -v`` is so low that libraries would end the run without a word."""
    limit, least = address_space_limit(), LEAST_ADDRESSES + usable_cores() * ADDRESSES_PER_CORE
    if limit is not None and limit < least:
        raise UsageError(
            f"ulimit -v leaves a process {limit >> 20} MiB of addresses, and the libraries of a run map "
            f"{least >> 20} MiB, most of which they never use; write ulimit -v unlimited (memory itself is "
            "limited by a control group: systemd-run --scope -p MemoryMax=8G)"
        )


def launch_of(options: RunOptions) -> TeamLaunch | None:
    """Return how ranks are launched: by agents that run already, by the user's launcher, or not at all."""
    if options.launched_by:
        return TeamLaunch(launched_by=options.launched_by, several_hosts=True)
    return users_launch(options.launch) if options.launch else None


def with_launched_ranks(options: RunOptions, progress: Progress) -> RunOptions:
    """Ask the launcher, where there is one, whom it starts, and return the options with the answer."""
    launch = launch_of(options)
    if launch is None:
        if options.racks:
            raise UsageError(
                "--racks: racks are of hosts that a launcher starts ranks on; leave it out"
            )
        return options
    progress.note("asking the launcher whom it starts, and where")
    launched = discover_ranks(
        launch, options.ranks, options.hub, options.time_limit_seconds or math.inf
    )
    if options.nodes not in (None, launched.nodes):
        raise UsageError(
            f"--nodes {options.nodes}: the launcher starts ranks on {launched.nodes} hosts "
            f"({', '.join(host.name for host in launched.facts)}); leave --nodes out"
        )
    hosts = ", ".join(f"{host.ranks} on {host.name}" for host in launched.facts)
    progress.note(f"{plural(launched.ranks, 'rank')}: {hosts}")
    if options.racks:
        text = options.racks.read_text(errors="replace")
        racks = racks_of([host.name for host in launched.facts], text, str(options.racks))
        facts = zip(launched.facts, racks, strict=True)
        named = tuple(replace(host, rack=rack) for host, rack in facts)
        if without := [host.name for host in named if not host.rack]:
            progress.note(f"{options.racks}: has no rack of {', '.join(without)}")
        launched = replace(launched, facts=named)
    return replace(options, ranks=launched.ranks, nodes=launched.nodes, launched=launched)


def context_of(plan: Plan, options: RunOptions, topology: Topology) -> PredictionContext:
    """Return what to price on: the machine that was named, or this one's GPUs; ranks on processors price themselves."""
    if plan.context is not None:
        return plan.context
    simulated = all(capabilities_of(case.backend).simulated for case in plan.cases)
    if simulated and options.machine != DETECT:
        return PredictionContext()
    return PredictionContext(topology if topology.gpus else None, options.network)


def keep_note(text: str, folder: RunFolder, progress: Progress) -> None:
    """Say what the run lacks, now and, for who is not watching, in its folder and at its end."""
    progress.note(text)
    folder.describe(notes=[*dict.fromkeys([*folder.manifest["notes"], text])])


def machine_for(case: Case, context: PredictionContext) -> Cluster | None:
    """Return the machine that a simulated case takes its times from; None for processes on one host."""
    if context.gpus is None:
        return None
    if not capabilities_of(case.backend).simulated:
        return context.machine_of(case)
    try:
        return context.needed_machine(case)
    except CcbenchError as error:
        raise BackendUnavailable(f"{case.backend}: {error}") from None


class _NoPandas:
    """Finder of modules that refuses pandas, for ``sys.meta_path``."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError(name)


@contextmanager
def modules_imported(names: Sequence[str]) -> Iterator[None]:
    """Load what results are written and read with, beside a block that mostly waits.

    By a thread, which gets no signals: one that raises inside the import of a C extension leaves it half
    loaded for good.
    """

    def load() -> None:
        import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

        # Given a first value, pyarrow imports pandas, which takes a second and which no row needs. It does
        # without where it cannot, and tries again when somebody asks for a frame.
        sys.meta_path.insert(0, _NoPandas)
        try:
            pa.array([None])
        finally:
            sys.meta_path.remove(_NoPandas)
        for name in ("pyarrow.parquet", *names):
            importlib.import_module(name)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def run_folder(
    suite: Suite,
    options: RunOptions,
    backends: Mapping[str, Backend],
    notes: Sequence[str],
) -> Iterator[RunFolder]:
    """Open the run's folder, new or the one to go on with; an empty one goes when the run fails."""
    manifest: dict[str, Any] = {
        "suite": suite.as_document(),
        "environment": capture(),
        "notes": list(notes),
        "versions": {name: backend.version() for name, backend in backends.items()},
        "options": {
            "backends": list(options.backends),
            **{
                name: getattr(options, name)
                for name in ("ranks", "processes", "machine", "only", "nodes", "network")
            },
        },
    }
    # A run without any stays comparable with those of before there were such files.
    further = {
        "schedules": {Path(file.name).name: file.digest for file in schedule_files()},
        "callables": digests_of(word for sweep in suite.sweep for word in sweep.algorithm),
        "vary": options.vary,
        "launched_by": options.launched_by,
        "launch": "" if options.launched_by else command_shown(options.launch),
    }
    manifest["options"] |= {name: value for name, value in further.items() if value}
    if options.resume:
        folder = RunFolder.resume(named_run(options.resume))
        # Cases of different suites or machines must not share a folder. Of the machine the processor counts:
        # much else changes from day to day.
        then, now = dict(folder.manifest), dict(manifest)
        for record in (then, now):
            processor = record.get("environment", {}).get("processor", {})
            record["processor"] = {key: processor.get(key) for key in ("model", "cores")}
        for name in ("suite", "options", "processor", "versions"):
            before = then.get(name) or {}
            if changed := [
                f"{name}.{key}"
                for key in {**before, **now[name]}
                if before.get(key) != now[name].get(key)
            ]:
                folder.close()
                raise RunFolderError(
                    f"{folder.path}: {', '.join(changed)} of this run differs; "
                    "resume with what it was started with, as run.json has it, or start a new run"
                )
    else:
        path = options.output or new_folder(options.results_root, suite.name)
        folder = RunFolder.create(path, manifest)
    with folder:
        try:
            yield folder
        except BaseException:
            if not options.resume:
                folder.remove_if_empty()
            raise
