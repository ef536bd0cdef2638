from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.machine.detection import load_cluster, load_topology
from ccbench.topology.catalog import catalog_names, load_catalog
from ccbench.topology.files import topology_json, topology_yaml
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology
from ccbench.topology.matrix import NO_PATH, path_labels
from ccbench.topology.readers import LARGEST_HEAD, LARGEST_TEXT_BYTES, topology_of_text
from ccbench.topology.summary import device_count, gpu_matrix, nic_matrix, node_count
from tests.topology.dumps import DUMPS, entries, needs_dumps

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


def test_json_of_nobody_is_refused_as_one_of_our_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(MachineError, match="this release reads 'ccbench_topology: 1'"):
        load_topology(str(tmp_path / "a.json"))


def test_stdin_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MATRIX.encode())))
    assert len(load_topology("-").gpus) == 2


def test_text_of_windows_editors_is_read(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text(MATRIX, encoding="utf-16")
    assert len(load_topology(str(tmp_path / "dump")).gpus) == 2


def test_without_a_source_this_machine_is_meant() -> None:
    assert load_topology().of_kind(DeviceKind.CPU)


@pytest.mark.parametrize("name", catalog_names())
def test_every_machine_of_the_catalog_is_a_source(name: str) -> None:
    assert load_topology(name) == load_catalog(name)


def test_an_unknown_name_is_one_line_with_the_nearest_ones() -> None:
    with pytest.raises(MachineError, match=r"neither a file nor in the catalog\. Did you mean: .*hgx-h100"):
        load_topology("hgx-h10")


@pytest.mark.parametrize("source", ["", " ", "\t"])
def test_an_empty_source_is_refused_and_does_not_mean_this_machine(source: str) -> None:
    with pytest.raises(MachineError, match="the source is empty; leave it out for this machine"):
        load_topology(source)


@pytest.mark.parametrize("source", ["HGX-H100", "Hgx-h100"])
def test_names_of_the_catalog_are_found_in_any_case(source: str) -> None:
    assert load_topology(source) == load_catalog("hgx-h100")


def test_a_file_comes_before_a_name_that_is_spelled_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "HGX-H100").write_text(MATRIX)
    assert len(load_topology("HGX-H100").gpus) == 2


def test_the_nearest_names_are_found_in_any_case() -> None:
    with pytest.raises(MachineError, match=r"Did you mean: .*hgx-h100"):
        load_topology("HGX-H10")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        MachineError, match="is a pipe or a device and no file; pipe its text in: ccbench topo -"
    ):
        load_topology(str(tmp_path / "pipe"))


@pytest.mark.skipif(not Path(os.devnull).is_char_device(), reason="this system shows no devices as files")
def test_a_device_is_refused() -> None:
    with pytest.raises(MachineError, match="is a pipe or a device"):
        load_topology(os.devnull)


@pytest.mark.parametrize("source", ["x" * 5000, "a\0b", "a/" * 3000])
def test_what_can_be_no_path_is_no_source(source: str) -> None:
    with pytest.raises(MachineError, match="neither a file nor in the catalog") as caught:
        load_topology(source)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "content", [bytes(range(256)) * 8, b"\x7fELF" + b"\0" * 900, "GPU0".encode("utf-16-le")]
)
def test_binary_data_is_called_so(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(MachineError, match="is no text but binary data"):
        load_topology(str(tmp_path / "data"))


def test_a_text_with_damaged_bytes_is_read(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(MATRIX.encode() + b"\0\xff\xfe\x1b[4m")
    assert len(load_topology(str(tmp_path / "dump")).gpus) == 2


def test_a_large_text_of_no_format_is_refused_by_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("no machine\n" * (LARGEST_HEAD // 11 + 1) + MATRIX)
    with pytest.raises(MachineError, match="its first 2 MiB are no machine description"):
        load_topology(str(tmp_path / "large"))


@pytest.mark.exhaustive
def test_a_large_log_is_read_whole(tmp_path: Path) -> None:
    filler = "host:1:1 [0] NCCL INFO Using network IB\n"
    ring = "host:1:1 [0] NCCL INFO Channel 00/01 : 0 1 2 3\n"
    (tmp_path / "large").write_text(filler * (LARGEST_HEAD // len(filler) + 1) + ring)
    assert load_topology(str(tmp_path / "large")).facts["rings"] == {"00": [0, 1, 2, 3]}


def test_a_printed_table_of_such_a_size_is_no_tools(tmp_path: Path) -> None:
    (tmp_path / "large").write_text(MATRIX + "\n" * LARGEST_HEAD)
    with pytest.raises(MachineError, match="more than any such tool prints of one machine"):
        load_topology(str(tmp_path / "large"))


def test_a_text_above_the_limit_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(LARGEST_TEXT_BYTES + 1)
    with pytest.raises(MachineError, match="larger than 64 MiB"):
        load_topology(str(tmp_path / "huge"))


def test_a_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="is a folder; name a file in it"):
        load_topology(str(tmp_path))


def test_a_cluster_too_large_for_a_graph_says_how_large_it_is() -> None:
    found = load_cluster("hgx-h100", 1000, "ib-ndr-400x8")
    assert node_count(found) == 1000
    assert device_count(found, DeviceKind.GPU) == 8000
    assert len(found.gpus) < 100
    assert any("of 1000 machines" in notice.text for notice in found.notices)


def test_a_small_cluster_is_whole() -> None:
    found = load_cluster("hgx-h100", 2, "ib-ndr-400x8")
    assert (node_count(found), len(found.gpus), device_count(found, DeviceKind.GPU)) == (2, 16, 16)


def test_own_nics_are_not_counted_beside_those_of_the_network(tmp_path: Path) -> None:
    devices = [
        ("gpu0", DeviceKind.GPU),
        ("cpu0", DeviceKind.CPU),
        ("nic0", DeviceKind.NIC),
        ("nic1", DeviceKind.NIC),
    ]
    links = [
        Link(*ends, LinkKind.PCIE, 31.5e9)
        for name in ("gpu0", "nic0", "nic1")
        for ends in ((name, "cpu0"), ("cpu0", name))
    ]
    box = Topology("box", tuple(Device(*one) for one in devices), tuple(links))
    (tmp_path / "box.yaml").write_text(topology_yaml(box))
    found = load_cluster(str(tmp_path / "box.yaml"), 900, "ib-hdr-200x2")
    assert len(found.gpus) == 900
    assert len(found.devices) == 900 * 4 + 1


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=300), st.text(max_size=100).map(lambda text: "{" + text)))
def test_any_text_gives_a_topology_or_a_machine_error(text: str) -> None:
    with contextlib.suppress(MachineError):
        assert topology_of_text(text, "text").name is not None


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("name", "network"), [("gb200-nvl72", "ib-xdr-800x72"), ("l40s", "tcp-25x256")])
@pytest.mark.parametrize("nodes", [5, 11, 12, 13, 15, 16, 17, 30, 38])
def test_a_cluster_of_any_size_with_many_nics_is_built(name: str, network: str, nodes: int) -> None:
    found = load_cluster(name, nodes, network)
    assert node_count(found) == nodes
    assert device_count(found, DeviceKind.NIC) == nodes * int(network.rpartition("x")[2])


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
    said = str(caught.value)
    assert "links have no rate" in said or "shows no link that joins" in said or not load_topology(path).links
    assert "ccbench topo SOURCE --yaml" in said
    assert "\n" not in said
    assert len(load_cluster(path, 1, "ib-ndr-400x2").of_kind(DeviceKind.NIC)) == 2


@needs_dumps
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: str(entry["file"]))
def test_no_dump_says_that_two_devices_of_a_machine_are_not_joined(entry: dict[str, Any]) -> None:
    assert DUMPS is not None
    try:
        found = load_topology(str(DUMPS / entry["file"]))
    except MachineError:
        return
    for matrix in (gpu_matrix(found), nic_matrix(found)):
        assert NO_PATH not in {label for row in matrix or () for label in row}


def test_a_machine_written_with_its_rates_becomes_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text(MATRIX)
    written = topology_yaml(load_topology(str(tmp_path / "dump")))
    origin = "  origin: nvidia-smi topo -m\n"
    assert written.count(origin) == 6
    (tmp_path / "machine.yaml").write_text(written.replace(origin, "  bytes_per_second: 50000000000\n"))
    found = load_cluster(str(tmp_path / "machine.yaml"), 2, "ib-ndr-400x2")
    assert (len(found.gpus), device_count(found, DeviceKind.NIC)) == (4, 4)
    labels = path_labels(found)
    assert (labels[("n1.gpu0", "n1.gpu1")], labels[("n1.gpu0", "n1.nic0")]) == ("NV4", "PHB")
