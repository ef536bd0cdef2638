from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.analysis.speed_verdict import (
    SpeedVerdict,
    SpeedWord,
    expected_from,
    speed_verdicts,
)
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.collectives import collective
from ccbench.model.context import PredictionContext
from ccbench.model.library.intervals import regime_of
from ccbench.results import Run, RunFolder, load_run
from ccbench.topology.files import load_catalog

NETWORK = "ib-ndr-400x8"
MANIFEST = {
    "suite": {"name": "nccl"},
    "machine": {"name": "hgx-h100"},
    "options": {"network": NETWORK},
}
SIZES = tuple(2**power for power in range(3, 33))

Slower = Callable[[Case], float]


def case(
    size_bytes: int, name: str = "all_reduce", backend: str = "nccl", **changes: Any
) -> Case:
    row, ranks, nodes = collective(name), changes.pop("ranks", 16), changes.pop("nodes", 2)
    count = row.count_for(size_bytes, ranks, 4)
    return Case(
        "nccl",
        backend,
        name,
        changes.pop("algorithm", "default"),
        "float32",
        "sum" if row.reduces else "none",
        size_bytes,
        count,
        ranks,
        nodes=nodes,
        **changes,
    )


def write_run(
    path: Path,
    cases: Iterable[Case],
    slower: Slower = lambda size_case: 1.0,
    manifest: Mapping[str, Any] = MANIFEST,
    **changes: Any,
) -> Run:
    """A run in which every case took ``slower`` times what the model predicts of two HGX H100."""
    context = PredictionContext(gpus=load_catalog("hgx-h100"), network=NETWORK, launched=True)
    with RunFolder.create(path, manifest) as folder:
        for size_case in cases:
            priced = context.predict(size_case)
            seconds = slower(size_case) * (priced.predicted_seconds if priced else 1e-3)
            measured = Measurement(
                size_case, Status.OK, samples_seconds=(seconds,) * 9, round_samples=(3,) * 3
            )
            folder.write(replace(measured, **changes), priced)
    return load_run(path)


def sweep(**changes: Any) -> list[Case]:
    return [case(size, **changes) for size in SIZES]


def only(run: Run) -> SpeedVerdict:
    (verdict,) = speed_verdicts(run)
    return verdict


def words(verdict: SpeedVerdict) -> dict[str, str]:
    return {regime.regime: regime.word.value for regime in verdict.regimes}


def test_slow_small_messages_alone_are_slow_and_large_ones_stay_normal(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sweep(),
        lambda size_case: 10.0 if size_case.size_bytes <= 32 * 1024 else 1.0,
    )
    verdict = only(run)
    assert words(verdict) == {"large": "NORMAL", "middle": "NORMAL", "latency": "SLOW"}
    assert verdict.sentence.startswith(
        "SLOW: nccl all_reduce, 16 ranks on 2 nodes: small messages "
    )
    assert "; normal: large messages " in verdict.sentence
    assert verdict.finding is not None
    assert verdict.finding.evidence.startswith(
        "fits, unproven: processors of the host that are busy, save power"
    )
    assert "which gives" not in verdict.finding.evidence, (
        "their rate at large sizes is no rate of small ones"
    )


def test_a_machine_that_was_detected_is_known_by_what_was_detected(tmp_path: Path) -> None:
    from ccbench.topology.files import to_plain

    detected = replace(load_catalog("hgx-h100"), name="node7")
    manifest = {**MANIFEST, "machine": {"name": "node7"}, "topology": to_plain(detected)}
    assert (
        only(write_run(tmp_path / "run", sweep(), manifest=manifest)).word is SpeedWord.NORMAL
    )


def test_own_kernels_have_no_word_since_no_healthy_system_is_known(tmp_path: Path) -> None:
    cases = [
        case(size, name, "cuda", ranks=8, nodes=1, algorithm="ring")
        for size in SIZES
        for name in ("all_reduce", "all_gather")
    ]
    assert speed_verdicts(write_run(tmp_path / "run", cases)) == ()


def test_a_program_gets_the_figures(tmp_path: Path) -> None:
    document = only(write_run(tmp_path / "run", sweep(), lambda size_case: 18.0)).document
    assert document["verdict"] == "SLOW"
    large = document["regimes"][0]
    assert large["regime"] == "large" == regime_of(large["size_bytes"])
    assert large["seconds"] > large["expected_seconds"][1] > large["expected_seconds"][0] > 0
    assert large["over_predicted"] == pytest.approx(18.0)
    assert 1 / (large["systems"] + 1) <= large["p_slow"] <= 0.15
    assert document["causes"][0]["cause"].startswith("sockets")


def test_nothing_stands_on_nothing() -> None:
    assert expected_from([SpeedVerdict("nccl all_reduce", reason="no machine")]) == ""


LOGS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "nccl_logs"


def verdict_of_log(
    tmp_path: Path, name: str, machine: str, nodes: int, network: str
) -> SpeedVerdict:
    from ccbench.readers.benchmarks import read_log
    from ccbench.readers.benchmarks.log import StatedSystem
    from ccbench.results.imported_runs import import_logs, write_import

    if not (LOGS / name).is_file():
        pytest.skip("no published logs here")
    system = StatedSystem(machine, 8, nodes, network, machine)
    files = import_logs([(LOGS / name, read_log(LOGS / name))], system)
    return only(load_run(write_import(tmp_path / "run", files, system, name)))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("name", "machine", "network", "likely"),
    [
        (
            "gh200_8g_2n_all_reduce_alps_bad.txt",
            "gh200x4",
            "slingshot-200x4",
            "fits, unproven: sockets",
        ),
        (
            "a100_16g_2n_all_reduce_aks_ipoib.txt",
            "dgx-a100",
            "ib-hdr-200x8",
            "fits, unproven: sockets (over InfiniBand",
        ),
        (
            "b200_16g_2n_all_gather_gke_dranet.txt",
            "hgx-b200",
            "roce-400x8",
            "fits, unproven: no GPUDirect RDMA, or NICs",
        ),
        (
            "awkward_h200_16g_2n_all_reduce_bf16_cut.txt",
            "hgx-h200",
            "ib-ndr-400x8",
            "no cause that is known",
        ),
    ],
)
def test_logs_that_are_called_unhealthy_are_slow_with_the_cause_that_is_known_of_them(
    tmp_path: Path, name: str, machine: str, network: str, likely: str
) -> None:
    verdict = verdict_of_log(tmp_path, name, machine, 2, network)
    assert verdict.word is SpeedWord.SLOW
    assert verdict.finding is not None
    assert verdict.finding.severity == "problem"
    assert verdict.finding.evidence.startswith(likely)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("name", "machine", "nodes", "network"),
    [
        ("gh200_8g_2n_all_reduce_alps.txt", "gh200x4", 2, "slingshot-200x4"),
        ("a100_16g_2n_all_reduce_aks_ib.txt", "dgx-a100", 2, "ib-hdr-200x8"),
        ("h200sxm_16g_2n_all_reduce_runai.txt", "hgx-h200", 2, "roce-400x8"),
        ("a100sxm_8g_1n_alltoall_sb.txt", "dgx-a100", 1, ""),
    ],
)
def test_logs_of_healthy_machines_are_normal(
    tmp_path: Path, name: str, machine: str, nodes: int, network: str
) -> None:
    assert verdict_of_log(tmp_path, name, machine, nodes, network).word is SpeedWord.NORMAL
