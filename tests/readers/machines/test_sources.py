from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.machine.detection import load_cluster, load_topology
from ccbench.readers.machines import topology_of_text
from ccbench.topology.files import catalog_names, load_catalog, topology_json, topology_yaml
from ccbench.topology.graph import DeviceKind
from ccbench.topology.matrix import path_labels
from ccbench.topology.summary import device_count, node_count
from tests.topology.dumps import DUMPS, entries, needs_dumps
from tests.topology.graphs import graph

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"


@pytest.mark.parametrize("name", ["a.txt", "a.yaml", "nothing"])
def test_a_file_is_told_by_what_it_says_and_not_by_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(MATRIX)
    assert len(load_topology(str(tmp_path / name)).gpus) == 2


@pytest.mark.parametrize("form", [topology_json, topology_yaml])
@pytest.mark.parametrize("begin", ["", "\ufeff", "\n\n"])
def test_our_own_files_come_back_as_they_were(form: object, begin: str) -> None:
    machine = load_catalog(catalog_names()[0])
    assert callable(form)
    assert topology_of_text(begin + form(machine), "pasted") == machine


def test_json_of_another_tool_is_read_by_its_reader(tmp_path: Path) -> None:
    pair = {"(Topology) Link type between DRM devices 0 and 1": "XGMI"}
    (tmp_path / "a.json").write_text(json.dumps({"system": pair}))
    found = load_topology(str(tmp_path / "a.json"))
    assert (len(found.gpus), found.topology_class.value) == (2, "xgmi-mesh")


def test_stdin_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MATRIX.encode())))
    assert len(load_topology("-").gpus) == 2


@pytest.mark.parametrize(
    "content",
    [MATRIX.encode("utf-16"), MATRIX.encode() + b"\0\xff\xfe\x1b[4m"],
    ids=["UTF-16", "damaged"],
)
def test_text_of_windows_editors_and_with_damaged_bytes_is_read(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "dump").write_bytes(content)
    assert len(load_topology(str(tmp_path / "dump")).gpus) == 2


def test_without_a_source_this_machine_is_meant() -> None:
    assert load_topology().of_kind(DeviceKind.CPU)


@pytest.mark.parametrize("name", catalog_names())
def test_every_machine_of_the_catalog_is_a_source(name: str) -> None:
    assert load_topology(name) == load_catalog(name)


@pytest.mark.parametrize("source", ["HGX-H100", "Hgx-h100"])
def test_names_of_the_catalog_are_found_in_any_case_after_files(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_topology(source) == load_catalog("hgx-h100")
    (tmp_path / source).write_text(MATRIX)
    assert len(load_topology(source).gpus) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        MachineError,
        match="is a pipe or a device and no file; pipe its text in: ccbench topo -",
    ):
        load_topology(str(tmp_path / "pipe"))


NO_SOURCE = "neither a file nor in the catalog"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "the source is empty; leave it out for this machine"),
        (" \t", "the source is empty; leave it out for this machine"),
        ("hgx-h10", rf"{NO_SOURCE}\. Did you mean: .*hgx-h100"),
        ("HGX-H10", rf"{NO_SOURCE}\. Did you mean: .*hgx-h100"),
        ("x" * 5000, NO_SOURCE),
        ("a\0b", NO_SOURCE),
        ("a/" * 3000, NO_SOURCE),
        ("/dev/null", "is a pipe or a device"),
        (".", "is a folder; name a file in it"),
    ],
)
def test_what_can_be_no_source_is_refused_in_one_line(source: str, complaint: str) -> None:
    with pytest.raises(MachineError, match=complaint) as caught:
        load_topology(source)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (bytes(range(256)) * 8, "is no text but binary data"),
        (b"\x7fELF" + b"\0" * 900, "is no text but binary data"),
        ("GPU0".encode("utf-16-le"), "is no text but binary data"),
        (
            b'{"a": 1}',
            "the key ccbench_topology is missing.*this release reads 'ccbench_topology: 1'",
        ),
    ],
    ids=["bytes", "program", "UTF-16 without mark", "JSON of nobody"],
)
def test_a_file_that_no_tool_wrote_is_refused(
    content: bytes, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(MachineError, match=complaint):
        load_topology(str(tmp_path / "data"))


def test_a_cluster_too_large_for_a_graph_says_how_large_it_is() -> None:
    cluster = load_cluster("hgx-h100", 1000, "ib-ndr-400x8")
    assert node_count(cluster) == 1000
    assert device_count(cluster, DeviceKind.GPU) == 8000
    assert len(cluster.gpus) < 100
    assert any("of 1000 machines" in warning.text for warning in cluster.warnings)


def test_own_nics_are_not_counted_beside_those_of_the_network(tmp_path: Path) -> None:
    box = graph("gpu0 cpu0", "nic0 cpu0", "nic1 cpu0", rate=31.5e9)
    (tmp_path / "box.yaml").write_text(topology_yaml(box))
    cluster = load_cluster(str(tmp_path / "box.yaml"), 900, "ib-hdr-200x2")
    assert (len(cluster.gpus), len(cluster.devices)) == (900, 900 * 4 + 1)


@given(st.one_of(st.text(max_size=300), st.text(max_size=100).map(lambda text: "{" + text)))
def test_any_text_gives_a_topology_or_a_machine_error(text: str) -> None:
    with contextlib.suppress(MachineError):
        assert topology_of_text(text, "text").name is not None


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("name", "network"), [("gb200-nvl72", "ib-xdr-800x72"), ("l40s", "tcp-25x256")]
)
@pytest.mark.parametrize("nodes", [5, 11, 12, 13, 15, 16, 17, 30, 38])
def test_a_cluster_of_any_size_with_many_nics_is_built(
    name: str, network: str, nodes: int
) -> None:
    cluster = load_cluster(name, nodes, network)
    assert node_count(cluster) == nodes
    assert device_count(cluster, DeviceKind.NIC) == nodes * int(network.rpartition("x")[2])


@needs_dumps
@pytest.mark.parametrize("entry", entries("smi_topo"), ids=lambda entry: str(entry["file"]))
def test_a_printed_matrix_made_a_cluster_is_refused_by_the_links_it_has_no_rates_of(
    entry: dict[str, Any],
) -> None:
    assert DUMPS is not None
    path = str(DUMPS / entry["file"])
    if not load_topology(path).gpus:
        return
    with pytest.raises(MachineError) as caught:
        load_cluster(path, 2, "ib-ndr-400x2")
    message = str(caught.value)
    assert (
        "links have no rate" in message
        or "shows no link that joins" in message
        or not load_topology(path).links
    )
    assert "ccbench topo SOURCE --yaml" in message
    assert "\n" not in message
    assert len(load_cluster(path, 1, "ib-ndr-400x2").of_kind(DeviceKind.NIC)) == 2


def test_a_machine_written_with_its_rates_becomes_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text(MATRIX)
    written = topology_yaml(load_topology(str(tmp_path / "dump")))
    origin = "  origin: nvidia-smi topo -m\n"
    assert written.count(origin) == 6
    (tmp_path / "machine.yaml").write_text(
        written.replace(origin, "  bytes_per_second: 50000000000\n")
    )
    cluster = load_cluster(str(tmp_path / "machine.yaml"), 2, "ib-ndr-400x2")
    assert (len(cluster.gpus), device_count(cluster, DeviceKind.NIC)) == (4, 4)
    labels = path_labels(cluster)
    assert (labels[("n1.gpu0", "n1.gpu1")], labels[("n1.gpu0", "n1.nic0")]) == ("NV4", "PHB")
