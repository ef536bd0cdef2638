from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.analysis.findings import run_findings
from ccbench.analysis.speed_verdict import (
    SpeedVerdict,
    SpeedWord,
    expected_from,
    speed_verdicts,
)
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Conditions, Measurement, Status
from ccbench.collectives import collective
from ccbench.flags import Flag
from ccbench.model.context import PredictionContext
from ccbench.model.library.intervals import false_alarms, regime_of
from ccbench.report.wording import closeness, points_of, sentences, verdict_lines
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


def test_times_at_the_prediction_are_normal_and_the_first_sentence_says_so(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", sweep())
    verdict = only(run)
    assert words(verdict) == {"large": "NORMAL", "middle": "NORMAL", "latency": "NORMAL"}
    first, stands_on = verdict_lines(run)[:2]
    assert first == verdict.sentence
    assert first.startswith("NORMAL: nccl all_reduce, 16 ranks on 2 nodes: large messages ")
    assert "; small messages " in first
    assert first.count(", expected ") == 3
    assert f"of {false_alarms()[1]} healthy ones" in stands_on
    kinds = {finding.kind for finding in run_findings(run, run.points)}
    assert not {"slow", "fast", "slower_than_predicted"} & kinds


def test_what_is_shown_lies_where_its_word_says(tmp_path: Path) -> None:
    slow = write_run(tmp_path / "slow", sweep(), lambda _: 30.0)
    for run in (write_run(tmp_path / "normal", sweep()), slow):
        for regime in only(run).regimes:
            assert regime.usual_seconds is not None
            (low, high), seconds = regime.usual_seconds, regime.point.median_seconds or 0.0
            assert seconds > high if run is slow else low <= seconds <= high


def test_a_gap_over_all_large_sizes_is_the_first_problem_and_names_its_cause(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", sweep(), lambda size_case: 18.0)
    verdict, findings = only(run), run_findings(run, run.points)
    assert verdict.word is SpeedWord.SLOW
    assert verdict.sentence.startswith("SLOW: nccl all_reduce")
    assert "18x the predicted time" in verdict.sentence
    assert (findings[0].severity, findings[0].kind) == ("problem", "slow")
    assert findings[0].evidence.startswith("fits, unproven: sockets")
    assert "NET/Socket" in findings[0].advice
    assert "slower_than_predicted" not in {finding.kind for finding in findings}, (
        "nothing is said twice"
    )


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


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("factor", "word"), [(100.0, "SLOW"), (4.0, "LOW")])
def test_slower_than_all_that_is_known_is_slow_if_it_is_far_enough_off(
    tmp_path: Path, factor: float, word: str
) -> None:
    # One size is as it should be, so that the regime is not broken as a whole.
    run = write_run(
        tmp_path / "run",
        sweep(),
        lambda size_case: factor if 8 < size_case.size_bytes <= 32 * 1024 else 1.0,
    )
    verdict = only(run)
    assert words(verdict) == {"large": "NORMAL", "middle": "NORMAL", "latency": word}
    if word == "NORMAL":
        assert re.search(r"as slow: (none|\d+) of \d+ healthy systems", verdict.sentence)


def test_what_no_machine_reaches_is_fast(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep(), lambda size_case: 0.7)
    verdict = only(run)
    assert verdict.word is SpeedWord.FAST
    assert "as fast: none of " in verdict.sentence
    assert verdict.finding is not None
    assert "clock" in verdict.finding.advice
    assert not verdict.causes


def test_what_the_bound_excludes_is_no_speed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep(), lambda size_case: 0.05)
    verdict = only(run)
    assert verdict.word is SpeedWord.CANNOT_SAY
    assert re.search(r" \d{4,} GB/s", verdict.sentence), "figures as people write them"
    assert "impossible: the machine's bound is " in verdict.sentence
    assert "beats_bound" in [finding.kind for finding in run_findings(run, run.points)]


def test_one_size_is_enough(tmp_path: Path) -> None:
    verdict = only(write_run(tmp_path / "run", [case(2**30)]))
    assert words(verdict) == {"large": "NORMAL"}


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"manifest": {"suite": {"name": "nccl"}}, "status": Status.FAILED}, "not judged"),
        (
            {"manifest": {**MANIFEST, "machine": {"name": "mine"}}},
            "run.json does not hold the machine mine",
        ),
    ],
)
def test_without_its_machine_nothing_can_be_said_of_a_run(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    verdict = only(write_run(tmp_path / "run", sweep(), **changes))
    assert verdict.word is SpeedWord.CANNOT_SAY
    assert why in verdict.reason
    assert verdict.finding is None
    assert verdict.sentence.startswith("CANNOT SAY: nccl all_reduce, 16 ranks on 2 nodes: ")


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


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"simulated": True},
        {"conditions": Conditions(flags=(Flag.EMULATION,))},
        {"status": Status.UNSUPPORTED},
    ],
)
def test_what_was_not_measured_between_devices_gets_no_verdict(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert speed_verdicts(write_run(tmp_path / "run", sweep(), **changes)) == ()


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("changes", "word", "reason"),
    [
        (
            {"status": Status.WRONG, "wrong_elements": 3},
            "WRONG",
            "30 of 30 cases gave wrong results (worst: ",
        ),
        (
            {"conditions": Conditions(flags=(Flag.LOOPBACK,))},
            "CANNOT SAY",
            "30 flagged loopback",
        ),
        ({"status": Status.FAILED}, "CANNOT SAY", "30 of 30 cases not judged: 30 failed"),
    ],
)
def test_a_run_of_which_nothing_is_judged_says_so(
    tmp_path: Path, changes: dict[str, Any], word: str, reason: str
) -> None:
    verdict = only(write_run(tmp_path / "run", sweep(), **changes))
    assert verdict.word.value == word
    assert reason in verdict.sentence
    assert not verdict.regimes


@pytest.mark.thinned(1)
@pytest.mark.parametrize("algorithm", ["default", "ring"])
def test_one_wrong_case_outranks_all_that_is_normal(tmp_path: Path, algorithm: str) -> None:
    write_run(tmp_path / "run", sweep())
    wrong = case(2**20, algorithm=algorithm, in_place=True)
    with RunFolder.resume(tmp_path / "run") as folder:
        folder.write(Measurement(wrong, Status.WRONG, wrong_elements=7), None)
    first, *normal = speed_verdicts(load_run(tmp_path / "run"))
    assert first.sentence.startswith("WRONG: nccl all_reduce")
    assert "(at: 1 MiB in place, 7 wrong elements)" in first.sentence
    assert [verdict.word.value for verdict in normal] == ["NORMAL"] * (algorithm == "ring")


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "changes",
    [{"backend": "cpu", "algorithm": "ring"}, {"mode": "isolated"}, {"aggregation": 4}],
)
def test_ranks_on_processors_and_other_work_get_no_verdict(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert speed_verdicts(write_run(tmp_path / "run", sweep(ranks=8, nodes=1, **changes))) == ()


def test_a_forced_algorithm_counts_where_the_library_did_not_choose(tmp_path: Path) -> None:
    forced = sweep(algorithm="tree")
    verdict = only(write_run(tmp_path / "forced", forced))
    assert verdict.subject.startswith("nccl all_reduce tree, ")
    (both,) = speed_verdicts(
        write_run(
            tmp_path / "both",
            [*forced, *sweep()],
            lambda size_case: 9.0 if size_case.algorithm == "tree" else 1.0,
        )
    )
    assert both.word is SpeedWord.NORMAL


def test_the_gravest_collective_comes_first(tmp_path: Path) -> None:
    slow = {"all_gather": 1.0, "reduce_scatter": 12.0, "all_reduce": 1.0}
    run = write_run(
        tmp_path / "run",
        [size_case for name in slow for size_case in sweep(name=name)],
        lambda size_case: slow[size_case.collective],
    )
    assert [verdict.word.value for verdict in speed_verdicts(run)] == [
        "SLOW",
        "NORMAL",
        "NORMAL",
    ]
    assert sentences(points_of(run), (), speed_verdicts(run))[0].startswith(
        "SLOW: nccl reduce_scatter"
    )


def test_the_share_of_the_bound_stands_beside_what_is_normal(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep())
    (line,) = closeness(run.points)
    assert "64 KiB and up: 20 % (normal: " in line
    for point in run.points:
        if point.usual_bound_shares is not None and point.bound_share is not None:
            low, high = point.usual_bound_shares
            assert low <= point.bound_share * 1.001
            assert point.bound_share <= high * 1.001


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


def test_large_messages_at_half_the_rate_are_slow_by_what_healthy_systems_do(
    tmp_path: Path,
) -> None:
    verdict = only(
        write_run(tmp_path / "run", [case(2**power) for power in range(26, 33)], lambda _: 2.2)
    )
    assert (verdict.word, verdict.regimes[0].broken) == (SpeedWord.SLOW, False)
    assert verdict.finding is not None
    assert verdict.finding.severity == "problem"
    (large,) = verdict.regimes
    assert large.typical is not None
    assert large.typical.slow


def test_the_lower_figure_of_what_is_expected_comes_first(tmp_path: Path) -> None:
    sentence = only(write_run(tmp_path / "run", sweep())).sentence
    spans = re.findall(r"expected ([0-9.]+) to ([0-9.]+) (GB/s|us)", sentence)
    assert [unit for *_, unit in spans] == ["GB/s", "GB/s", "us"]
    assert all(float(low) < float(high) for low, high, _ in spans)
