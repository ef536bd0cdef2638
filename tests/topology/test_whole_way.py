"""Every dump and machine of the catalog goes the whole way: read, judged, summarised, printed, drawn."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from ccbench.machine.detection import load_cluster
from ccbench.readers.machines import read_text
from ccbench.report.topology_text import as_text
from ccbench.topology.diagnosis import diagnose
from ccbench.topology.files import (
    CATALOG_FOLDER,
    catalog_names,
    from_plain,
    load_catalog,
    to_plain,
)
from ccbench.topology.graph import Topology
from ccbench.topology.matrix import NO_PATH
from ccbench.topology.summary import gpu_matrix, nic_matrix, summary
from tests.topology.dumps import entries, names, needs_dumps, text_of

ENTRIES = entries()

KINDS = {
    "nvlink_down",
    "nvlinks_missing",
    "peer_access",
    "pcie_width",
    "fabric_not_ready",
    "mig_enabled",
}
"""Problems that a dump may truly have; any other kind of problem in a dump is looked at by a person first."""


def gone_all_the_way(topology: Topology) -> dict[str, Any]:
    """The JSON of ``topology`` after it was printed too."""
    findings = diagnose(topology)
    text = as_text(topology, findings)
    head = text.splitlines()[0]
    assert topology.topology_class.value in head or head.endswith(": no GPU is visible")
    assert all(finding.kind in text for finding in findings)
    plain: dict[str, Any] = json.loads(json.dumps(summary(topology, findings)))
    return plain


@needs_dumps
def test_the_corpus_is_whole() -> None:
    assert len(ENTRIES) == 122


@needs_dumps
@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
def test_a_dump_goes_the_whole_way(entry: dict[str, Any]) -> None:
    topology = read_text(text_of(entry), "dump")
    plain = gone_all_the_way(topology)
    assert plain["class"] == topology.topology_class.value
    assert {one["kind"] for one in plain["findings"] if one["severity"] == "problem"} <= KINDS
    assert from_plain(to_plain(topology), "text") == topology
    # No dump says that two devices of a machine are not joined.
    for matrix in (gpu_matrix(topology), nic_matrix(topology)):
        assert NO_PATH not in {label for row in matrix or () for label in row}


@pytest.mark.parametrize("name", catalog_names())
def test_a_machine_of_the_catalog_is_well_and_of_its_class(name: str) -> None:
    machine = load_catalog(name)
    plain = gone_all_the_way(machine)
    declared = yaml.safe_load((CATALOG_FOLDER / f"{name}.yaml").read_text())
    assert plain["class"] == declared.get("class", "unknown")
    assert [one for one in plain["findings"] if one["severity"] == "problem"] == []
    assert plain["gpu_count"] == (declared.get("gpus") or {}).get("count", 0)


def test_a_cluster_too_large_for_a_graph_counts_all_its_machines() -> None:
    large, small = (
        summary(load_cluster("hgx-h100", nodes, "ib-ndr-400x8"), ()) for nodes in (1000, 2)
    )
    assert (
        large["nodes"],
        large["gpu_count"],
        large["nvswitch_count"],
        large["nic_count"],
    ) == (
        1000,
        8000,
        4000,
        8000,
    )
    assert large["gpu_matrix"] is large["nvlinks_per_gpu"] is None
    counted = [{**group, "pairs": group["pairs"] // 500} for group in large["links"]]
    assert counted == small["links"]
