"""Where a manifest and the log that it describes say different things."""

from __future__ import annotations

from benchmarks.score.manifest import ManifestEntry
from ccbench.collectives import COLLECTIVES
from ccbench.readers.benchmarks.log import ImportedLog
from ccbench.results.systems import is_other_model


def other_gpu(entry: ManifestEntry, log: ImportedLog) -> str:
    """Why the log is not of the manifest's GPUs, by its device lines; "" where it may be."""
    said = entry.gpu.partition("(")[0]
    for device in log.devices:
        if device.model and is_other_model(device.model, said):
            return f"the manifest's gpu is {entry.gpu}, and the log lists {device.model}; correct the manifest"
    return ""


def contradictions(entry: ManifestEntry, log: ImportedLog) -> tuple[str, ...]:
    """Another collective than the manifest's, if any, and which of them counts."""
    named = dict.fromkeys(table.collective for table in log.tables if table.collective)
    if entry.collective not in COLLECTIVES or not named or entry.collective in named:
        return ()
    return (
        f"the manifest's collective is {entry.collective}, and the log's, which counts, {', '.join(named)}",
    )
