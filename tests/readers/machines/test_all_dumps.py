"""Every real dump through the registry: the class, GPUs, NICs and links that must be found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.readers.machines import READERS, read_text, reader
from ccbench.topology.graph import DeviceKind, LinkKind, Topology, TopologyClass
from tests.topology.damage import changed, read_or_refused
from tests.topology.dumps import entries, names, needs_dumps, text_of

ENTRIES = entries()

pytestmark = needs_dumps

_DRIVER = "the file has no <gpu>: NCCL asks the driver for NVLinks when it runs"
_BOARDS = "boards of this model exist with other shapes"
_NO_NET = "network cards that NCCL lists without <net>"
OPEN = {
    "nccl_graph_log/HGX_A100_maxWidth_252_head.txt": "six switches, or the one other card of a bridge",
    "nccl_xml/4gpu_SYS_graph_with_nets.xml": "paths over sockets: bridged pairs give the same file",
    "nccl_xml/aws_g5_48xl_bare_pci.xml": _DRIVER,
    "nccl_xml/azure_ncv4_graph.xml": "paths over sockets: GPUs without NVLink give the same file",
    "nccl_xml/azure_ndv2.xml": _DRIVER,
    "nccl_xml/azure_ndv4_a100.xml": _DRIVER,
    "nccl_xml/azure_ndv5_h100.xml": _DRIVER,
    "nccl_xml/oci_a100_b4_flattened.xml": _DRIVER,
    "nccl_xml/oci_a100_flattened.xml": _DRIVER,
    "smi_nvlink/4xA100_SXM4_25.txt": _BOARDS,
    "smi_nvlink/4xV100_16GB_25.781.txt": _BOARDS,
    "smi_nvlink/V100_one_gpu_two_links_inactive.txt": _BOARDS,
    "smi_topo/2xA100_NV12_two_numa.txt": "NV12 between two GPUs: a bridge or ports of switches",
}
"""What a dump alone does not say of its machine, and why: its class is left open, nothing else."""

MORE_NICS = {
    "nccl_xml/GB10_no_nvlink_c2c.xml": _NO_NET,
    "nccl_xml/azure_nc48v4_2xA100_pcie.xml": _NO_NET,
    "nccl_xml/azure_ncv4_a100_pcie_self_nvlink.xml": _NO_NET,
    "nccl_xml/rccl_topo_8p_rome_vm1.xml": _NO_NET,
    "smi_topo/8xH800_NV8_damaged_copy.txt": "columns of NICs in a copy that lost their rows",
}
"""Dumps of which the manifest counts fewer NICs than the text names, and why."""

TO_ITSELF = "nccl_xml/azure_ncv4_a100_pcie_self_nvlink.xml"
"""NVLinks of which the file names no other end are no links of the graph."""


def expected_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Return what the manifest says of class, GPUs, NICs and links, as far as the graph can have it."""
    expected = {"topology_class": entry["expected"]["topology_class"]}
    for key in ("gpu_count", "nic_count", "nvlinks_per_gpu"):
        if key in entry["expected"] and not str(entry["expected"][key]).startswith("unknown"):
            expected[key] = entry["expected"][key]
    rows = entry["expected"].get("gpu_matrix") or ()
    for gpu, row in enumerate(rows.values() if isinstance(rows, Mapping) else rows):
        for peer, label in enumerate((row or "").split() if not isinstance(row, list) else row):
            if gpu != peer:
                expected[f"gpu{gpu} gpu{peer}"] = label
    if entry["file"] in MORE_NICS:
        del expected["nic_count"]
    if entry["file"] == TO_ITSELF:
        del expected["nvlinks_per_gpu"]
    return expected


def read_of(topology: Topology, expected: dict[str, Any]) -> dict[str, Any]:
    """Return the same of the graph that was read."""
    links = [
        sum(
            link.count
            for link in topology.links
            if link.source == gpu.name and link.kind is LinkKind.NVLINK
        )
        for gpu in topology.gpus
    ]
    stated = expected.get("nvlinks_per_gpu")
    graph: dict[str, Any] = {
        "topology_class": topology.topology_class.value,
        "gpu_count": len(topology.gpus),
        "nic_count": len(topology.of_kind(DeviceKind.NIC)),
        "nvlinks_per_gpu": links if isinstance(stated, list) else dict(enumerate(links)),
        **{f"{pair[0]} {pair[1]}": label for pair, label in topology.matrix.items()},
    }
    if isinstance(stated, int):
        graph["nvlinks_per_gpu"] = links[0] if len(set(links)) == 1 else links
    return {key: graph.get(key) for key in expected}


@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
def test_class_gpus_nics_and_links_of_a_dump_are_read(entry: dict[str, Any]) -> None:
    expected, topology = expected_of(entry), read_text(text_of(entry))
    if entry["file"] in OPEN:
        expected["topology_class"] = "unknown"
    assert read_of(topology, expected) == expected


@pytest.mark.thinned(6)
@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
def test_a_dump_cut_anywhere_claims_no_more_than_the_whole(entry: dict[str, Any]) -> None:
    text = text_of(entry)
    whole = read_text(text)
    is_nccl_xml = entry["file"].startswith("nccl_xml/")
    for length in range(0, len(text.rstrip()) - len("</system>"), max(64, len(text) // 120)):
        part = read_or_refused(read_text, text[:length])
        # The last word of other tools' cut text may be half an id or half a label.
        if (
            part is None
            or part.source != whole.source
            or not entry["file"].startswith(("nccl_xml/", "smi_"))
        ):
            continue
        assert len(part.gpus) <= max(len(whole.gpus), 1)
        assert all(
            whole.matrix.get(pair, label) == label for pair, label in part.matrix.items()
        )
        most = whole.facts.get("nvlinks_per_gpu") or part.facts.get("nvlinks_per_gpu") or ()
        for links, at_most in zip(part.facts.get("nvlinks_per_gpu") or (), most, strict=False):
            assert None in (links, at_most) or links <= at_most
        if is_nccl_xml:
            assert any(warning.kind == "truncated" for warning in part.warnings)
            assert part.topology_class in (whole.topology_class, TopologyClass.UNKNOWN)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
@settings(max_examples=20)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 10_000), st.characters()), min_size=1, max_size=12
    )
)
def test_a_dump_with_changed_characters_is_read_or_refused(
    entry: dict[str, Any], changes: list[tuple[int, str]]
) -> None:
    text = text_of(entry)
    reader_of = reader(next(name for name in READERS if reader(name).recognises(text)))
    read_or_refused(reader_of.read, changed(text, changes))


@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
def test_exactly_one_reader_recognises_a_dump(entry: dict[str, Any]) -> None:
    text = text_of(entry)
    assert len([name for name in READERS if reader(name).recognises(text)]) == 1
