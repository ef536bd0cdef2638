"""Published results that ship as logs: what anybody can score and learn from, without the files they came in.

Rows hold the words of whoever collected them, but not how many GPUs a thread launched on. On several nodes and in
aiconfigurator's tables it is one. Elsewhere one thread is assumed to launch on all GPUs of a node, unless a time is
shorter than these launches take.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.score.logs import LogPoints, system_of
from benchmarks.score.manifest import ManifestEntry
from benchmarks.score.teams import Team
from ccbench.errors import CcbenchError
from ccbench.flags import Flag
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation
from ccbench.model.library.constants import CONSTANTS
from ccbench.model.library.predictor import launch_floor_seconds
from ccbench.readers.benchmarks.log import ImportedLog, ImportedTable
from ccbench.results.loading import published_folder
from ccbench.results.observed import asked_of, sized

ONE_THREAD_EACH = "aiconfigurator"
"""Sources whose tables have a thread for each GPU."""

ILL = "-ill"
"""End of the names of files whose machines are ill: their rows test verdicts, and teach nothing."""

UNTRUE = frozenset({Flag.ALGBW_CONTRADICTS_TIME, Flag.BUSBW_CONTRADICTS_ALGBW})
"""Rows with these flags are left out."""

SURELY_BELOW = 0.7
"""Share of the time that one thread's launches take, below which a time shows that there were more threads."""

WORDS = ["tool", "source", "gpu", "interconnect", "network", "forced", "library_version"]
CURVE = ["collective", "algorithm", "protocol", "dtype", "in_place"]


def published_logs(folder: Path | None = None) -> tuple[LogPoints, ...]:
    """Return the results of ``folder``, a log for each source, machine and number of ranks."""
    files = sorted((folder or published_folder()).glob("*.parquet"))
    return tuple(log for file in files for log in logs_of(file.stem, pd.read_parquet(file)))


def logs_of(family: str, rows: pd.DataFrame) -> Iterator[LogPoints]:
    """Yield the logs of ``rows``, which are of one file."""
    sent = (rows["size_bytes"] > 0) & (rows["ranks"] > 1) & (rows["nodes"] > 0)
    told = rows["flags"].map(lambda flags: UNTRUE.isdisjoint(flags))
    names = [*WORDS, "ranks", "nodes"]
    for words, of_log in rows[sent & told].groupby(names):
        yield _log(family, dict(zip(names, words, strict=True)), of_log)


def _log(family: str, words: dict[str, str | int], rows: pd.DataFrame) -> LogPoints:
    ranks, nodes, source = int(words["ranks"]), int(words["nodes"]), str(words["source"])
    text = {name: str(words[name]) for name in ("gpu", "interconnect", "network", "forced")}
    entry = ManifestEntry(
        **text,
        file=f"{family}: {source}, {ranks} ranks of {nodes} nodes",
        gpus_per_node=(ranks // nodes,),
        nodes=(nodes,),
        nccl_version=str(words["library_version"]),
        healthy=not family.endswith(ILL),
    )
    observations = []
    try:
        system = system_of(entry, Team(ranks // nodes, nodes, "published"))
        one_each = nodes > 1 or ONE_THREAD_EACH in source
        launched_on = 1 if one_each or _is_below_launches(rows, system) else ranks
        for key, curve in rows.groupby(CURVE):
            collective, algorithm, protocol, dtype = map(str, key[:4])
            table = ImportedTable(
                collective,
                (),
                algorithm=algorithm,
                protocol=protocol,
                facts={"gpus_per_thread": launched_on},
            )
            asked = asked_of(entry, ImportedLog(str(words["tool"])), table)
            if isinstance(asked, str):
                return LogPoints(entry, (), (asked,))
            request = sized(asked, map(int, curve["size_bytes"]), dtype, bool(key[4]))
            observations.append(Observation(system, request, tuple(curve["median_seconds"])))
    except CcbenchError as error:
        return LogPoints(entry, (), (" ".join(str(error).split()),))
    return LogPoints(entry, tuple(observations))


def _is_below_launches(rows: pd.DataFrame, system: LibrarySystem) -> bool:
    """True if a collective took less than one thread's launches on all GPUs of ``system``."""
    shortest = rows.groupby("collective")["median_seconds"].min()
    return any(
        seconds
        < SURELY_BELOW
        * launch_floor_seconds(
            system, LibraryRequest(str(name), (), gpus_per_process=system.ranks), CONSTANTS
        )
        for name, seconds in shortest.items()
    )
