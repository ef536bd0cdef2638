"""Compares what a reader found with what the manifest says it must find, fact by fact.

Tolerant in representation only: ``"48"`` or 48 as a key, tuple or list, one value for all GPUs or one per
GPU, a matrix as rows of labels or as one string per GPU, a list or a dict by number, a remark in brackets
behind a value. Never in substance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccbench.topology.graph import Topology

NOT_IN_THE_TEXT = {
    "note": "a remark for people",
    "machine_gpu_count": "the machine's, while the text shows only some of its GPUs",
    "is_mock": "whether a machine stood behind the text: nothing in the text says so",
    "pcie_gen": "from another tool's output in the same source; no PCIe rate in a matrix",
    "pcie_gen_max": "from another tool's output in the same source; no PCIe rate in a matrix",
    "pcie_gen_idle": "from another tool's output in the same source; no PCIe rate in a matrix",
    "pcie_width": "from another tool's output in the same source; no PCIe rate in a matrix",
}
"""Keys of ``expected`` that state no fact of the text, and why. Only for nvidia-smi's text outputs."""

_SMI_ONLY = ("pcie_gen", "pcie_gen_max", "pcie_gen_idle", "pcie_width")
_EVERY_CHANNEL = "every listed channel "
_MATRICES = ("gpu_matrix", "p2p_matrix")
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def checked_facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry's ``expected`` without the keys that state no fact of the text."""
    smi = "nvidia-smi" in entry["kind"]
    return {
        key: value
        for key, value in entry["expected"].items()
        if key not in NOT_IN_THE_TEXT or (key in _SMI_ONLY and not smi)
    }


def compare(entry: Mapping[str, Any], topology: Topology) -> list[str]:
    """One line for every fact that ``topology`` misses: ``file: key: expected ..., found ...``."""
    misses = []
    for key, wanted in checked_facts(entry).items():
        found = _found(key, topology)
        if not _met(key, wanted, found, topology):
            misses.append(
                f"{entry['file']}: {key}: expected {wanted!r:.160}, found {found!r:.160}"
            )
    return misses


def _found(key: str, topology: Topology) -> Any:
    if key == "topology_class":
        return topology.topology_class.value
    found = topology.facts.get(key)
    if key in _MATRICES and isinstance(found, (list, tuple)):
        return {
            f"GPU{index}": " ".join(row) for index, row in enumerate(found) if row is not None
        }
    return found


def _met(key: str, expected: Any, found: Any, topology: Topology) -> bool:
    if key == "fault":
        return _fault_met(str(expected), topology)
    if expected == "damaged":
        spoken = key.replace("_", " ")
        return any(
            n.kind == "damaged_line" and spoken in n.text.lower() for n in topology.warnings
        )
    if key in _MATRICES and isinstance(expected, Mapping) and isinstance(found, Mapping):
        expected = {gpu: " ".join(row.split()) for gpu, row in expected.items()}
    expected, found = _plain(expected), _plain(found)
    if expected == found:
        return isinstance(expected, bool) is isinstance(found, bool)
    if isinstance(expected, str):
        if expected.startswith(_EVERY_CHANNEL) and isinstance(found, Mapping):
            ring = [int(rank) for rank in expected[len(_EVERY_CHANNEL) :].split()]
            return bool(found) and all(item == ring for item in found.values())
        if expected.startswith("unknown"):
            return found is None
        if expected.endswith(")") and expected.split(" (")[0] == found:
            return True
    if isinstance(expected, list) and isinstance(found, Mapping):
        return {str(index): item for index, item in enumerate(expected)} == found
    return _same_for_all(expected, found)


def _same_for_all(expected: Any, found: Any) -> bool:
    """One value in the manifest stands for every GPU; in the topology it is a list or dict over GPUs."""
    if (
        isinstance(expected, (Mapping, list))
        or not isinstance(found, (Mapping, list))
        or not found
    ):
        return False
    values = found.values() if isinstance(found, Mapping) else found
    return all(value == expected for value in values)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _key(key: Any) -> str:
    text = str(key)
    return str(int(text)) if text.isdigit() else text


def _fault_met(expected: str, topology: Topology) -> bool:
    """``all NVLinks of GPU 6 down`` and ``two NVLinks down`` against the structured ``faults``."""
    faults = topology.facts.get("faults") or []
    down = [link for fault in faults for link in fault["down"]] if faults else []
    if expected.startswith("all NVLinks of GPU "):
        gpu = "GPU" + expected.split()[4]
        return [fault["gpu"] for fault in faults] == [gpu] and faults[0]["down"] == ["all"]
    words = expected.split()
    return words[1:] == ["NVLinks", "down"] and len(down) == _WORDS.index(words[0])
