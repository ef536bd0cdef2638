"""Work in the process of a rank, forked or launched: measure one case after the other, and report."""

from __future__ import annotations

import gc
import os
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.control_block import Word
from ccbench.backends.endpoint import TeamEndpoint
from ccbench.cases.axes import Case
from ccbench.cases.capabilities import capabilities_of
from ccbench.cases.measurement import Conditions, Sampling, Status
from ccbench.errors import CannotStart, CcbenchError
from ccbench.machine.host import no_memory, out_of_memory
from ccbench.machine.readings import queued_seconds, read_cpu_times, watched
from ccbench.machine.software import loaded_file
from ccbench.runner.measure import measure
from ccbench.runner.workers import messages
from ccbench.runner.workers.channel import Channel
from ccbench.runner.workers.messages import RankReport


def run_rank(endpoint: TeamEndpoint, connection: Connection | Channel) -> None:
    """Measure one case after the other until the leader says that there are no more, or hangs up."""
    # No collection may fall into a launch; between cases only what came since the fork is looked at.
    gc.disable()
    gc.freeze()
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(message, messages.Stop):
            return
        connection.send(rank_report(endpoint, *message))
        gc.collect()


def rank_report(endpoint: TeamEndpoint, case: Case, sampling: Sampling) -> RankReport:
    """Measure ``case``; whatever is raised meanwhile must be named, not lost with the process."""
    try:
        return _measured(endpoint, case, sampling)
    except OutOfMemory as error:
        return RankReport(Status.OUT_OF_MEMORY, str(error))
    except CannotRun as error:
        return RankReport(Status.UNSUPPORTED, str(error))
    except CcbenchError as error:
        return RankReport(Status.FAILED, f"{endpoint.prefix}{error}", others_wait=True)
    except (Exception, SystemExit) as error:  # a user's function may end the process
        if out_of_memory(error):
            detail = f"{endpoint.prefix}{no_memory(error)}"
            return RankReport(Status.OUT_OF_MEMORY, detail, others_wait=True)
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        detail = f"{endpoint.prefix}{type(error).__name__}: {error} ({where})"
        return RankReport(Status.FAILED, detail, others_wait=True)


def _measured(endpoint: TeamEndpoint, case: Case, sampling: Sampling) -> RankReport:
    """Measure ``case``, and meanwhile the processors; raises OutOfMemory, CannotRun and more."""
    algorithm = endpoint.prepare(case)
    cpu_began, began, times_began = time.process_time(), time.perf_counter(), read_cpu_times()
    queued_began = queued_seconds()
    latency_before, costs_before = endpoint.core_latency_seconds(), endpoint.costs()
    result = measure(endpoint, case, sampling, endpoint.next_seed())
    windows = [costs_before, endpoint.costs()]
    latency_after = endpoint.core_latency_seconds()
    cpu_seconds, seconds = time.process_time() - cpu_began, time.perf_counter() - began
    queued_ended = queued_seconds()
    queued_share = None
    if queued_began is not None and queued_ended is not None:
        queued_share = (queued_ended - queued_began) / seconds
    # What all ranks of this host have used is no foreign load.
    words = endpoint.control.words
    words[endpoint.control.index(endpoint.rank, Word.CPU_NANOSECONDS)] = int(cpu_seconds * 1e9)
    endpoint.barrier()
    endpoint.share_words()
    times_ended = read_cpu_times()
    all_cpu = (
        sum(endpoint.control.read(rank, Word.CPU_NANOSECONDS) for rank in range(endpoint.ranks))
        / 1e9
    )
    conditions = (
        watched(times_began, times_ended, all_cpu)
        if times_began and times_ended
        else Conditions()
    )
    facts = endpoint.facts()
    if not endpoint.rank:
        path, digest = loaded_file(capabilities_of(case.backend).library_file)
        facts = replace(
            facts,
            library_version=endpoint.version,
            library_path=path,
            library_sha256=digest,
            algorithm_used=algorithm,
            path_counts=endpoint.path(windows),
            path_costs_seconds=tuple(zip(*windows, strict=True)),
        )
    endpoint.finish()
    detail = str(result.mismatch) if result.mismatch else endpoint.remark()
    if endpoint.rank:  # the stamps are everybody's, so one rank's copy is enough
        result = replace(
            result, stamps=result.stamps[:, :0], part_stamps=result.part_stamps[:, :, :0]
        )
    return RankReport(
        Status.WRONG if result.mismatch else Status.OK,
        detail,
        result,
        cpu_seconds / seconds,
        queued_share,
        replace(
            conditions,
            core_latency_before_seconds=latency_before,
            core_latency_after_seconds=latency_after,
        ),
        (*endpoint.flags, *facts.flags),
        facts,
    )


def refuse_all(error: CcbenchError, connection: Connection) -> None:
    """Answer every case with the reason why none can run."""
    report = RankReport(Status.UNSUPPORTED, str(error))
    with suppress(EOFError, OSError):
        while not isinstance(connection.recv(), messages.Stop):
            connection.send(error if isinstance(error, CannotStart) else report)
