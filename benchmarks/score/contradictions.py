"""Where a manifest and the log that it describes say different things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
    """One line for everything else; what counts in spite of it is said, too."""
    return tuple(line for line in (_collective(entry, log), _hosts(entry, log)) if line)


def _collective(entry: ManifestEntry, log: ImportedLog) -> str:
    named = dict.fromkeys(table.collective for table in log.tables if table.collective)
    if entry.collective not in COLLECTIVES or not named or entry.collective in named:
        return ""
    return f"the manifest's collective is {entry.collective}, and the log's, which counts, {', '.join(named)}"


def _hosts(entry: ManifestEntry, log: ImportedLog) -> str:
    """Containers may each have a host name of their own, so this is only told."""
    ranks = {device.rank for device in log.devices}
    whole = len(ranks) > 1 and all(table.ranks in (None, len(ranks)) for table in log.tables)
    if (
        not whole
        or ranks != set(range(len(ranks)))
        or not all(device.host for device in log.devices)
    ):
        return ""
    gpus = {
        (device.host, device.rank if device.device is None else device.device)
        for device in log.devices
    }
    if len(gpus) != len(ranks):
        return ""  # one name for all hosts, or ranks that share a GPU
    hosts = Counter(host for host, _ in gpus)
    sizes = sorted(set(hosts.values()))
    if (not entry.nodes or len(hosts) in entry.nodes) and (
        not entry.gpus_per_node or set(sizes) <= set(entry.gpus_per_node)
    ):
        return ""
    stated = f"{_or(entry.nodes)} nodes of {_or(entry.gpus_per_node)} GPUs"
    return (
        f"the manifest says {stated}, and the log lists {len(hosts)} hosts of {_or(sizes)} GPUs"
    )


def _or(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers)) or "unknown"
