"""What tools print of a host, whole, and what must be said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.analysis.diagnose import Answer, Outcome, answer_of
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.readers.evidence import read_evidence


def answer(tmp_path: Path, text: str) -> Answer:
    file = tmp_path / "paste.txt"
    file.write_text(text, encoding="utf-8")
    return answer_of(read_evidence([file]), StatedSystem("", None, None, ""))


def ibstat(*states: tuple[str, str, int]) -> str:
    return "".join(
        f"CA 'mlx5_{index}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.39\n\tPort 1:\n"
        f"\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: {rate}\n\t\tBase lid: 9\n\t\tLMC: 0\n"
        "\t\tLink layer: InfiniBand\n"
        for index, (state, physical, rate) in enumerate(states)
    )


UP, DOWN = ("Active", "LinkUp", 400), ("Down", "Polling", 10)


def test_a_port_that_is_down_is_named_with_its_state_and_those_that_work(
    tmp_path: Path,
) -> None:
    assert answer(tmp_path, ibstat(UP, UP, UP)).outcome is Outcome.NOTHING_WRONG
    sentence = answer(tmp_path, ibstat(DOWN, UP)).sentence
    assert "1 of 2 ports of NICs is down: mlx5_0 (Polling); up: mlx5_1 400 Gb/s" in sentence


@pytest.mark.parametrize(
    "text",
    [
        "mlx5_0 port 1 ==> ib0 (Down)\nmlx5_1 port 1 ==> ib1 (Up)\n",
        "0000:01:00.0 mlx5_0 (MT4123 - X) CX6 - 1 port fw 20 port 1 (DOWN  ) ==> ib0 (Down)\n",
        "link mlx5_0/1 state DOWN physical_state DISABLED netdev ens1\n",
        "hca_id:\tmlx5_0\n\ttransport:\t\tInfiniBand (0)\n\t\tport:\t1\n\t\t\tstate:\t\tPORT_DOWN (1)\n",
    ],
    ids=["ibdev2netdev", "ibdev2netdev -v", "rdma link", "ibv_devinfo"],
)
def test_every_tool_that_lists_ports_tells_the_one_that_is_down(
    text: str, tmp_path: Path
) -> None:
    assert "mlx5_0" in answer(tmp_path, text).sentence
    assert "down" in answer(tmp_path, text).sentence


def p2p_test(model: str, rate: float, access: str = "CAN", gpus: int = 2) -> str:
    lines = ["[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]"]
    lines += [
        f"Device: {gpu}, {model}, pciBusID: {gpu + 1}, pciDeviceID: 0, pciDomainID:0"
        for gpu in range(gpus)
    ]
    lines += [
        f"Device={first} {access} Access Peer Device={second}"
        for first in range(gpus)
        for second in range(gpus)
        if first != second
    ]
    for heading, value in (
        ("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", 1.0),
        ("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", rate),
        ("P2P=Enabled Latency (P2P Writes) Matrix (us)", 1.5),
    ):
        lines.append(heading)
        lines.append("   D\\D" + "".join(f"{gpu:6d}" for gpu in range(gpus)))
        lines += [
            f"{row:6d}"
            + "".join(f" {838.25 if row == column else value:6.2f}" for column in range(gpus))
            for row in range(gpus)
        ]
    return "\n".join(lines) + "\n"


def test_pairs_far_below_their_slot_are_a_problem(tmp_path: Path) -> None:
    given = answer(tmp_path, p2p_test("NVIDIA GeForce RTX 3090", 3.06))
    assert (
        "2 of 2 pairs of GPUs far below their slot (below a third): 3.06 GB/s in one direction"
        in given.sentence
    )
    assert "PCIe 4 x16 has 31.5, with peer access" in given.sentence


def test_a_pair_that_differs_from_the_others_is_named(tmp_path: Path) -> None:
    rows = [[("N/A" if row == column else "395.1") for column in range(4)] for row in range(4)]
    rows[1][3] = "48.2"
    text = "nvbandwidth Version: v0.8\nRunning device_to_device_memcpy_write_ce.\n"
    text += "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n           0         1         2         3\n"
    text += "".join(
        f" {index}  " + "".join(f"{word:>10}" for word in row) + "\n"
        for index, row in enumerate(rows)
    )
    assert "1 -> 3 48.2 GB/s" in answer(tmp_path, text + "\nSUM device 4000\n").sentence


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "[ 77.123456] NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            "Xid 79 on GPU 0000:1a:00: the GPU fell off the bus",
        ),
        (
            "Nov 03 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:5e:00): 74, pid=12, NVLink: fatal error",
            "an NVLink failed",
        ),
        (
            "[ 5.000001] nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 36 LTSSM Fault",
            "NVSwitch reported an error",
        ),
        (
            "[ 9.1] pcieport 0000:3a:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction",
            "not corrected at 0000:3a:00.0",
        ),
        (
            "[ 9.1] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged",
            "A NIC lost its link",
        ),
        (
            "[ 74.6] nvidia 0000:01:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer",
            "PCIe errors that were corrected at 0000:01:00.0",
        ),
        (
            "[ 18.1] NVRM: The GPU has fallen off the bus and is not responding.",
            "driver lost a GPU",
        ),
        (
            "[ 18.1] NVRM: Xid (PCI:0000:1a:00): 45, pid=1, caused by previous Xid 149",
            "Xid 149 on GPU 0000:1a:00: an NVLink 5 error",
        ),
    ],
)
def test_errors_of_the_kernels_log_are_told_with_their_device(
    line: str, words: str, tmp_path: Path
) -> None:
    given = answer(tmp_path, "[ 1.000000] Linux version 6.8\n" + line + "\n")
    corrected = "were corrected" in words
    assert given.outcome is (Outcome.CANNOT_SAY if corrected else Outcome.PROBLEM)
    assert words in given.sentence


def test_what_a_program_causes_comes_after_what_the_hardware_does(tmp_path: Path) -> None:
    text = "NVRM: Xid (PCI:0000:1a:00): 31, pid=1\nNVRM: Xid (PCI:0000:1b:00): 48, pid=1\n"
    text += "NVRM: Xid (PCI:...): 147, NETIR_LINK Fatal XC0\n"
    given = answer(tmp_path, text)
    assert given.sentence.startswith("PROBLEM: Xid 147 on GPU (not named)")
    assert [finding.kind for finding in given.diagnoses] == ["xid_147", "xid_48", "xid_31"]


LSPCI = (
    "3a:00.0 PCI bridge: Broadcom / LSI PEX880xx PCIe Gen 4 Switch\n"
    "\tCapabilities: [f24 v1] Access Control Services\n"
    "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+\n"
    "\t\tACSCtl:\tSrcValid{sign} TransBlk- ReqRedir{sign} CmpltRedir{sign} UpstreamFwd{sign} EgressCtrl-\n"
)


def test_bridges_that_redirect_are_counted(tmp_path: Path) -> None:
    on, off = LSPCI.format(sign="+"), LSPCI.format(sign="-").replace("3a:", "3b:")
    assert (
        "ACS redirects peer traffic at 1 of 2 PCIe bridges"
        in answer(tmp_path, on + off).sentence
    )
    assert answer(tmp_path, off).outcome is Outcome.NOTHING_WRONG
    root = on.replace("Broadcom / LSI PEX880xx PCIe Gen 4 Switch", "Intel Root Port")
    assert answer(tmp_path, root).outcome is Outcome.CANNOT_SAY


def test_several_tools_in_one_paste_are_all_read(tmp_path: Path) -> None:
    text = (
        "$ ibstat\n"
        + ibstat(DOWN, UP)
        + "\n$ dmesg | tail -1\nNVRM: Xid (PCI:0000:1a:00): 79, pid=1\n"
    )
    given = answer(tmp_path, text)
    assert {finding.kind for finding in given.diagnoses} == {"port_down", "xid_79"}
    assert {part.form for part in given.evidence.parts} == {"ports of NICs", "kernel log"}


def test_a_good_answer_of_the_driver_is_said(tmp_path: Path) -> None:
    given = answer(tmp_path, " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n")
    assert given.outcome is Outcome.NOTHING_WRONG
    assert "peer access (which kind is not stated): OK for all pairs" in given.sentence


def test_peer_copies_slower_than_those_through_the_host_are_a_problem(tmp_path: Path) -> None:
    text = p2p_test("NVIDIA A100 80GB PCIe", 14.0, gpus=4)
    slower = text.replace(" 1.00", " 22.4")
    assert (
        "Peer copies are slower than copies through host memory: 14 against 22.4"
        in answer(tmp_path, slower).sentence
    )
    assert answer(tmp_path, text).outcome is Outcome.NOTHING_WRONG


def test_pairs_without_peer_access_are_not_measured_against_those_with_it(
    tmp_path: Path,
) -> None:
    text = p2p_test("Tesla V100-SXM2-16GB", 48.2, gpus=4)
    text = text.replace(
        "Device=0 CAN Access Peer Device=3", "Device=0 CANNOT Access Peer Device=3"
    )
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if "P2P=Enabled Bandwidth" in line) + 2
    lines[place] = lines[place].rsplit(maxsplit=1)[0] + "   9.70"
    given = answer(tmp_path, "\n".join(lines) + "\n")
    assert {finding.kind for finding in given.diagnoses} == {"no_peer_access"}


def test_ibdev2netdev_says_nothing_of_infiniband_ports(tmp_path: Path) -> None:
    text = (
        "mlx5_0  port  1  ==>  ibp26s0      (Down)\nmlx5_1  port  1  ==>  enp27s0f0np0 (Up)\n"
    )
    given = answer(tmp_path, text)
    assert given.outcome is Outcome.CANNOT_SAY
    assert [finding.kind for finding in given.diagnoses] == ["ip_interface"]


def test_a_link_that_came_up_again_is_no_problem(tmp_path: Path) -> None:
    down = "[   12.345679] mlx5_core 0000:5e:00.0 enp94s0f0: Link down\n"
    assert answer(tmp_path, down).outcome is Outcome.PROBLEM
    assert not answer(tmp_path, down + down.replace("down", "up")).diagnoses
