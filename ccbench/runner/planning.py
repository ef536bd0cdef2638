"""Plan of a run: options and a suite become cases and their memory."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from ccbench.backends import open_backend
from ccbench.backends.base import Backend
from ccbench.backends.prerequisites import cupy_missing, driver_missing
from ccbench.cases.axes import DEVICE_MEMORY, PER_GPU, PROCESSES, Case
from ccbench.cases.capabilities import (
    Device,
    backends_of_auto,
    capabilities_of,
)
from ccbench.dtypes import item_bytes
from ccbench.errors import BackendUnavailable, UsageError
from ccbench.machine.accelerators import count_gpus
from ccbench.machine.host import available_memory_bytes, usable_cores
from ccbench.model.cluster import cluster_of
from ccbench.model.context import PredictionContext, named_context
from ccbench.results.loading import RESULTS
from ccbench.runner.variants import planned_variants, refuse_functions
from ccbench.schedules import added_algorithms, algorithm_row, parse_algorithm, schedule_for
from ccbench.topology.graph import Topology
from ccbench.topology.node_nics import parse_network
from ccbench.units import format_size, plural

if TYPE_CHECKING:
    from ccbench.results import Run
    from ccbench.runner.workers.discovery import LaunchedRanks
    from ccbench.runner.workers.hub import AgentHub
    from ccbench.suite.model import Suite


ROOT = Path("/")
"""Folder below which the machine's device files lie."""

DETECT = "detect"
"""The machine's name that stands for measuring this one."""

FEWEST_NODES = 4
"""Nodes from which on ``several_nodes`` takes a suite's place: three have only three pairs to compare."""

MOST_RANKS_PROVEN = 256
"""Of schedules of the user's files; the proof's memory grows with the cube of the ranks."""

MOST_COSTLY_TEAMS = 3
"""Teams that hold memory of GPUs and are open at the same time."""

Guide = Callable[[Sequence[Case], "Run"], Sequence[Case]]
"""From the cases still to be measured, and all that was measured so far, to the cases to go on with."""


@dataclass(frozen=True)
class RunOptions:
    """Settings that the command line adds to a suite.

    output: the run folder itself; default: a new one under ``results_root``.
    machine: a machine's name or file to price on; default: measure this one in a second or two.
    processes: process models instead of the suite's, or ``all``.
    only_plan: nothing is going to run, so a machine with GPUs that is named stands for this one.
    launch: the user's own command that starts the ranks. launched_by: the launcher that has started this run
    once for every rank, '' for none; launch is then the same, and hub leads to the ranks' agents.
    nodes, network: over how many machines the ranks are spread, and what joins these (``ib-ndr-400x8``).
    launched: ranks that a launcher starts; None where nobody is launched.
    racks: a file of the racks, or leaf switches, of the hosts, as ``topology.racks`` reads it.
    reading_modules: what the caller shows results with, to be imported while the first ranks start.
    guides: by a suite's verdict, who is asked what to go on with whenever a rank was lost or nothing is left.
    allow_libraries: ranks may load and start the files that the suite names, in variants and as functions.
    callables: functions of files that the command line names, which may run.
    vary: axis whose values are to be compared and the one that the others are compared with, algorithm=ring.
    oversubscribe: run more ranks than processors, and cases beyond the memory, as far as they run.
    """

    output: Path | None = None
    backends: tuple[str, ...] = ()
    ranks: int | None = None
    processes: str | None = None
    machine: str | None = None
    only: str | None = None
    resume: Path | None = None
    time_limit_seconds: float | None = None
    results_root: Path = RESULTS
    only_plan: bool = False
    launch: str = ""
    launched_by: str = ""
    hub: AgentHub | None = None
    nodes: int | None = None
    network: str | None = None
    launched: LaunchedRanks | None = None
    racks: Path | None = None
    reading_modules: tuple[str, ...] = ()
    guides: Mapping[str, Guide] = field(default_factory=dict)
    allow_libraries: bool = False
    callables: tuple[str, ...] = ()
    vary: str = ""
    oversubscribe: bool = False


@dataclass(frozen=True)
class Plan:
    """Cases of a run, and their memory.

    total_bytes, rank_bytes: largest memory that one case takes on all ranks together, and on one rank.
    context: what a named machine is priced on, None where this machine is to be measured.
    """

    cases: tuple[Case, ...]
    total_bytes: int
    rank_bytes: int
    notes: tuple[str, ...]
    context: PredictionContext | None = None

    @property
    def by_size(self) -> list[Case]:
        """Cases in order of their sizes, whatever order they run in."""
        key = attrgetter("backend", "collective", "algorithm", "ranks", "size_bytes")
        return sorted(self.cases, key=key)


def suite_on_nodes(suite: Suite, options: RunOptions) -> Suite:
    """Return the suite that ``suite`` stands for on so many nodes: from four on it may be another one."""
    from ccbench.suite.model import load_suite

    several = suite.several_nodes if (options.nodes or 1) >= FEWEST_NODES else ""
    return load_suite(several) if several else suite


def refuse_few_nodes(suite: Suite, options: RunOptions) -> None:
    """Raise UsageError with the command to type where a fleet check has too few nodes to compare."""
    nodes = options.nodes or 1
    if suite.verdict == "fleet" and nodes < FEWEST_NODES:
        raise UsageError(
            f"{suite.name} needs {FEWEST_NODES} nodes, this run has {nodes}; start ranks on more, such as "
            f"srun -N 64 --ntasks-per-node 1 ccbench run {suite.name}; for fewer: ccbench run health"
        )


def refuse_what_does_not_fit(cases: Sequence[Case], options: RunOptions) -> None:
    """Raise UsageError for more polling ranks than processors, and for buffers beyond this host's memory.

    Where ranks of a launcher run, that knows better; and a launcher refuses such ranks itself.
    """
    if options.oversubscribe or options.launch or options.launched_by:
        return
    cure = "or give --oversubscribe to run what can be run nonetheless"
    cores = automatic_ranks()
    crowd = max(
        (case for case in cases if capabilities_of(case.backend).polls),
        key=lambda case: case.ranks,
        default=None,
    )
    if crowd and crowd.ranks > cores:
        raise UsageError(
            f"{crowd.ranks} ranks of {crowd.backend} on {plural(cores, 'processor')} take turns, which is what "
            f"their times would show; write --ranks {cores}, {cure}"
        )
    available = available_memory_bytes() or math.inf
    on_host = (Device.PROCESS, Device.EMULATED_GPU)
    for case in cases:
        hosted = (
            capabilities_of(case.backend).device in on_host and case.memory != DEVICE_MEMORY
        )
        if hosted and (needed := case_bytes(case)) > available:
            raise UsageError(
                f"{case.label}: buffers of all ranks have {format_size(needed)}, and "
                f"{available / 2**30:.3g} GiB of memory are free; write smaller sizes, such as -e 64M, {cure}"
            )


def plan_suite(suite: Suite, options: RunOptions) -> Plan:
    """Expand ``suite`` for this machine; measures nothing and starts nothing.

    UsageError for what cannot be in the suite, the options, or the variables of the kernels that it runs.
    """
    from ccbench.suite.expansion import ExpansionContext, expand, left_out, sweeps_elsewhere

    _refuse_unequal_nodes(suite, options)
    suite = as_asked(suite, options)
    nodes = options.nodes or 1
    unpriced = ""
    if options.network is not None:
        parse_network(options.network)  # before anything is recorded under it
    elif nodes > 1:
        unpriced = f"{nodes} nodes need a network; write --network ib-ndr-400x8 or the like"
    priced_on = None
    if options.machine not in (None, DETECT):
        named = named_context(options.machine, options.network)
        priced_on = replace(named, launched=bool(options.launch))
    gpus = priced_on.gpus if priced_on else None
    backends = options.backends or suite.backends
    simulated = all(capabilities_of(name).simulated for name in backends)
    if gpus and unpriced and simulated:
        raise UsageError(f"--nodes: {unpriced}")
    # A machine that is only planned for stands for this one.
    elsewhere = gpus if options.only_plan or simulated else None
    # What ``auto`` is, in backends and in ranks, there or here.
    automatic, notes = (
        _backends_planned_for(elsewhere, nodes) if elsewhere else automatic_backends(options)
    )
    by_auto = "auto" in backends and not elsewhere
    if by_auto and not any(capabilities_of(name).on_gpus for name in automatic):
        refuse_idle_devices(options)
    auto_ranks = _ranks_of_auto(suite, options.backends, automatic)
    context = ExpansionContext(
        backends=options.backends or None,
        auto_backends=automatic,
        ranks=options.ranks,
        auto_ranks=max(2, len(elsewhere.gpus) * nodes) if elsewhere else auto_ranks,
        algorithms_of=lambda name, collective: open_backend(name).algorithms(collective),
        only=options.only,
        nodes=nodes,
        added={(row.collective, row.name) for row in added_algorithms()},
    )
    away = bool(options.launch or options.launched_by or elsewhere)
    if not (options.allow_libraries or options.only_plan):
        refuse_functions(suite, options.callables)
    suite, unread = planned_variants(suite, away, options.allow_libraries, options.only_plan)
    cases = as_launched(expand(suite, context), options)
    _refuse_impossible(cases, gpus if simulated else None, options)
    notes = notes if by_auto or elsewhere else ()
    # Of a choice nobody asked for the rest.
    absent = {} if options.only else left_out(suite, context)
    remarks = [f"{count} more cases left out: {why}" for why, count in absent.items()]
    dropped, only_for = sweeps_elsewhere(suite, context)
    if dropped and not options.only:
        remarks += [f"{plural(dropped, 'sweep')} left out: for {only_for}"]
    refused = refusals(cases, "" if elsewhere else devices_missing(options))
    remarks += [f"{plural(count, 'case')} {why}" for why, count in refused.items()]
    remarks += unread
    remarks += [f"no predictions: {unpriced}"] if gpus and unpriced else []
    return Plan(
        cases,
        total_bytes=max(map(case_bytes, cases), default=0),
        rank_bytes=max(map(rank_bytes, cases), default=0),
        notes=(*notes, *remarks),
        context=priced_on,
    )


def as_asked(suite: Suite, options: RunOptions) -> Suite:
    """Return ``suite`` with the process models of the command line and the backends that join it."""
    from ccbench.suite.functions import functions_of

    if options.processes:
        models = PROCESSES if options.processes == "all" else (options.processes,)
        sweeps = tuple(block.model_copy(update={"processes": models}) for block in suite.sweep)
        suite = suite.model_copy(update={"sweep": sweeps})
    joining = [
        name for name in suite.where_installed if not unavailable(open_backend(name), options)
    ]
    joining += [
        name for sweep in suite.sweep for name in functions_of(sweep.algorithm).values()
    ]
    return suite.model_copy(
        update={"backends": tuple(dict.fromkeys((*suite.backends, *joining)))}
    )


def _refuse_unequal_nodes(suite: Suite, options: RunOptions) -> None:
    """UsageError where sweeps group ranks by node, and nodes have no equal numbers of consecutive ranks."""
    by_node = any(
        block.per == "node" or block.within == "rail" or "node" in block.groups
        for block in suite.sweep
    )
    if not by_node or options.launched is None:
        return
    hosts = options.launched.hosts
    size = len(hosts) // options.launched.nodes
    for rank, host in enumerate(hosts):
        if hosts[rank - rank % size] != host or hosts.count(host) != size:
            raise UsageError(
                f"groups of nodes: rank {rank} is on {host}, which has {hosts.count(host)} of {len(hosts)} "
                f"ranks, not {size} one after the other; start as many ranks on every host, host by host "
                "(mpirun --map-by ppr:N:node, srun --distribution=block)"
            )


def as_launched(cases: Sequence[Case], options: RunOptions) -> tuple[Case, ...]:
    """Return ``cases`` with the process model that a launcher imposes: a process for each rank."""
    if not options.launch and not options.launched_by:
        return tuple(cases)
    # A case that was asked for in both models is one now.
    return tuple(
        dict.fromkeys(
            replace(case, processes=PER_GPU)
            if (able := capabilities_of(case.backend)).launched
            and able.has("processes", PER_GPU)
            else case
            for case in cases
        )
    )


def devices_missing(options: RunOptions) -> str:
    """Return why no rank can have buffers in the memory of a GPU, '' where that may be."""
    if options.launched is not None:
        reason = (
            "" if options.launched.gpus else options.launched.no_gpus or "no host has a GPU"
        )
    else:
        # Where there is a GPU and only CuPy is missing, how to install it is said, too.
        reason = driver_missing() or (cupy_missing() or "").replace("; ", ": ")
    return (
        f"memory: device needs a GPU: {reason.partition(';')[0]}; write memory: default"
        if reason
        else ""
    )


def refusals(cases: Sequence[Case], no_devices: str) -> Counter[str]:
    """Count why cases cannot run, as far as that is known before any team starts.

    no_devices: why buffers cannot be in the memory of GPUs, as ``devices_missing`` has it.
    """
    reasons = Counter[str]()
    for case in cases:
        reason = no_devices if case.memory == DEVICE_MEMORY else None
        with suppress(BackendUnavailable):  # an MPI that is not installed knows nothing
            reason = reason or open_backend(case.backend).unsupported(case)
        if reason:
            reasons[f"unsupported by {case.backend}: {reason}"] += 1
    return reasons


def _refuse_impossible(
    cases: Sequence[Case], simulated: Topology | None, options: RunOptions
) -> None:
    """Refuse what is the suite's mistake, or the environment's, in one sentence instead of in every case.

    What only these ranks cannot run is left to the run, which records it as unsupported.
    """
    if simulated is not None:
        for ranks in sorted({case.ranks for case in cases}):
            # MachineError where they do not spread over the machine that is simulated.
            cluster_of(simulated, options.nodes, options.network, ranks)
    requested = dict.fromkeys((case.backend, case.collective, case.algorithm) for case in cases)
    for backend, collective_name, algorithm in requested:
        if capabilities_of(backend).own_schedules and algorithm != "default":
            name, parameter = parse_algorithm(algorithm)
            if parameter is not None and not algorithm_row(collective_name, name).parameter:
                raise UsageError(
                    f"algorithm: {algorithm!r}: {name} has no parameter; write {name!r}"
                )
    for backend in dict.fromkeys(case.backend for case in cases):
        open_backend(backend).check_variables()
    files = {(row.collective, row.name): row for row in added_algorithms()}
    for case in cases:
        # Kernels that interpret schedules name them so.
        name, _, number = case.algorithm.removeprefix("schedule:").partition(":")
        row, able = files.get((case.collective, name)), capabilities_of(case.backend)
        if row is None or not (able.own_schedules or able.own_kernels):
            continue
        ranks = case.group_ranks
        parameter = int(number or row.default_parameter(ranks, case.size_bytes))
        if ranks <= MOST_RANKS_PROVEN and row.unsupported(ranks, parameter) is None:
            schedule_for(case.collective, name, ranks, parameter=parameter or None)


# -- backends and ranks of this machine -------------------------------------------------------------------


def _ranks_of_auto(suite: Suite, backends: tuple[str, ...], automatic: tuple[str, ...]) -> int:
    """Return the ranks of ``ranks: auto``: GPUs where every sweep runs on them.

    backends: from the command line. automatic: what ``auto`` stands for.
    """
    words = backends or suite.backends
    names = tuple(name for word in words for name in (automatic if word == "auto" else (word,)))
    on_devices = all(
        sweep.values_of("memory") == (DEVICE_MEMORY,)
        or all(capabilities_of(name).on_gpus for name in names if name in sweep.backends)
        for sweep in suite.sweep
    )
    return automatic_ranks(names, on_devices=on_devices)


def _backends_planned_for(
    machine: Topology, nodes: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the backends of ``auto`` on a machine that is only named, and a note which it is."""
    count = len(machine.gpus) * nodes
    several = f"{nodes} x " if nodes > 1 else ""
    note = f"for {plural(count, 'GPU')} of {several}{machine.name}, not this machine"
    names = backends_of_auto(gpus=True)
    return tuple(name for name in names if count > 1 or not _one_gpu(name)), (note,)


def _one_gpu(name: str) -> str | None:
    """Return why one GPU is not enough for a backend, None if it is."""
    able = capabilities_of(name)
    alone = able.gpu_sharing_variable and os.environ.get(able.gpu_sharing_variable) != "1"
    return f"there is one GPU, and ranks of {able.library} cannot share it" if alone else None


def unavailable(backend: Backend, options: RunOptions) -> str | None:
    """Return why the backend cannot work; of launched ranks the hosts are asked for the GPUs."""
    if options.launched is None:
        return backend.unavailable()
    able = capabilities_of(backend.name)
    elsewhere = able.on_gpus and able.spans_hosts
    return (elsewhere and options.launched.no_gpus) or backend.unavailable(elsewhere)


def automatic_backends(options: RunOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the backends of ``auto``, here or on the hosts of a launcher, and a sentence that says why."""
    missing = {
        name: unavailable(open_backend(name), options) for name in backends_of_auto(gpus=True)
    }
    launched = options.launched
    gpus = launched.gpus if launched else visible_gpus()
    if gpus == 1 != options.ranks:
        missing = {name: reason or _one_gpu(name) for name, reason in missing.items()}
    there = tuple(name for name, reason in missing.items() if not reason)
    there = there or backends_of_auto(gpus=False)
    reasons = (f" (without {name}: {reason})" for name, reason in missing.items() if reason)
    return there, (f"backend auto: {', '.join(there)}{next(reasons, '')}",)


def refuse_idle_devices(options: RunOptions) -> None:
    """Raise BackendUnavailable where there are GPUs that ``auto`` would leave idle to measure processors.

    The message says what to install.
    """
    if options.launched:
        gpus = [(host.name, len(host.gpus), host.no_gpus) for host in options.launched.facts]
    else:
        reasons = (open_backend(name).unavailable() for name in backends_of_auto(gpus=True))
        gpus = [("this machine", visible_gpus(), next(filter(None, reasons), ""))]
    for place, count, reason in gpus:
        if count and reason:
            raise BackendUnavailable(
                f"backend auto: {place} has {plural(count, 'GPU')}, and nothing here drives them: {reason}; "
                "or measure the processors, with --backend cpu"
            )


def automatic_ranks(backends: Sequence[str] = (), on_devices: bool = False) -> int:
    """Return NVIDIA's GPUs where only backends that drive GPUs are asked for, else processors; at least 2.

    on_devices: buffers are in the memory of GPUs, whatever the backend.
    """
    if on_devices or (backends and all(capabilities_of(name).on_gpus for name in backends)):
        return max(2, visible_gpus())
    return max(2, usable_cores())


def visible_gpus() -> int:
    """Return the NVIDIA devices of this machine, as its device files tell; the driver where these do not."""
    present = len(list(ROOT.glob("dev/nvidia[0-9]*")))
    if not present and driver_missing(ROOT) is None:
        present = max(
            1, count_gpus()
        )  # under Windows and on boards a GPU has no file of its own
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    return min(present, sum(word.strip() not in ("", "-1") for word in chosen.split(",")))


def case_bytes(case: Case) -> int:
    """Return the input and output buffers of all ranks together (work space is at most as much again).

    A concurrent collective has buffers of its own.
    """
    of_a_group = sum(_bytes_of(case, group_rank) for group_rank in range(case.group_ranks))
    concurrent = case.concurrent_case
    return of_a_group * len(case.members) + (case_bytes(concurrent) if concurrent else 0)


def rank_bytes(case: Case) -> int:
    """Return the input and output buffers of the rank that has most."""
    root = max(case.root, 0)
    alike = {root, min(root + 1, case.group_ranks - 1)}  # all ranks but the root
    concurrent = case.concurrent_case
    own = max(
        _bytes_of(case, group_rank)
        for group_rank in (range(case.group_ranks) if case.traffic else alike)
    )
    return own + (rank_bytes(concurrent) if concurrent else 0)


def _bytes_of(case: Case, group_rank: int) -> int:
    inputs, outputs = case.input_count(group_rank), case.output_count(group_rank)
    return (max(inputs, outputs) if case.in_place else inputs + outputs) * item_bytes(
        case.dtype
    )


def check_output(options: RunOptions) -> None:
    """Raise UsageError for options that contradict each other."""
    if options.output and options.resume:
        raise UsageError(
            "--output and --resume: a resumed run stays in its folder; leave out --output"
        )
    if options.time_limit_seconds is not None and options.time_limit_seconds <= 0:
        raise UsageError("--time-limit: a run needs some time; write 10m or 30s")
