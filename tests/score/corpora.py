"""Small corpora of logs that tests write themselves; tests.readers.benchmarks.logs finds the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.score.logs import LogPoints
from benchmarks.score.manifest import ManifestEntry
from ccbench.model.library import Generation, Intra, LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation
from ccbench.readers.benchmarks.log import ImportedLog, ImportedRow, ImportedTable

SIZES = tuple(1 << power for power in range(10, 31, 2))

HOPPER: dict[str, Any] = {
    "collective": "all_reduce",
    "gpu": "H100 SXM",
    "gpus_per_node": 8,
    "nodes": 1,
    "interconnect": "nvswitch3",
    "network": "none",
    "nccl_version": "2.20.5",
    "forced": "none known",
    "datatype": "float",
    "complete": True,
    "healthy": True,
}

_HEADER = """\
# nThread 1 nGpus {gpus} minBytes 1024 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501  # the tool's own line


def all_reduce_text(
    microseconds: Callable[[int], float],
    ranks: int = 8,
    sizes: Sequence[int] = SIZES,
    gpus: int = 1,
) -> str:
    """nccl-tests' output for an all-reduce of float32 that takes ``microseconds(size)``."""
    lines = []
    for size in sizes:
        time = microseconds(size)
        algbw = size / time / 1e3
        half = f"{time:8.2f} {algbw:7.2f} {algbw * 2 * (ranks - 1) / ranks:7.2f}      0"
        lines.append(f"{size:12d} {size // 4:12d}     float     sum      -1 {half} {half}")
    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.0\n#\n"
    return _HEADER.format(gpus=gpus) + "\n".join(lines) + "\n" + end


def write_corpus(folder: Path, logs: Sequence[tuple[dict[str, Any], str | None]]) -> Path:
    """A manifest of these entries, each with its log's text (None: the file stays away); its path."""
    entries = []
    for number, (fields, text) in enumerate(logs):
        name = fields.get("file", f"log{number}.txt")
        entries.append({"file": name, **fields})
        if text is not None:
            (folder / name).write_text(text)
    path = folder / "manifest.yaml"
    path.write_text(yaml.safe_dump(entries))
    return path


def entry(**changes: Any) -> ManifestEntry:
    """A healthy H100 board, otherwise as given."""
    fields: dict[str, Any] = {
        "file": "log.txt",
        "gpu": "H100 SXM",
        "gpus_per_node": (8,),
        "nodes": (1,),
        "interconnect": "nvswitch3",
        "network": "none",
        "healthy": True,
        "collective": "all_reduce",
    }
    return ManifestEntry(**{**fields, **changes})


def row(size: int, seconds: float | None, **changes: Any) -> ImportedRow:
    """One row of float32, out of place."""
    fields: dict[str, Any] = {
        "count": size // 4,
        "dtype": "float32",
        "op": "sum",
        "root": -1,
        "in_place": False,
        "algbw": None,
        "busbw": None,
    }
    return ImportedRow(size_bytes=size, seconds=seconds, **{**fields, **changes})


def log(rows: Sequence[ImportedRow], **changes: Any) -> ImportedLog:
    """One table of nccl-tests -g 1; changes of the log or, where it has no such field, of the table."""
    of_table = {name: changes.pop(name) for name in list(changes) if name in _TABLE_ONLY}
    table = ImportedTable(of_table.pop("collective", "all_reduce"), tuple(rows), **of_table)
    facts = {"gpus_per_thread": 1}
    return ImportedLog(
        **{
            "tool": "nccl-tests",
            "library": "NCCL",
            "tables": (table,),
            "facts": facts,
            **changes,
        }
    )


_TABLE_ONLY = ("collective", "ranks", "nodes", "algorithm", "protocol")


def system(**changes: Any) -> LibrarySystem:
    """Eight H100, otherwise as given."""
    fields: dict[str, Any] = {
        "name": "board",
        "generation": Generation.HOPPER,
        "ranks_per_node": 8,
        "nodes": 1,
        "intra": Intra.NVSWITCH,
        "intra_bytes_per_second": 450e9,
    }
    return LibrarySystem(**{**fields, **changes})


def observation(sizes: Sequence[int], seconds: Sequence[float], **changes: Any) -> Observation:
    """An all-reduce on ``system(**changes)``."""
    return Observation(
        system(**changes), LibraryRequest("all_reduce", tuple(sizes)), tuple(seconds)
    )


def log_points(file: str, sizes: Sequence[int], **changes: Any) -> LogPoints:
    """A healthy log of one observation whose times are a nanosecond a byte."""
    return LogPoints(
        entry(file=file), (observation(sizes, [size * 1e-9 for size in sizes], **changes),)
    )


def twice_as_slow(_: LibrarySystem, request: LibraryRequest) -> Sequence[float]:
    """A predictor that is off by 100 per cent at every size."""
    return [size * 2e-9 for size in request.size_bytes]


def mixed_logs() -> list[LogPoints]:
    """One healthy log, one known to be sick, one of which nobody knows, one that cannot be modelled."""
    sick = replace(log_points("sick.txt", (64,)), entry=entry(file="sick.txt", healthy=False))
    dim = replace(log_points("dim.txt", (64,)), entry=entry(file="dim.txt", healthy=None))
    lost = LogPoints(entry(file="lost.txt"), (), ("the network is not known",))
    return [log_points("a.txt", (64, 1 << 20, 1 << 30, 1 << 31)), sick, dim, lost]
