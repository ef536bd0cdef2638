"""The catalog: every machine loads, has a source for every number, and gives the known bounds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model.bounds import cut_bound
from ccbench.topology.classes import topology_class
from ccbench.topology.composition import cluster, compose
from ccbench.topology.fabrics import routes_by_search
from ccbench.topology.files import catalog_names, expand, load_catalog, load_compact, read_json, topology_json
from ccbench.topology.graph import DeviceKind

WITH_GPUS = [name for name in catalog_names() if load_catalog(name).gpus]


def test_the_machines_that_people_name_are_there() -> None:
    named = """
        a100-pcie-bridge ascend-910b cpu-shared-memory dgx-1p dgx-1v dgx-2 dgx-a100 gb200-nvl72 gh200x4
        h100-pcie-bridge h800 hgx-b200 hgx-b300 hgx-h100 hgx-h20 hgx-h200 l40s mi250 mi300x pcie3-x16
        pcie4-x16 pcie5-x16 rtx-pcie rtx-pcie-p2p
    """
    assert list(catalog_names()) == named.split()


@pytest.mark.parametrize("name", catalog_names())
def test_a_machine_is_a_sound_graph_of_its_class_whose_numbers_have_origins(name: str) -> None:
    machine = load_catalog(name)
    assert topology_class(machine) is machine.topology_class
    assert machine.facts["gpu_count"] == len(machine.gpus)
    assert all(len(link.origin) > 20 for link in machine.links)
    assert all(link.bytes_per_second for link in machine.links)
    there = {(link.source, link.target): link.bytes_per_second for link in machine.links}
    assert all(there[target, source] == rate for (source, target), rate in there.items())
    assert read_json(topology_json(machine)) == machine


@pytest.mark.parametrize("name", WITH_GPUS)
def test_every_gpu_reaches_every_other_and_those_of_other_machines(name: str) -> None:
    machine = load_catalog(name)
    made = cluster(machine, 3, "ib-hdr-200x4")
    pairs = np.array(list(itertools.permutations([*range(made.ranks // 3), made.ranks - 1], 2)))
    for (source, target), row in zip(pairs.tolist(), made.route(pairs[:, 0], pairs[:, 1]), strict=True):
        links = row[row >= 0]
        assert [source, *made.link_target[links]] == [*made.link_source[links], target]
    assert compose(machine, 2, "tcp-25x1").topology_class is machine.topology_class


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
    ],
)
def test_each_gpu_has_its_nvlinks_and_their_total_rate(name: str, links: int, gigabytes: float) -> None:
    machine = load_catalog(name)
    assert set(machine.facts["nvlinks_per_gpu"]) == {links}
    out = [link.bytes_per_second or 0 for link in machine.links if link.source == "gpu0"]
    assert sum(out) == gigabytes * 1e9


OPTIMA = {
    "dgx-1p": 91.43, "dgx-1v": 171.43, "dgx-a100": 342.857, "mi250": 342.857, "ascend-910b": 224.0,
    "dgx-2": 160.0, "mi300x": 512.0,
}  # fmt: skip


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
            sum(link.count for link in machine.links if link.source == switch.name) for switch in switches
        ]
        assert max(used) == ports


def test_in_a_dgx_2_opposite_halves_are_one_trunk_apart() -> None:
    routes = routes_by_search(load_catalog("dgx-2"))
    near, far = routes.route([0, 0], [7, 8])
    assert [(row >= 0).sum() for row in (near, far)] == [2, 3]
    trunk = [link for link in far if link >= 0][1]
    assert routes.link_bytes_per_second[trunk] == 6 * 8 * 25e9


def test_a_wrong_name_is_answered_with_near_ones() -> None:
    with pytest.raises(MachineError, match="'dgx-a10' is not in the catalog; did you mean dgx-a100"):
        load_catalog("dgx-a10")
    with pytest.raises(MachineError, match="one of a100-pcie-bridge, "):
        load_catalog("../../etc/passwd")


GOOD: dict[str, Any] = {
    "description": "x",
    "class": "nvswitch",
    "gpus": {"count": 4, "model": "m"},
    "nvswitch": {"links_to_switches": [2, 1], "per_link": "25 GB/s", "source": "s"},
}
MESH = {"kind": "nvlink", "pairs": "0-1:2", "per_link": "25 GB/s", "source": "s"}
PCIE = {"cpus": 2, "port": "31.5 GB/s", "between_cpus": "16 GB/s", "source": "s"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"colour": 1}, "box: 'colour' is not a field"),
        ({"class": "star"}, "box.class: 'star' is not known"),
        ({"description": 3}, "box.description: 3 is not text"),
        ({"gpus": None}, "box.gpus: None is not a mapping"),
        ({"gpus": {"count": -1, "model": "m"}}, "gpus.count: -1 is not a whole number, 0 to 1024"),
        ({"gpus": {"count": 4}}, "gpus: model is missing"),
        ({"nvswitch": {**GOOD["nvswitch"], "per_link": "25 Gb/s"}}, "per_link: '25 Gb/s' is not a rate"),
        ({"nvswitch": {**GOOD["nvswitch"], "source": " "}}, "source: empty"),
        ({"nvswitch": {**GOOD["nvswitch"], "links_to_switches": []}}, "links_to_switches"),
        ({"nvswitch": {**GOOD["nvswitch"], "planes": 2}}, "planes: 2 planes with 0 trunk links"),
        ({"mesh": {**MESH, "kind": "rope"}}, "mesh.kind: 'rope'"),
        ({"mesh": {**MESH, "pairs": "0-1"}}, "mesh.pairs: '0-1' is not <gpu>-<gpu>:<links>"),
        ({"mesh": {**MESH, "pairs": "1-0:2"}}, "write the lower one first"),
        ({"mesh": {**MESH, "pairs": "0-1:2 0-1:1"}}, "0-1 is given twice"),
        ({"mesh": {**MESH, "pairs": "0-9:2"}}, "does not fit 4 GPUs"),
        ({"mesh": {**MESH, "all_pairs": 1}}, "mesh: either pairs or all_pairs"),
        ({"pcie": {**PCIE, "cpus": 1}}, "between_cpus is not a field of one CPU"),
        ({"pcie": {**PCIE, "cpus": 3}}, "4 GPUs do not spread evenly over 3 places"),
        ({"pcie": {**PCIE, "port": "0 GB/s"}}, "port: '0 GB/s' is not a rate"),
        ({"pcie": {k: v for k, v in PCIE.items() if k != "between_cpus"}}, "between_cpus is missing"),
    ],
)
def test_whatever_is_wrong_in_the_short_form_is_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MachineError, match=complaint) as caught:
        expand({**GOOD, **change}, "box", "box")
    assert "\n" not in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=6) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100)
@given(st.sampled_from(["gpus", "nvswitch", "mesh", "pcie", "class", "omits", "cpus"]), st.text(), VALUES)
def test_no_value_anywhere_raises_anything_but_a_machine_error(section: str, field: str, value: Any) -> None:
    wrong = {**GOOD, "mesh": MESH, "pcie": PCIE}
    inner = wrong.get(section)
    fields = sorted(inner) if isinstance(inner, dict) else []
    place = fields[len(field) % len(fields)] if fields else ""
    complaint = "x"
    try:
        expand({**wrong, section: {**inner, place: value} if isinstance(inner, dict) else value}, "x", "x")
    except MachineError as error:
        complaint = str(error)
    assert complaint.startswith("x")


def test_a_short_file_outside_the_catalog_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "description: mine\nclass: nvlink-mesh\ngpus: {count: 3, model: m}\n"
        "mesh: {kind: nvlink, all_pairs: 2, per_link: 25 GB/s, source: me}\n"
    )
    machine = load_compact(path)
    assert (machine.name, len(machine.links)) == ("mine", 6)


def test_every_machine_stands_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "catalog.md").read_text(encoding="utf-8")
    assert [name for name in catalog_names() if f"`{name}`" not in text] == []
