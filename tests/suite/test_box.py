"""The card of a box whose GPUs PCIe joins."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ccbench.analysis.box import box_lines
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.report.writing import write_report
from ccbench.results import Run, RunFolder, load_run
from ccbench.topology.files import load_catalog, to_plain
from ccbench.topology.graph import Topology

SIZE = 64 * 1024**2
SUITE = {
    "suite": "box",
    "verdict": "box",
    "variants": {
        "default": {},
        "p2p_everywhere": {"env": {"NCCL_P2P_LEVEL": "SYS"}},
        "shm_copy_engines": {"env": {"NCCL_SHM_USE_CUDA_MEMCPY": 1}},
    },
}
RATES = {"default": (10, 5), "p2p_everywhere": (5, 20), "shm_copy_engines": ()}
"""Milliseconds of all_reduce and all_to_all; what hung has none."""


def box_run(path: Path, node: Topology | None, backend: str = "nccl") -> Run:
    """Eight rounds of every variant on ``node``."""
    manifest: dict[str, Any] = {"suite": SUITE}
    if node:
        manifest |= {"machine": {"name": node.name}, "topology": to_plain(node)}
    plain = Case("box", backend, "all_reduce", "default", "float32", "sum", SIZE, SIZE // 4, 4)
    with RunFolder.create(path, manifest) as folder:
        for variant, (collective, place) in product(
            RATES, (("all_reduce", 0), ("all_to_all", 1))
        ):
            case = replace(plain, collective=collective, variant=variant)
            measured = Measurement(case, Status.TIMED_OUT, "no answer")
            if times := RATES[variant]:
                rounds = tuple(times[place] / 1e3 * (1 + number / 1e4) for number in range(8))
                measured = Measurement(
                    case, Status.OK, samples_seconds=rounds, round_samples=(1,) * 8
                )
            folder.write(measured, None)
    return load_run(path)


def seen(name: str, **facts: object) -> Topology:
    """The catalog's machine as a driver shows it, one of its GPUs in a slot of eight lanes."""
    whole = load_catalog(name)
    slot = {"pcie_max_generation": 4, "pcie_max_width": 16}
    devices = (
        replace(
            gpu,
            attributes={
                **gpu.attributes,
                **slot,
                "pcie_width": 8 if gpu.name == "gpu3" else 16,
            },
        )
        for gpu in whole.devices
    )
    facts = {**whole.facts, **facts}
    return replace(whole, name="home", devices=tuple(devices), facts=facts)


CARD = """# This box

* Slots: 7 x any PCIe 4 x16 card on PCIe 4 x16; 1 x any PCIe 4 x16 card on PCIe 4 x8
* Slots: gpu3: x8 of x16; links never get narrower by being idle. Do: reseat the card or cable, look for bent \
pins and at the BIOS's bifurcation of this slot
* Path: host: a ring crosses PHB, and NCCL goes directly up to PXB; NCCL_P2P_LEVEL=SYS changes that, mostly for \
the better, for all_to_all for the worse
* all_reduce of 64 MiB: 10.1 GB/s, 32 % of the link (31.5 GB/s); 12 published boxes go through host memory, 6 of \
them with less in all_reduce (5% to 57%, half of them 31% or more)
* default: all_reduce 10.1 GB/s; all_to_all 10.1 GB/s
* NCCL_P2P_LEVEL=SYS: all_reduce 20.1 GB/s; all_to_all 2.52 GB/s
* NCCL_SHM_USE_CUDA_MEMCPY=1: all_reduce timed_out (no answer); all_to_all timed_out (no answer); on one of four \
boxes training then hung
* all_reduce: p2p_everywhere is 2 (2 to 2) times as fast as default at every size; all_to_all: default is 4 (4 \
to 4) times as fast as p2p_everywhere at every size; 2 of 4 points undecided
"""


def test_a_card_has_slots_path_place_and_what_variables_give(tmp_path: Path) -> None:
    run = box_run(tmp_path / "run", seen("pcie4-x16"))
    assert write_report([run], formats=["md"])[-1].name == "box.md"
    assert (run.path / "report" / "box.md").read_text(encoding="utf-8") == CARD


@pytest.mark.parametrize(
    ("machine", "backend", "line"),
    [
        (
            seen("pcie4-x16", channel_path="P2P"),
            "nccl",
            "Path: direct across host bridges: NCCL's",
        ),
        (
            load_catalog("hgx-h100"),
            "nccl",
            "Path: nvswitch; published PCIe boxes are unlike it",
        ),
        (None, "nccl", "Path: not known: the run does not name its machine"),
        (None, "cpu", "Not measured: path, share of the link, NCCL's variables: no all_reduce"),
    ],
)
def test_what_is_not_known_is_said(
    tmp_path: Path, machine: Topology | None, backend: str, line: str
) -> None:
    assert line in "\n".join(box_lines(box_run(tmp_path / "run", machine, backend)))
