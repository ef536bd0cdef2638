from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.errors import MachineError
from ccbench.results.importers.pricing import SOCKETS, with_cards
from ccbench.topology.catalog import CATALOG_FOLDER, load_catalog
from ccbench.topology.graph import DeviceKind, TopologyClass


@pytest.mark.parametrize(
    ("name", "count"), [("l40s", 8), ("rtx-pcie", 6), ("rtx-pcie", 8), ("pcie4-x16", 16)]
)
def test_cards_are_dealt_to_two_sockets_with_the_same_port(name: str, count: int) -> None:
    node = load_catalog(name)
    made = with_cards(node, name, count)
    assert len(made.gpus) == count
    assert len(made.of_kind(DeviceKind.CPU)) == SOCKETS
    assert made.topology_class is TopologyClass.PCIE
    assert made.facts["peer_access"] == node.facts["peer_access"]
    ports = {link.bytes_per_second for link in made.links if link.source == "gpu0"}
    assert ports == {link.bytes_per_second for link in node.links if link.source == "gpu0"}


def test_a_board_holds_what_it_holds() -> None:
    with pytest.raises(MachineError, match=r"hgx-h100: has 8 GPUs and 16 of one node .* name a machine"):
        with_cards(load_catalog("hgx-h100"), "hgx-h100", 16)


def test_bridged_cards_and_files_of_one_s_own_stay_as_they_are(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CATALOG_FOLDER / "l40s.yaml").read_text())
    for source in (str(mine), "a100-pcie-bridge"):
        node = load_catalog("l40s" if source == str(mine) else source)
        with pytest.raises(MachineError, match="a file that describes it"):
            with_cards(node, source, 8)


def test_a_number_that_cannot_be_dealt_is_refused_with_a_cure() -> None:
    with pytest.raises(MachineError, match=r"10 of one node do not spread evenly .* give a file"):
        with_cards(load_catalog("pcie4-x16"), "pcie4-x16", 10)
