"""The catalog: every machine loads, has a source for every number, and gives the known bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.errors import MachineError
from ccbench.model.bounds import cut_bound
from ccbench.topology.classes import topology_class
from ccbench.topology.fabrics import Fabric, striped
from ccbench.topology.files import catalog_names, expand, load_catalog, read_yaml, topology_yaml
from ccbench.topology.graph import DeviceKind


def test_the_machines_that_people_name_are_there() -> None:
    named = """
        a100-pcie-bridge ascend-910b cpu-shared-memory dgx-1p dgx-1v dgx-2 dgx-a100 dgx-spark gb200-nvl72
        gb300-nvl72 gh200x4 h100-pcie-bridge h800 hgx-a100-4 hgx-b200 hgx-b300 hgx-h100 hgx-h100-4 hgx-h20
        hgx-h200 l4 l40s mi250 mi300x mi325x mi350x mi355x pcie3-x16 pcie4-x16 pcie5-x16 r9700 rtx-5090
        rtx-6000d rtx-pcie rtx-pcie-p2p rtx-pro-6000
    """
    assert list(catalog_names()) == named.split()


@pytest.mark.parametrize("name", catalog_names())
def test_a_machine_is_a_sound_graph_of_its_class_whose_numbers_have_origins(name: str) -> None:
    machine = load_catalog(name)
    assert topology_class(machine) is machine.topology_class
    assert all(len(link.origin) > 20 for link in machine.links)
    assert all(link.bytes_per_second for link in machine.links)
    there = {(link.source, link.target): link.bytes_per_second for link in machine.links}
    assert all(there[target, source] == rate for (source, target), rate in there.items())
    assert read_yaml(topology_yaml(machine)) == machine


@pytest.mark.parametrize(
    ("name", "links", "gigabytes"),
    [
        ("dgx-1p", 4, 80),
        ("dgx-1v", 6, 150),
        ("dgx-2", 6, 150),
        ("dgx-a100", 12, 300),
        ("hgx-h100", 18, 450),
        ("h800", 8, 200),
        ("hgx-h20", 18, 450),
        ("hgx-h200", 18, 450),
        ("gh200x4", 18, 450),
        ("hgx-b200", 18, 900),
        ("hgx-b300", 18, 900),
        ("gb200-nvl72", 18, 900),
        ("gb300-nvl72", 18, 900),
        ("hgx-a100-4", 12, 300),
        ("hgx-h100-4", 18, 450),
    ],
)
def test_each_gpu_has_its_nvlinks_and_their_total_rate(
    name: str, links: int, gigabytes: float
) -> None:
    machine = load_catalog(name)
    assert set(machine.facts["nvlinks_per_gpu"]) == {links}
    out = [link.bytes_per_second or 0 for link in machine.links if link.source == "gpu0"]
    assert sum(out) == gigabytes * 1e9


OPTIMA = {
    "dgx-1p": 91.43,
    "dgx-1v": 171.43,
    "dgx-a100": 342.857,
    "mi250": 342.857,
    "ascend-910b": 224.0,
    "dgx-2": 160.0,
    "mi300x": 512.0,
}


@pytest.mark.parametrize("name", OPTIMA)
def test_known_optima_of_all_gather(name: str) -> None:
    bound = float(cut_bound("all_gather", load_catalog(name))) / 1e9
    assert bound == pytest.approx(OPTIMA[name], abs=0.005)


def test_switches_ports_match_their_generation() -> None:
    for name, chips, ports in (
        ("dgx-2", 12, 16),
        ("dgx-a100", 6, 16),
        ("hgx-h100", 4, 40),
        ("gb200-nvl72", 18, 72),
    ):
        machine = load_catalog(name)
        switches = machine.of_kind(DeviceKind.NVSWITCH)
        assert len(switches) == chips
        used = [
            sum(link.count for link in machine.links if link.source == switch.name)
            for switch in switches
        ]
        assert max(used) == ports


def test_in_a_dgx_2_opposite_halves_are_one_trunk_apart() -> None:
    routes = Fabric(striped(load_catalog("dgx-2")))
    near, far = routes.route([0, 0], [7, 8])
    assert [(row >= 0).sum() for row in (near, far)] == [2, 3]
    trunk = [link for link in far if link >= 0][1]
    assert routes.link_bytes_per_second[trunk] == 6 * 8 * 25e9


def test_a_wrong_name_is_answered_with_near_ones() -> None:
    with pytest.raises(
        MachineError, match="'dgx-a10' is not in the catalog; did you mean dgx-a100"
    ):
        load_catalog("dgx-a10")
    with pytest.raises(MachineError, match="one of a100-pcie-bridge, "):
        load_catalog("../../etc/passwd")


def test_cards_that_do_not_spread_evenly_over_their_places_are_refused() -> None:
    pcie = {"cpus": 3, "port": "31.5 GB/s", "between_cpus": "16 GB/s", "source": "s"}
    box = {
        "description": "x",
        "class": "pcie",
        "gpus": {"count": 4, "model": "m"},
        "pcie": pcie,
    }
    with pytest.raises(MachineError, match="4 GPUs do not spread evenly over 3 places"):
        expand(box, "box")


def test_every_machine_stands_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "topology.md").read_text(
        encoding="utf-8"
    )
    assert [name for name in catalog_names() if f"`{name}`" not in text] == []
