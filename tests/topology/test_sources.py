from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.topology.catalog import catalog_names, load_catalog
from ccbench.topology.files import topology_json, topology_yaml
from ccbench.topology.graph import DeviceKind
from ccbench.topology.sources import load_cluster, load_topology, topology_of_text
from ccbench.topology.summary import device_count, node_count

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


def test_a_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be read"):
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


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=300), st.text(max_size=100).map(lambda text: "{" + text)))
def test_any_text_gives_a_topology_or_a_machine_error(text: str) -> None:
    with contextlib.suppress(MachineError):
        assert topology_of_text(text, "text").name is not None
