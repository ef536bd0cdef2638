from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.base import TeamRequest
from ccbench.backends.launch_price import COPIED, prediction_of
from ccbench.backends.simulated import BACKEND, NOISE_SIGMA
from ccbench.cases.axes import NO_OP, NO_ROOT, Case
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.collectives import COLLECTIVES, OPS
from ccbench.dtypes import CPU_DTYPES, item_bytes
from ccbench.model.cluster import open_cluster
from ccbench.schedules import algorithms_of, schedule_for
from tests.backends import measuring


def case_of(
    collective: str = "all_reduce",
    algorithm: str = "ring",
    ranks: int = 4,
    size_bytes: int = 4096,
    **changes: Any,
) -> Case:
    """The case of at most so many bytes in every group."""
    blank = measuring.case_of("simulated", collective, algorithm, ranks, **changes)
    count = COLLECTIVES[collective].count_for(
        size_bytes, blank.group_ranks, item_bytes(blank.dtype)
    )
    return measuring.case_of("simulated", collective, algorithm, ranks, count, **changes)


UNEVEN_CASE = case_of("all_to_all_v", "default", 8)


def run(case: Case, sampling: Sampling | None = None, seed: int = 0) -> Measurement:
    team = BACKEND.open_team(TeamRequest("simulated", case.ranks, seed=seed))
    return team.run(case, sampling or Sampling())


@given(st.data())
def test_every_algorithm_computes_the_right_result(data: st.DataObject) -> None:
    collective = data.draw(st.sampled_from(sorted(COLLECTIVES)))
    row, ranks = COLLECTIVES[collective], data.draw(st.integers(1, 9))
    case = case_of(
        collective,
        data.draw(st.sampled_from(("default", *algorithms_of(collective)))),
        ranks,
        data.draw(st.integers(0, 40_000)),
        dtype=data.draw(st.sampled_from(CPU_DTYPES)),
        op=data.draw(st.sampled_from(OPS)) if row.reduces else NO_OP,
        root=data.draw(st.integers(0, ranks - 1)) if row.rooted else NO_ROOT,
        in_place=data.draw(st.booleans()),
    )
    if BACKEND.unsupported(case):
        return
    measurement = run(case)
    assert measurement.status is Status.OK, measurement.detail
    assert measurement.wrong_elements == 0
    assert min(measurement.samples_seconds) > 0


def test_a_wrong_schedule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = schedule_for("all_reduce", "ring", 4)
    # One step of the second half left out: a quarter of every rank's result is not the sum.
    wrong = replace(right, phases=(right.phases[0], replace(right.phases[1], repeat=2)))
    monkeypatch.setattr("ccbench.backends.simulated.schedule_of", lambda *args, **names: wrong)
    measurement = run(case_of(size_bytes=4096))
    assert measurement.status is Status.WRONG
    # Each rank lacks one of four pieces; by chance a few partial sums equal the whole one.
    assert 0.9 * 4 * 256 < (measurement.wrong_elements or 0) <= 4 * 256


def test_samples_lie_around_the_models_price() -> None:
    case = case_of(size_bytes=1 << 22)
    sampling = Sampling(minimum_samples=400)
    measurement = run(case, sampling)
    samples = np.array(measurement.samples_seconds)
    prediction = prediction_of(measurement)
    assert prediction is not None
    expected = prediction.predicted_seconds
    # Five standard errors of a mean of 400.
    assert np.log(samples / expected).mean() == pytest.approx(0, abs=5 * NOISE_SIGMA / 20)
    assert np.log(samples).std() == pytest.approx(NOISE_SIGMA, rel=0.3)


def test_a_host_has_the_steps_of_the_algorithm_and_the_bytes_of_the_rank_with_most() -> None:
    ring = run(case_of(size_bytes=1 << 20)).path_counts
    # Entry and exit, and a flag for each of 2 (n - 1) steps; three quarters are added, three copied.
    assert ring == (8.0, 7.0, 6.0, 0.75 * (1 << 20), 0.75 * (1 << 20))
    gathered = run(case_of("gather", "direct", size_bytes=1 << 20)).path_counts
    assert gathered[COPIED] == (1 << 20) / 4  # each rank pushes its block
    matrix = "[[0, 3, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]"
    uneven = case_of("all_to_all_v", "direct", size_bytes=1 << 20)
    counts = [run(replace(uneven, traffic=traffic)).path_counts for traffic in (matrix, "")]
    # Of both the rank that sends most sends the whole size.
    assert [each[COPIED] for each in counts] == pytest.approx([uneven.size_bytes] * 2)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (case_of(algorithm="rong"), "'rong' is not known"),
        (case_of(dtype="float8_e4m3"), "no dtype float8_e4m3"),
        (case_of(op="xor"), "no op xor"),
        (replace(case_of(), protocol="LL"), "no protocol LL"),
        (case_of(ranks=2000), "2000 ranks"),
        (case_of(algorithm="hierarchical:3"), "groups of 3 do not divide 4 ranks"),
        (replace(case_of(), mode="overlap", overlap_with="matmul"), "no mode overlap"),
        (replace(UNEVEN_CASE, traffic="hot:0.5", in_place=True), "no all_to_all_v in place"),
        (replace(UNEVEN_CASE, traffic="[[0, 1], [1, 0]]"), "2 rows"),
        (replace(case_of(ranks=8), groups="rank // 3"), "groups of 2 and 3"),
    ],
)
def test_what_cannot_be_simulated_is_unsupported_with_the_reason(
    case: Case, reason: str
) -> None:
    assert reason in (BACKEND.unsupported(case) or "")
    measurement = run(case)
    assert measurement.status is Status.UNSUPPORTED
    assert reason in measurement.detail
    assert measurement.samples_seconds == ()
    assert measurement.wrong_elements is None


def test_a_case_for_another_number_of_ranks_is_turned_away() -> None:
    team = BACKEND.open_team(TeamRequest("simulated", 2))
    assert "a team of 2" in team.run(case_of(ranks=4), Sampling()).detail
    assert team.usable()
    team.close()
    team.close()


def grouped(
    collective: str = "all_reduce", ranks: int = 8, size_bytes: int = 1 << 16, **fields: Any
) -> Case:
    return case_of(collective, "default", ranks, size_bytes, **fields)


GROUPINGS: tuple[dict[str, object], ...] = (
    {"groups": "rank // 2"},
    {"groups": "dp of tp2-dp4"},
    {"groups": "rank % 4", "active_group": 2},
    {"groups": "[[5, 1, 7], [2, 0, 3]]"},
    {"groups": "rank // 4", "concurrent": "all_gather on rank % 4"},
    {"concurrent": "all_reduce on rank // 2"},
    {"groups": "rank % 2", "active_group": 1, "concurrent": "all_gather"},
)


@given(st.data())
def test_every_group_gets_its_own_result_and_parts_end_with_the_launch(
    data: st.DataObject,
) -> None:
    collective = data.draw(st.sampled_from(sorted(COLLECTIVES)))
    traffic = (
        data.draw(st.sampled_from(("", "zipf:1.2", "hot:1")))
        if collective == "all_to_all_v"
        else ""
    )
    case = grouped(
        collective,
        size_bytes=data.draw(st.integers(0, 40_000)),
        dtype=data.draw(st.sampled_from(("float32", "float16", "int32", "uint8"))),
        op=data.draw(st.sampled_from(("sum", "avg", "min")))
        if COLLECTIVES[collective].reduces
        else NO_OP,
        traffic=traffic,
        **data.draw(st.sampled_from(GROUPINGS)),  # type: ignore[arg-type]  # none of them is a parameter's
    )
    measurement = run(case)
    assert measurement.status is Status.OK, measurement.detail
    assert measurement.wrong_elements == 0
    parts = np.array(measurement.group_samples_seconds)
    assert len(parts) == len(measurement.group_names)
    assert parts.max(axis=0) == pytest.approx(np.array(measurement.samples_seconds))
    assert parts.min() > 0


@pytest.mark.parametrize("pair", ["0>3", "6<>1"])
def test_a_pair_moves_its_data_and_ranks_that_stand_by_have_no_row(pair: str) -> None:
    measurement = run(grouped("send_recv", pair=pair))
    assert (measurement.status, measurement.wrong_elements) == (Status.OK, 0)
    assert len(measurement.rank_samples_seconds) == 2
    assert len(run(grouped(groups="rank // 2")).rank_samples_seconds) == 8
    assert len(run(grouped(groups="rank // 2", active_group=1)).rank_samples_seconds) == 2


def test_two_collectives_at_once_take_longer_than_one_on_links_that_both_use() -> None:
    cluster = open_cluster("hgx-h100")
    team = BACKEND.open_team(TeamRequest("simulated", 8, machine=cluster))
    plain = grouped("all_gather", 8, 1 << 28)
    alone = np.median(team.run(plain, Sampling()).samples_seconds)
    both = team.run(replace(plain, concurrent="all_gather on rank // 4"), Sampling())
    assert np.median(both.samples_seconds) > 1.5 * alone
    assert both.group_names == ("all_gather", "ranks 0-3 all_gather", "ranks 4-7 all_gather")
