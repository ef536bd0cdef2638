from __future__ import annotations

import pytest

from ccbench.readers.machines.smi_nvlink import read
from ccbench.topology.graph import Topology


def status(model: str, rates: list[list[str]], first: int = 0) -> str:
    """``nvlink -s`` of GPUs ``first``, first + 1, ... with these words for each link."""
    lines = []
    for index, links in enumerate(rates, first):
        lines.append(
            f"GPU {index}: {model} (UUID: GPU-0000000{index}-0000-4000-8000-000000000000)"
        )
        lines += [f"\t Link {number}: {rate}" for number, rate in enumerate(links)]
    return "\n".join(lines) + "\n"


def remote(ends: list[list[tuple[str, int]]], model: str = "NVIDIA A100-SXM4-40GB") -> str:
    """``nvlink -R``: for each GPU the far end and its link of every link."""
    words = [
        [f"Remote Device {address}: Link {link}" for address, link in links] for links in ends
    ]
    return status(model, words)


def kinds(topology: Topology) -> set[str]:
    return {warning.kind for warning in topology.warnings}


@pytest.mark.parametrize(
    ("model", "first", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 4, "nvswitch"),
        ("NVIDIA A100-SXM4-80GB", 0, "unknown"),
        ("NVIDIA H100 80GB HBM3", 0, "nvswitch"),
        ("NVIDIA H200", 0, "nvswitch"),
        ("NVIDIA H200 NVL", 0, "nvlink-bridge"),
        ("NVIDIA B200", 0, "nvswitch"),
        ("NVIDIA GB300", 0, "nvswitch"),
        ("Tesla V100-SXM3-32GB", 0, "nvswitch"),
        ("Tesla V100-SXM2-16GB", 0, "unknown"),
        ("Tesla V100-SXM2-16GB", 6, "nvlink-cube-mesh"),
        ("Tesla P100-SXM2-16GB", 7, "nvlink-cube-mesh"),
        ("Tesla V100-DGXS-32GB", 0, "nvlink-mesh"),
        ("NVIDIA A100 80GB PCIe", 6, "nvlink-bridge"),
        ("NVIDIA GeForce RTX 2080 Ti", 0, "nvlink-bridge"),
        ("Graphics Device", 0, "unknown"),
    ],
)
def test_the_class_follows_from_model_and_number(model: str, first: int, expected: str) -> None:
    assert read(status(model, [["25 GB/s"] * 4], first)).topology_class.value == expected
