"""Every reason for having no verdict, and every exit code, on runs made up without noise to speak of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ccbench.analysis.comparison import BY_RATIO_ALONE, compare, compare_with_model
from ccbench.analysis.verdicts import Compared, NoVerdict, Settings, Verdict
from ccbench.cases.axes import AXIS, IDENTITY
from ccbench.cases.measurement import Conditions, Measurement, Status
from ccbench.model import Prediction
from ccbench.report.comparison_text import junit
from ccbench.results import Manifest, Run, RunFolder
from tests.report.synthetic import failed, sweep, write_run

from .synthetic import MANIFEST, case, measured, run_of

RANDOM = np.random.default_rng(1)


def rounds(seconds: float, noise: float = 0.005, count: int = 6) -> list[list[float]]:
    return [list(seconds * np.exp(RANDOM.normal(0, noise, 5))) for _ in range(count)]


def points(seconds: float = 1e-5, **changes: Any) -> list[Measurement]:
    return [measured(case(place), rounds(seconds), **changes) for place in range(4)]


BASE = run_of(points(), "base")


def one_more(extra: Measurement) -> Run:
    """A new run that is as fast as the base, with ``extra`` in the place of the first point."""
    return run_of([extra, *points()[1:]], "new")


def first(compared: Compared) -> Any:
    (first_point,) = [point for point in compared.points if point.point.size_bytes == 4]
    return first_point


def test_equal_runs_are_the_same_and_end_with_0() -> None:
    compared = compare(BASE, run_of(points(), "new"))
    assert compared.counts == {"faster": 0, "slower": 0, "same": 4, "no verdict": 0}
    assert compared.exit_code == 0
    assert compared.sentence.startswith("no regression")


def test_a_slower_point_ends_with_1_and_a_faster_one_with_0() -> None:
    slower = compare(BASE, one_more(measured(case(0), rounds(1.2e-5))))
    assert first(slower).verdict is Verdict.SLOWER
    assert first(slower).ratio == pytest.approx(1.2, abs=0.02)
    assert first(slower).low < 1.2 < first(slower).high
    assert slower.exit_code == 1
    faster = compare(BASE, one_more(measured(case(0), rounds(0.8e-5))))
    assert first(faster).verdict is Verdict.FASTER
    assert faster.exit_code == 0


def test_a_change_below_the_threshold_is_the_same_and_the_threshold_may_be_smaller() -> None:
    new = one_more(measured(case(0), rounds(1.03e-5, 0.001)))
    assert first(compare(BASE, new)).verdict is Verdict.SAME
    strict = Settings(0.02)
    assert first(compare(BASE, new, strict)).verdict is Verdict.SLOWER


def test_wrong_results_end_with_1_although_other_points_are_missing() -> None:
    wrong = Measurement(case(0), Status.WRONG, detail="7 elements of 9", wrong_elements=7)
    compared = compare(BASE, run_of([wrong], "new"))
    assert first(compared).cause is NoVerdict.WRONG
    assert compared.exit_code == 1
    assert "1 with wrong results" in compared.sentence


def test_missing_points_of_either_run_end_with_3() -> None:
    fewer = run_of(points()[:3], "fewer")
    for base, new, cause in (
        (BASE, fewer, NoVerdict.MISSING_IN_NEW),
        (fewer, BASE, NoVerdict.MISSING_IN_BASE),
    ):
        compared = compare(base, new)
        assert compared.causes == {cause.value: 1}
        assert compared.exit_code == 3
        tolerant = compare(base, new, Settings(undecided=1.0))
        assert tolerant.exit_code == 3


def test_a_slower_point_outranks_what_was_not_decided() -> None:
    new = run_of([measured(case(0), rounds(2e-5))], "new")
    compared = compare(BASE, new)
    assert compared.counts == {"faster": 0, "slower": 1, "same": 0, "no verdict": 3}
    assert compared.exit_code == 1


def test_nothing_to_compare_ends_with_3() -> None:
    nothing = replace(BASE, table=BASE.table.slice(0, 0))
    assert compare(nothing, nothing).exit_code == 3
    assert compare(BASE, nothing).exit_code == 3
    assert compare(nothing, BASE).exit_code == 3


def test_an_interval_that_is_too_wide_is_no_verdict_unless_it_is_let_pass() -> None:
    new = one_more(measured(case(0), rounds(1e-5, 0.5)))
    compared = compare(BASE, new)
    assert first(compared).cause is NoVerdict.TOO_WIDE
    assert compared.exit_code == 3
    assert compare(BASE, new, Settings(undecided=0.25)).exit_code == 0
    assert compare(BASE, new, Settings(undecided=0.24)).exit_code == 3


def test_a_change_that_is_none_among_many_points_says_that_they_are_many_and_what_helps() -> (
    None
):
    steps = [0.93, 0.96, 0.99, 1.01, 1.04, 1.07]
    base, new = ([[1e-5 * step * factor] * 5 for step in steps] for factor in (1.0, 1.11))
    alone = compare(run_of([measured(case(0), base)]), run_of([measured(case(0), new)]))
    assert first(alone).verdict is Verdict.SLOWER
    unchanged = [measured(case(place), rounds(1e-5)) for place in range(1, 20)]
    many = first(
        compare(
            run_of([measured(case(0), base), *unchanged]),
            run_of([measured(case(0), new), *unchanged]),
        )
    )
    assert (many.verdict, many.cause) == (Verdict.NONE, NoVerdict.TOO_WIDE)
    assert (
        "+11.0%: as the only point a change, but one among 20 is found by chance too easily"
        in many.reason
    )
    assert "more rounds show it" in many.reason
    assert "nor the lack of one" not in many.reason
    wide = first(compare(BASE, one_more(measured(case(0), rounds(1e-5, 0.5)))))
    assert "neither a change by 5 % nor the lack of one is shown" in wide.reason


def flagged(*flags: str, oversubscribed: bool = False) -> Measurement:
    conditions = Conditions(flags=flags, oversubscribed=oversubscribed)
    return measured(case(0), rounds(1e-5), conditions=conditions)


@pytest.mark.parametrize(
    ("extra", "cause", "words"),
    [
        (
            measured(case(0), rounds(1e-5, count=2)),
            NoVerdict.TOO_FEW_ROUNDS,
            "6 rounds against 2",
        ),
        (measured(case(0), [[1e-5] * 50]), NoVerdict.TOO_FEW_ROUNDS, "4 against 4 can"),
        (flagged("throttled"), NoVerdict.DOUBTFUL, "new is flagged throttled; "),
        (flagged("steal", "other_load"), NoVerdict.DOUBTFUL, "--accept-flags other_load,steal"),
        (
            flagged("steal", "of_tomorrow"),
            NoVerdict.DOUBTFUL,
            "flagged of_tomorrow, steal; measure it again",
        ),
        (flagged("emulation"), NoVerdict.EMULATED, "new was emulated"),
        (flagged("shared_core"), NoVerdict.ARRANGEMENT, "only new is flagged shared_core"),
        (
            flagged(oversubscribed=True),
            NoVerdict.ARRANGEMENT,
            "only new is flagged oversubscribed",
        ),
        (
            Measurement(case(0), Status.TIMED_OUT, detail="rank 2 hung"),
            NoVerdict.NOT_OK,
            "rank 2 hung",
        ),
        (
            Measurement(case(0), Status.UNSUPPORTED, detail="no GPU"),
            NoVerdict.NOT_OK,
            "unsupported: no GPU",
        ),
        (
            measured(case(0), rounds(1e-5), simulated=True),
            NoVerdict.SIMULATED,
            "computed from a model",
        ),
        (measured(case(0), [[0.0] * 5] * 6), NoVerdict.NO_TIME, "no time above zero"),
    ],
)
def test_what_cannot_be_judged_says_why_and_ends_with_3(
    extra: Measurement, cause: NoVerdict, words: str
) -> None:
    compared = compare(BASE, one_more(extra))
    assert first(compared).cause is cause
    assert words in first(compared).reason
    assert first(compared).verdict is Verdict.NONE
    assert compared.exit_code == 3


def test_flags_that_are_accepted_or_of_both_arrangements_stand_in_no_way() -> None:
    steal = compare(
        BASE, one_more(flagged("steal")), Settings(accepted_flags=frozenset({"steal"}))
    )
    assert first(steal).verdict is Verdict.SAME
    base, new = (run_of([flagged("shared_core")], name) for name in ("base", "new"))
    assert compare(base, new).exit_code == 0


def test_points_that_neither_run_supports_are_left_out_and_told() -> None:
    runs = [
        run_of([*points(), Measurement(case(9), Status.UNSUPPORTED, detail="no GPU")], name)
        for name in ("base", "new")
    ]
    compared = compare(runs[0], runs[1])
    assert len(compared.points) == 4
    assert compared.left_out == ("1 points are not supported and left out",)
    assert compared.exit_code == 0


def manifest(**processor: Any) -> dict[str, Any]:
    environment = dict(MANIFEST["environment"])
    return {
        "environment": {**environment, "processor": {**environment["processor"], **processor}}
    }


def test_other_hardware_is_no_verdict_unless_asked_for() -> None:
    new = run_of(points(), "new", manifest(model="Xeon 8480"))
    compared = compare(BASE, new)
    assert compared.causes == {NoVerdict.OTHER_MACHINE.value: 4}
    assert "EPYC 7763 in base, Xeon 8480 in new" in compared.points[0].reason
    assert compared.exit_code == 3
    assert compare(BASE, new, Settings(across_machines=True)).exit_code == 0


def test_other_devices_are_another_machine_and_another_spelling_is_not() -> None:
    def of(model: str) -> Run:
        return run_of(points(), "run", {}, device_model=model)

    assert compare(of("NVIDIA H100 80GB HBM3"), of("NVIDIA A100-SXM4-80GB")).exit_code == 3
    assert compare(of("NVIDIA H100 80GB HBM3"), of("H100 SXM5")).exit_code == 0


def test_another_name_or_version_is_told_and_refuses_nothing() -> None:
    environment = {**MANIFEST["environment"], "host": {"name": "node8"}}
    new = run_of(points(backend_version="numpy 3"), "new", {"environment": environment})
    compared = compare(BASE, new)
    assert compared.exit_code == 0
    assert "cpu: numpy 2 in base, numpy 3 in new" in compared.notes
    assert "host: node7 in base, node8 in new" in compared.notes


def average(seconds: float, source: str = "log.txt", line: int = 1) -> dict[str, Any]:
    return {
        "samples_seconds": None,
        "round_samples": None,
        "median_seconds": seconds,
        "source": source,
        "tool": "nccl-tests",
        "time_statistic": "mean",
        "source_line": line,
    }


def printed(seconds: float, name: str = "run") -> Run:
    return run_of([measured(case(0), [[seconds]])], name, {}, **average(seconds))


@pytest.mark.parametrize(
    ("seconds", "verdict", "code"),
    [(1.04e-5, Verdict.SAME, 0), (1.06e-5, Verdict.SLOWER, 1), (0.9e-5, Verdict.FASTER, 0)],
)
def test_printed_averages_are_judged_by_their_ratio_alone_and_that_is_said(
    seconds: float, verdict: Verdict, code: int
) -> None:
    compared = compare(printed(1e-5), printed(seconds))
    (point,) = compared.points
    assert point.verdict is verdict
    assert point.reason == BY_RATIO_ALONE
    assert point.low is None
    assert compared.exit_code == code


def test_a_log_that_was_imported_several_times_gives_a_round_each() -> None:
    def several(factor: float) -> Run:
        import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

        runs = [printed(factor * 1e-5 * (1 + 0.001 * place)) for place in range(5)]
        return replace(runs[0], table=pa.concat_tables(run.table for run in runs))

    compared = compare(several(1.0), several(1.1))
    (point,) = compared.points
    assert (point.base_rounds, point.new_rounds) == (5, 5)
    assert point.verdict is Verdict.SLOWER
    assert point.low is not None
    assert any("several times" in note for note in compared.notes)


SETTINGS_OF_A_POINT: dict[str, Any] = {
    "pair": "0>3",
    "groups": "rank // 2",
    "concurrent": "broadcast",
    "channels": 4,
    "transport": "host",
    "registration": "symmetric",
    "aggregation": 8,
    "misalignment_bytes": 4,
    "mode": "isolated",
    "active_group": 0,
    "traffic": "hot:0.5",
    "overlap_with": "matmul",
    "processes": "per_gpu",
    "memory": "device",
    "cta_policy": "zero",
    "variant": "new",
    "protocol": "ll",
    "in_place": True,
    "root": 1,
    "nodes": 2,
    "dtype": "float16",
    "ranks": 8,
    "op": "max",
    "backend": "gloo",
    "algorithm": "ring2",
    "collective": "reduce",
    "size_bytes": 12,
}


@pytest.mark.parametrize("name", SETTINGS_OF_A_POINT)
def test_everything_asked_of_a_case_tells_points_apart(name: str) -> None:
    plain, changed = case(0), case(0, **{name: SETTINGS_OF_A_POINT[name]})
    compared = compare(
        run_of([measured(plain, rounds(1))]), run_of([measured(changed, rounds(1))])
    )
    # Of ways to do the same work two runs are compared all the same.
    way = AXIS[name].choice or name == "backend"
    assert len({point.point.label for point in compared.points}) == 1 + (not way)
    assert compared.causes == (
        {} if way else {NoVerdict.MISSING_IN_BASE.value: 1, NoVerdict.MISSING_IN_NEW.value: 1}
    )
    assert any(f"the runs differ in {name}" in note for note in compared.notes)


def test_every_axis_of_a_case_is_tried() -> None:
    assert {axis.name for axis in IDENTITY} == set(SETTINGS_OF_A_POINT)


def priced(
    tmp_path: Path, seconds: float, prediction: Prediction | None, **changes: Any
) -> Compared:
    with RunFolder.create(tmp_path / "run", MANIFEST) as folder:
        folder.write(measured(case(0), rounds(seconds), **changes), prediction)
    return compare_with_model(tmp_path / "run")


@pytest.mark.parametrize(
    ("seconds", "verdict", "code"),
    [(1.05e-5, Verdict.SAME, 0), (2e-5, Verdict.SLOWER, 1), (0.6e-5, Verdict.FASTER, 0)],
)
def test_a_run_is_compared_with_its_predictions(
    tmp_path: Path, seconds: float, verdict: Verdict, code: int
) -> None:
    compared = priced(tmp_path, seconds, PREDICTION)
    (point,) = compared.points
    assert point.verdict is verdict
    assert point.ratio == pytest.approx(seconds / 1e-5, rel=0.02)
    assert compared.exit_code == code


PREDICTION = Prediction(5e-6, 1e-5, 1e-6, 9e-6, "link 0-1")


@pytest.mark.parametrize(
    ("seconds", "prediction", "simulated", "cause"),
    [
        (4e-6, PREDICTION, False, NoVerdict.BEATS_BOUND),
        (1e-5, None, False, NoVerdict.MISSING_IN_BASE),
        (1e-5, PREDICTION, True, NoVerdict.SIMULATED),
    ],
)
def test_what_the_model_cannot_judge_ends_with_3(
    tmp_path: Path,
    seconds: float,
    prediction: Prediction | None,
    simulated: bool,
    cause: NoVerdict,
) -> None:
    compared = priced(tmp_path, seconds, prediction, simulated=simulated)
    assert compared.points[0].cause is cause
    assert compared.exit_code == 3


def test_a_file_that_could_not_be_read_never_passes() -> None:
    """The same point may be unreadable in both runs: nobody would miss it."""
    run = run_of(points())
    unread = replace(run, problems=("cases/1.parquet: cannot be read",))
    for base, new in ((unread, unread), (unread, run), (run, unread)):
        compared = compare(base, new)
        assert compared.exit_code == 3
        assert "could not be read" in compared.sentence
        assert 'type="unread"' in junit(compared)
    assert compare(run, run).exit_code == 0
    slower = replace(run_of(points(2e-5)), problems=unread.problems)
    assert compare(run, slower).exit_code == 1


def test_a_prediction_of_a_case_that_could_not_be_read_never_passes(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, MANIFEST) as folder:
        for place in (0, 1):
            folder.write(measured(case(place), rounds(1e-5)), PREDICTION)
    assert compare_with_model(path).exit_code == 0
    file = next((path / "cases").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-100])
    assert compare_with_model(path).exit_code == 3


def test_published_figures_are_a_base_over_the_declared_network_alone_and_of_another_type(
    tmp_path: Path,
) -> None:
    cases = [
        replace(point_case, backend="nccl", algorithm="default", nodes=2, dtype="bfloat16")
        for point_case in sweep(ranks=16)
    ]
    options = {"options": {"network": "ib-hdr-200x8"}}
    run = write_run(tmp_path / "run", cases, manifest=options)
    reasons = [
        point.reason
        for point in compare("published:dgx-a100", run).points
        if point.base_seconds
    ]
    assert reasons
    assert all(
        "over ib-hdr-200x8" in text and "measured with float32" in text for text in reasons
    )
    elsewhere = replace(run, manifest=Manifest({"options": {"network": "ib-ndr-400x8"}}))
    assert not [
        point for point in compare("published:dgx-a100", elsewhere).points if point.base_seconds
    ]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({}, True),
        ({"processes": "per_gpu"}, False),
        ({"mode": "graph"}, False),
        ({"backend": "mpi"}, False),
    ],
)
def test_small_published_figures_are_no_base_of_launches_by_one_process(
    tmp_path: Path, changes: dict[str, Any], left_out: bool
) -> None:
    options = {"backend": "nccl", "algorithm": "default", **changes}
    run = write_run(
        tmp_path / "run", [replace(point_case, **options) for point_case in sweep(ranks=8)]
    )
    compared = compare("published:hgx-h100", run)
    sizes = [point.point.size_bytes for point in compared.points if point.base_seconds]
    assert (min(sizes) > 1 << 20) == left_out
    assert max(sizes) > 1 << 20
    notes = [note for note in compared.notes if "one process launched on all GPUs" in note]
    assert len(notes) == left_out
    assert not left_out or notes[0].startswith("6 points of 1 KiB to 1 MiB left out: ")


@pytest.mark.parametrize("status", [Status.WRONG, Status.FAILED])
def test_small_points_that_did_not_end_well_are_not_left_out(
    tmp_path: Path, status: Status
) -> None:
    cases = [replace(case, backend="nccl", algorithm="default") for case in sweep(ranks=8)]
    ended = {0: lambda measurement: failed(measurement, status, "")}
    compared = compare("published:hgx-h100", write_run(tmp_path / "run", cases, ended))
    assert compared.exit_code != 0
    assert cases[0].size_bytes in {row.point.size_bytes for row in compared.points}
