from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.machine.detection import load_topology
from ccbench.readers.machines import topology_of_text
from ccbench.topology.files import load_catalog
from ccbench.topology.graph import DeviceKind

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"


def test_stdin_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MATRIX.encode())))
    assert len(load_topology("-").gpus) == 2


def test_without_a_source_this_machine_is_meant() -> None:
    assert load_topology().of_kind(DeviceKind.CPU)


@pytest.mark.parametrize("source", ["HGX-H100", "Hgx-h100"])
def test_names_of_the_catalog_are_found_in_any_case_after_files(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_topology(source) == load_catalog("hgx-h100")
    (tmp_path / source).write_text(MATRIX)
    assert len(load_topology(source).gpus) == 2


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
        ("/dev/null", "a pipe or a device and no file"),
        (".", "Is a directory"),
    ],
)
def test_what_can_be_no_source_is_refused_in_one_line(source: str, complaint: str) -> None:
    with pytest.raises(MachineError, match=complaint) as caught:
        load_topology(source)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@given(st.one_of(st.text(max_size=300), st.text(max_size=100).map(lambda text: "{" + text)))
def test_any_text_gives_a_topology_or_a_machine_error(text: str) -> None:
    with contextlib.suppress(MachineError):
        assert topology_of_text(text, "text").name is not None
