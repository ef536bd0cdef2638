"""Findings about NVLinks: missing ones, those that are down, GPUs that have fewer than their siblings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ccbench.topology.graph import (
    Device,
    Finding,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)
from ccbench.topology.models import is_card, nvlinks_of_model


def nvlink_findings(topology: Topology) -> Iterator[Finding]:
    """Problems of NVLinks; silent where the source does not say how many there are."""
    up, down = _counted(topology)
    cards = [gpu for gpu in topology.gpus if is_card(_model(gpu))]
    resting = {gpu.name for gpu in cards if up[gpu.name] == 0}
    broken = [gpu for gpu in topology.gpus if down[gpu.name] and not _rests(gpu, resting, up)]
    if broken:
        seen = ", ".join(f"{gpu.name}: {down[gpu.name]} of {up[gpu.name] + down[gpu.name]}" for gpu in broken)
        yield Finding(
            "problem", "nvlink_down", tuple(gpu.name for gpu in broken), f"NVLinks that are down: {seen}",
            "read nvidia-smi nvlink -e and dmesg for Xid 74; reset the GPU, reseat the bridge or tray",
        )  # fmt: skip
    named = {gpu.name for gpu in broken}
    yield from _missing(topology, up, named | resting)
    bare = [gpu for gpu in cards if down[gpu.name] and gpu.name in resting]
    if bare:
        yield Finding(
            "note", "nvlink_without_bridge", tuple(gpu.name for gpu in bare),
            f"the NVLinks of {len(bare)} cards rest: no bridge is plugged on, or it is not seen",
            "a bridge would carry traffic between a pair of these cards",
        )  # fmt: skip


def _rests(gpu: Device, resting: set[str], up: Counter[str]) -> bool:
    """Whether links that are down are meant to be: cards list more links than a bridge has."""
    expected = nvlinks_of_model(_model(gpu))
    complete = is_card(_model(gpu)) and expected is not None and up[gpu.name] >= expected
    return gpu.name in resting or complete


def _counted(topology: Topology) -> tuple[Counter[str], Counter[str]]:
    """NVLinks that are up and that are down, by GPU; what the source counted where it has no ends."""
    up: Counter[str] = Counter()
    down: Counter[str] = Counter()
    for link in topology.links:
        if link.kind is LinkKind.NVLINK and link.state is not LinkState.NOT_VISIBLE:
            (up if link.state is LinkState.UP else down)[link.source] += link.count
    stated = topology.facts.get("nvlinks_per_gpu")
    if isinstance(stated, list) and len(stated) == len(topology.gpus):
        for gpu, count in zip(topology.gpus, stated, strict=True):
            if isinstance(count, int):
                up[gpu.name] = max(up[gpu.name], count)
    for gpu in topology.gpus:
        resting = gpu.attributes.get("nvlinks_down")
        down[gpu.name] += resting if isinstance(resting, int) else 0
    for gpu in topology.gpus:
        down[gpu.name] = max(down[gpu.name], _faults(topology, gpu))
    return up, down


def _faults(topology: Topology, gpu: Device) -> int:
    """Links of ``gpu`` that a listing of the driver calls inactive, where the graph has no ends for them."""
    faults = topology.facts.get("faults")
    for fault in faults if isinstance(faults, list) else []:
        if isinstance(fault, dict) and fault.get("gpu") in (gpu.attributes.get("name"), gpu.name):
            numbers = fault.get("down")
            if numbers == ["all"]:
                return nvlinks_of_model(_model(gpu)) or 1
            return len(numbers) if isinstance(numbers, list) else 0
    return 0


def _missing(topology: Topology, up: Counter[str], named: set[str]) -> Iterator[Finding]:
    """Fewer than the model has, or than GPUs of the same model have; ``named`` are spoken of already."""
    hidden = {notice.text.partition(":")[0] for notice in topology.notices if notice.kind == "not_visible"}
    # Only a source that counts links is held to its numbers, and only when it is whole.
    if not isinstance(topology.facts.get("nvlinks_per_gpu"), list) or _is_damaged(topology):
        return
    if not any(up.values()) and not _asked(topology):
        return
    groups: dict[str, list[Device]] = {}
    for gpu in topology.gpus:
        groups.setdefault(_model(gpu), []).append(gpu)
    for model, gpus in groups.items():
        if not model and topology.topology_class is TopologyClass.NVLINK_BRIDGE:
            continue  # a source without models: cards beside a bridged pair may have no bridge on
        # Links to GPUs that this source leaves out are missing from its direct links, not from the machine.
        whole = topology.topology_class is TopologyClass.NVSWITCH or _asked(topology)
        expected = nvlinks_of_model(model) if whole and not is_card(model) else None
        most = max(up[gpu.name] for gpu in gpus)
        wanted = max(most, expected or 0)
        unread = _uncounted(topology)
        short = [gpu for gpu in gpus if up[gpu.name] < wanted and gpu.name not in named | hidden | unread]
        if not short:
            continue
        few = sorted({up[gpu.name] for gpu in short})
        counts = " or ".join(str(one) for one in few)
        against = f"a {model} has {expected}" if expected == wanted else f"its siblings have {most}"
        # A source without models shows display cards beside a board's GPUs too.
        bare = not model and few == [0]
        against += ", unless it is another model" if bare else ""
        listed = ", ".join(gpu.name for gpu in short[:8]) + (", ..." if len(short) > 8 else "")
        yield Finding(
            "note" if bare else "problem", "nvlinks_missing", tuple(gpu.name for gpu in short),
            f"{listed}: {counts} NVLinks, where {against}",
            "compare nvidia-smi nvlink -s of the GPUs; collectives fall back to PCIe or to fewer channels",
        )  # fmt: skip


def _uncounted(topology: Topology) -> set[str]:
    """GPUs whose NVLinks the source gives no number of, while it does of others."""
    stated = topology.facts.get("nvlinks_per_gpu")
    if not isinstance(stated, list) or len(stated) != len(topology.gpus):
        return set()
    return {gpu.name for gpu, count in zip(topology.gpus, stated, strict=True) if count is None}


def _is_damaged(topology: Topology) -> bool:
    kinds = ("truncated", "damaged_line", "unknown_spelling")
    return any(notice.kind in kinds for notice in topology.notices)


def _asked(topology: Topology) -> bool:
    """Whether the driver itself was asked for every link."""
    return topology.facts.get("driver") is not None


def _model(gpu: Device) -> str:
    return str(gpu.attributes.get("model") or "")
