"""What people paste, whole, and what must be said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.analysis.diagnose import Answer, Outcome, answer_of
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.readers.evidence import read_evidence
from tests.analysis.nccl_logs import FORMS, OLD, V218, V227, Form, log

NOTHING_STATED = StatedSystem("", None, None, "")


def answer(tmp_path: Path, text: str, name: str = "job.log") -> Answer:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return answer_of(read_evidence([file]), NOTHING_STATED)


@pytest.mark.parametrize("form", FORMS, ids=[form.version for form in FORMS])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_healthy_log_of_any_release_has_nothing_wrong(
    form: Form, nodes: int, tmp_path: Path
) -> None:
    given = answer(tmp_path, log(form, nodes))
    assert given.outcome is Outcome.NOTHING_WRONG, given.sentence
    assert not given.diagnoses
    assert given.sentence.startswith("NOTHING WRONG is visible: ")
    assert f"NCCL {form.version}" in given.sentence


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", ""),
        (
            "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)",
            "nvidia-peermem is not loaded",
        ),
        (
            "GPU Direct RDMA Disabled for GPU 1b000 / HCA 0 (distance 5 > 4)",
            "farther from the GPU",
        ),
        ("GPU Direct RDMA Disabled for GPU 3[3] / HCA 0", "farther from the GPU"),
    ],
)
@pytest.mark.parametrize("form", [OLD, V218, V227])
def test_no_gpudirect_rdma_is_told_with_its_reason(
    form: Form, line: str, reason: str, tmp_path: Path
) -> None:
    given = answer(tmp_path, log(form, between="NET/IB/0", lines=[line]))
    assert given.sentence.startswith("PROBLEM: GPUDirect RDMA is off")
    assert reason in given.sentence


def test_a_cure_is_of_the_network_that_is_there(tmp_path: Path) -> None:
    text = log(
        between="NET/AWS Libfabric/0",
        network="AWS Libfabric",
        lines=["NET/OFI cxi: GDR not supported"],
    )
    (given,) = answer(tmp_path, text).diagnoses
    assert given.kind == "gpudirect_off"
    assert "modprobe" not in given.advice
