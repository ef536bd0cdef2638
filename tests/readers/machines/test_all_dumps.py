"""Every real dump through the registry: what was found, of what must be found."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.readers.machines import READERS, read_text, reader
from ccbench.topology.graph import TopologyClass
from tests.topology.damage import changed, read_or_refused
from tests.topology.dumps import entries, names, needs_dumps, text_of
from tests.topology.facts import checked_facts, compare

ENTRIES = entries()

pytestmark = needs_dumps

_DRIVER = "the file has no <gpu>: NCCL asks the driver for NVLinks when it runs"
_BOARDS = "boards of this model exist with other shapes"
OPEN = {
    "nccl_graph_log/DGX2_8_of_16_chain_trees.txt": "four of eight ranks print trees, neither end",
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

MAY_BE_OPEN = {"topology_class": "unknown", "nvswitch": None, "nranks": None}


def test_every_fact_of_every_dump_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    checked: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    files = set()
    for entry in ENTRIES:
        kind = entry["file"].split("/")[0]
        checked[kind] += len(checked_facts(entry))
        topology = read_text(text_of(entry))
        misses = [miss.split(": ")[1] for miss in compare(entry, topology)]
        missed[kind] += len(misses)
        found = {**topology.facts, "topology_class": topology.topology_class.value}
        assert all(found[key] == MAY_BE_OPEN[key] for key in misses), (entry["file"], misses)
        if misses:
            files.add(entry["file"])
            candidates = topology.facts.get("topology_class_candidates")
            assert candidates is None or entry["expected"]["topology_class"] in candidates
    met = checked.total() - missed.total()
    with capsys.disabled():
        print(
            f"\n  {len(ENTRIES)} dumps: {met} of {checked.total()} facts ({met / checked.total():.2%})"
        )
    assert files == set(OPEN)


def test_comparing_notices_every_fact_that_is_changed() -> None:
    """A comparison that lets everything pass would make the others worthless."""
    for entry in ENTRIES:
        topology = read_text(text_of(entry))
        met = set(checked_facts(entry)) - {
            line.split(": ")[1] for line in compare(entry, topology)
        }
        for key in met - {"topology_class", "fault"}:
            expected = checked_facts(entry)[key]
            other_topology = dataclasses.replace(
                topology, facts={**topology.facts, key: "something else"}
            )
            if expected == "damaged":
                other_topology = dataclasses.replace(topology, warnings=())
            assert any(f": {key}: " in line for line in compare(entry, other_topology)), (
                entry["file"],
                key,
            )


@pytest.mark.thinned(12)
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
        for gpu, links in part.facts.get("links", {}).items():
            of_whole = whole.facts["links"][gpu]
            assert links["total"] <= of_whole["total"]
            assert set(links.get("GBps_per_link", ())) <= set(of_whole.get("GBps_per_link", ()))
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
