"""What a source does not say stays unknown on the whole way: reader, matrix, counts, findings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.machine.detection import load_cluster
from ccbench.readers.machines import read_text
from ccbench.readers.machines.smi_table import MOST_TABLES, labels_of
from ccbench.topology.diagnosis import diagnose
from ccbench.topology.files import MOST_MACHINES
from ccbench.topology.graph import Device, DeviceKind, Topology
from ccbench.topology.summary import summary

TOPO = "nvidia-smi topo"


def matrix(*rows: str, heading: str = "CPU Affinity\tNUMA Affinity") -> str:
    """A table of topo -m: ``GPU0 X NV4 0-3 0`` is one row."""
    names = [row.split()[0] for row in rows]
    return (
        "\n".join(["\t".join(["", *names, heading]), *("\t".join(row.split()) for row in rows)])
        + "\n"
    )


def said(text: str) -> dict[str, Any]:
    topology = read_text(text)
    return summary(topology, diagnose(topology))


def kinds(found: dict[str, Any], what: str = "findings") -> list[str]:
    return [entry["kind"] for entry in found[what]]


BRIDGED = ("GPU0 X NV4 SYS 0-3 0", "GPU1 NV4 X SYS 0-3 0")


NO_CELL = re.compile(r"(?:GPU|NIC)[0-9]+|CPU|NUMA")
"""What stands in headings is no cell."""


@given(st.from_regex(r"[A-Z]{3,5}[a-z0-9]{0,2}", fullmatch=True))
def test_an_unknown_word_in_the_first_cell_loses_no_row(word: str) -> None:
    assume(not labels_of(word) and not NO_CELL.fullmatch(word))
    found = said(matrix(*BRIDGED, f"GPU2 {word} SYS X 4-7 1"))
    unknown = [one for one in found["warnings"] if one["kind"] == "unknown_spelling"]
    assert [(one["line"], word in one["text"]) for one in unknown] == [(4, True)]
    assert [device["numa_node"] for device in found["devices"] if device["kind"] == "gpu"] == [
        0,
        0,
        1,
    ]
    assert "nvlinks_missing" not in kinds(found)


def test_a_gpu_of_a_mesh_with_fewer_links_is_a_problem_and_one_with_none_a_note() -> None:
    rows = [
        "GPU0 X NV2 NV2 {0}",
        "GPU1 NV2 X NV2 {0}",
        "GPU2 NV2 NV2 X {0}",
        "GPU3 {0} {0} {0} X",
    ]
    severities = {}
    for label in ("NV1", "PHB"):
        found = said(matrix(*(row.format(label) + " 0-3 0" for row in rows)))
        severities[label] = [
            one["severity"] for one in found["findings"] if one["kind"] == "nvlinks_missing"
        ]
    assert severities == {"NV1": ["problem"], "PHB": ["note"]}


def listing(*links: int) -> str:
    """nvlink -R of GPUs with so many links each, to ports of NVSwitches."""
    lines = []
    for gpu, count in enumerate(links):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        lines += [
            f"\t Link {n}: Remote Device 00000000:05:00.0: Link {n + 20}" for n in range(count)
        ]
    return "\n".join(lines) + "\n"


def test_a_list_that_the_texts_end_cuts_gives_no_path_and_no_share() -> None:
    found = said(listing(18, 2))
    assert found["gpu_matrix"] == [["X", None], [None, "X"]]
    assert found["usable_share"] is None
    whole = said(listing(18, 18))
    assert whole["gpu_matrix"][0][1] == "NV18"
    assert whole["usable_share"] == {"2": "1"}
    (cut,) = [warning for warning in found["warnings"] if warning["kind"] == "truncated"]
    assert cut["line"] == 20, "the GPU's own line"


def rocm(weights: tuple[int, ...] | None) -> str:
    """A ring of four where all pairs are printed XGMI; weights between neighbours and across."""
    heading = "       GPU0  GPU1  GPU2  GPU3\n"

    def table(title: str, words: tuple[str, str]) -> str:
        rows = [
            "  ".join(
                [
                    f"GPU{index}",
                    *(
                        "0" if index == other else words[(index - other) % 2 == 0]
                        for other in range(4)
                    ),
                ]
            )
            for index in range(4)
        ]
        return f"===== {title} between two GPUs =====\n{heading}" + "\n".join(rows) + "\n\n"

    first = "" if weights is None else table("Weight", (str(weights[0]), str(weights[1])))
    return first + table("Link Type", ("XGMI", "XGMI"))


def test_an_xgmi_path_over_another_gpu_is_no_link() -> None:
    topology = read_text(rocm((15, 30)))
    assert {(link.source, link.target) for link in topology.links if link.source == "gpu0"} == {
        ("gpu0", "gpu1"),
        ("gpu0", "gpu3"),
    }
    assert topology.matrix["gpu0", "gpu2"] == "XGMI", "the word is what was printed"


@pytest.mark.parametrize("weights", [None, (15, 15), (15, 30)])
def test_xgmi_labels_give_no_number_of_links(weights: tuple[int, ...] | None) -> None:
    found = said(rocm(weights))
    assert found["links_per_gpu"] == {"xgmi": [None] * 4}
    assert found["usable_share"] is None
    assert {link["count"] for link in found["links"]} == {None}
    assert any("how many xGMI links" in warning["text"] for warning in found["warnings"])


def peers(command: str, status: str = "NS", gpus: int = 4) -> str:
    rows = [
        "\t".join(
            [f" GPU{index}", *("X" if index == other else status for other in range(gpus))]
        )
        for index in range(gpus)
    ]
    return (
        command
        + "\t".join([" ", *(f"GPU{index}" for index in range(gpus))])
        + "\n"
        + "\n".join(rows)
        + "\n"
    )


@pytest.mark.parametrize("letter", ["n", "a", "p"])
def test_not_having_nvlink_or_atomics_is_no_problem_of_peer_access(letter: str) -> None:
    found = said(peers(f"$ {TOPO} -p2p {letter}\n"))
    assert found["findings"] == []
    assert found["facts"]["p2p_matrix"][0][1] == "NS"


BOARD = (
    "GPU0 X NV12 NV12 NV12 SYS 32-63 1",
    "GPU1 NV12 X NV12 NV12 SYS 32-63 1",
    "GPU2 NV12 NV12 X NV12 SYS 32-63 1",
    "GPU3 NV12 NV12 NV12 X SYS 32-63 1",
    "NIC0 SYS SYS SYS SYS X",
)


def test_without_a_hypervisors_sign_nothing_is_called_a_vm() -> None:
    found = said(matrix(*BOARD))
    assert kinds(found) == ["gpu_far_from_nics"]


def test_a_bridge_between_nics_speaks_against_a_flattened_tree() -> None:
    gpus = [Device(f"gpu{index}", DeviceKind.GPU, numa_node=0) for index in range(2)]
    nics = [Device(f"nic{index}", DeviceKind.NIC, numa_node=0) for index in range(2)]
    names = [device.name for device in (*gpus, *nics)]
    words = {(name, peer): "PHB" for name in names for peer in names if name != peer}
    flat = Topology(
        "t", (*gpus, *nics), facts={"hypervisor": "kvm", "paths": "as printed"}, matrix=words
    )
    assert [finding.kind for finding in diagnose(flat)] == ["flattened_tree"]
    near = {**words, ("nic0", "nic1"): "PIX", ("nic1", "nic0"): "PIX"}
    assert diagnose(replace(flat, matrix=near)) == ()


SELF = """<system version="1"><cpu numaid="0">{}</cpu></system>"""
CARD = """<pci busid="000{0}:00:00.0" class="0x030200"><gpu dev="{0}" sm="80" rank="{0}">
<nvlink target="000{1}:00:00.0" count="12" tclass="0x030200"/></gpu></pci>"""


def test_nvlinks_without_a_known_far_end_leave_every_pair_open() -> None:
    wrong = said(SELF.format("".join(CARD.format(index, index) for index in range(3))))
    assert wrong["gpu_matrix"] == [
        ["X" if index == other else None for other in range(3)] for index in range(3)
    ]
    assert "self_link" in kinds(wrong, "warnings")
    elsewhere = said(SELF.format("".join(CARD.format(index, 9) for index in range(3))))
    assert elsewhere["gpu_matrix"][0][1] == "PHB", "their far end is named: not each other"


def test_machines_beyond_counting_are_refused() -> None:
    with pytest.raises(MachineError, match=str(MOST_MACHINES)):
        load_cluster("hgx-h100", 10**20, "ib-ndr-400x8")


def test_a_port_without_a_name_is_listed_without_one() -> None:
    nic = Device("nic0", DeviceKind.NIC, attributes={"rdma": True, "up": False})
    (finding,) = diagnose(
        Topology(
            "t",
            (nic, replace(nic, name="nic1", attributes={**nic.attributes, "name": "mlx5_1"})),
        )
    )
    assert finding.evidence == "no active port: nic0, nic1 (mlx5_1)"


def test_a_text_of_endless_tables_is_read_as_far_as_is_of_use() -> None:
    found = said(matrix(*BRIDGED, "GPU2 SYS SYS X 4-7 1") + "GPU0\tX\tNV1\tSYS\n" * 5000)
    assert found["nvlinks_per_gpu"] == [4, 4, 0]
    (warning,) = [one for one in found["warnings"] if "what follows is not read" in one["text"]]
    assert warning["line"] == 5 + MOST_TABLES
