"""What a person states of a machine, behind its source or as options."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.errors import MachineError
from ccbench.machine.detection import load_topology
from ccbench.model.cluster import open_cluster
from ccbench.model.library.clusters import library_system
from ccbench.topology.graph import LinkKind

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{link}\t0-7\nGPU1\t{link}\t X \t0-7\n"


def matrix(folder: Path, link: str) -> str:
    file = folder / "topo.txt"
    file.write_text(MATRIX.format(link=link), encoding="utf-8")
    return str(file)


def test_a_dump_without_models_is_priced_with_the_one_that_is_stated(tmp_path: Path) -> None:
    source = matrix(tmp_path, "NV12")
    with pytest.raises(MachineError, match="state the model with --gpu"):
        _ = open_cluster(source).system
    cluster = open_cluster(f"{source}?gpu=NVIDIA+A100-SXM4-40GB")
    assert cluster.system.intra_bytes_per_second == 300e9
    nvlinks = [link for link in cluster.node.links if link.kind is LinkKind.NVLINK]
    assert {link.bytes_per_second for link in nvlinks} == {300e9}
    assert all("assumed, of NVIDIA A100" in link.origin for link in nvlinks)


def test_slots_are_stated_as_generation_and_lanes(tmp_path: Path) -> None:
    topology = load_topology(f"{matrix(tmp_path, 'PHB')}?gpu=NVIDIA+L40S&pcie=4x8")
    (rate,) = {link.bytes_per_second for link in topology.links if link.kind is LinkKind.PCIE}
    assert rate == pytest.approx(15.75e9, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cpu=x", "states nothing; write gpu=MODEL or pcie=4x16"),
        ("pcie=fast", "expected generation and lanes"),
        ("pcie=9x16", "expected generation and lanes"),
        ("pcie=4x3", "expected generation and lanes"),
    ],
)
def test_what_cannot_be_stated_is_refused(words: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=message):
        load_topology(f"{matrix(tmp_path, 'PHB')}?{words}")


@pytest.mark.parametrize(
    "words", ["l40s?gpu=L4", "l40s?gpu=NVIDIA L40", "hgx-h200?gpu=H20", "l40s?gpu= "]
)
def test_a_shorter_name_is_of_whole_words(words: str) -> None:
    with pytest.raises(MachineError, match="its GPUs are NVIDIA"):
        load_topology(words)


def test_a_model_that_nobody_knows_is_named_where_it_does_not_say_enough(
    tmp_path: Path,
) -> None:
    pasted = matrix(tmp_path, "PHB")
    for words, model in (("", "not stated"), ("?gpu=banana", "banana")):
        with pytest.raises(
            MachineError, match=rf"\({model}\) says how fast pcie .*--pcie 4x16"
        ):
            library_system(load_topology(f"{pasted}{words}"))


def test_rates_that_a_machine_states_are_not_touched() -> None:
    assert open_cluster("l40s").node == load_topology("l40s")
