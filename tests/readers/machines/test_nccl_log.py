"""NCCL and RCCL logs: prefixes, the drawn machine, rings and trees, and the class they leave."""

from __future__ import annotations

from ccbench.readers.machines.nccl_log import MOST_WARNINGS, read

BOX = """\
=== System : maxBw 80.0 totalBw 80.0 ===
CPU/0 (1/2/-1)
+ SYS[16.0] - CPU/1
+ PCI[24.0] - PCI/1000 (1000c0101000ffff)
              + PCI[24.0] - GPU/3000 (0)
                            + NVL[80.0] - GPU/83000
              + PCI[12.0] - NIC/4000
                            + NET[25.0] - NET/0 (abcdef/1/25.000000)
CPU/1 (1/2/-1)
+ SYS[16.0] - CPU/0
+ PCI[24.0] - GPU/83000 (1)
              + NVL[80.0] - GPU/3000
==========================================
"""


def prefixed(text: str, prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def ring_lines(ranks: int, printed: int) -> str:
    shown = "".join(f"{rank:4d}" for rank in range(printed))
    start = f"host0:0:0 [0] NCCL INFO comm 0x1 rank 0 nranks {ranks} cudaDev 0 busId 1000 - Init START\n"
    return f"{start}host0:0:0 [0] NCCL INFO Channel 00/01 :{shown}\n"


def tree_log(channels: int, ranks: int = 4) -> str:
    return "".join(
        f"[{rank}] NCCL INFO Trees "
        + " ".join(
            f"[{channel}] {rank + 1}/-1/-1->{rank}->{rank - 1}" for channel in range(channels)
        )
        + "\n"
        for rank in range(1, ranks + 1)
    )


ROWS = """\
GPU/83000 :GPU/83000 (0/5000.0/LOC) GPU/84000 (2/360.0/NVL) NVS/0 (1/360.0/NVL) CPU/1 (2/48.0/PHB)
GPU/84000 :GPU/83000 (2/360.0/NVL) GPU/84000 (0/5000.0/LOC) NVS/0 (1/360.0/NVL) CPU/1 (2/48.0/PHB)
"""


def test_warnings_of_a_ruined_log_are_counted_not_listed() -> None:
    topology = read("NCCL INFO + PCI[?] - GPU/1\n" * 1000)
    assert len(topology.warnings) == MOST_WARNINGS + 1
    assert "801 more" in topology.warnings[-1].text
