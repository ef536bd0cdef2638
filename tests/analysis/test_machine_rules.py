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


LSPCI = (
    "3a:00.0 PCI bridge: Broadcom / LSI PEX880xx PCIe Gen 4 Switch\n"
    "\tCapabilities: [f24 v1] Access Control Services\n"
    "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+\n"
    "\t\tACSCtl:\tSrcValid{sign} TransBlk- ReqRedir{sign} CmpltRedir{sign} UpstreamFwd{sign} EgressCtrl-\n"
)
