from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ccbench.analysis.health import health_of, wants_health
from ccbench.analysis.health_verdict import HealthVerdict
from ccbench.cases.measurement import MORE_ROUNDS, NO_TEAM, Measurement, Status
from ccbench.groups import Pair

from .machines import (
    collectives,
    flagged,
    groups,
    hot_readings,
    manifest,
    measured,
    pairs,
    run_of,
)


def verdict(measurements: list[Measurement]) -> HealthVerdict:
    return health_of(run_of(measurements))


def whole(seed: int = 1, ranks: int = 8, **faults: int | None) -> list[Measurement]:
    random = np.random.default_rng(seed)
    late = faults.get("late")

    def slower(pair: Pair) -> float:
        return 1.6 if late in (pair.source, pair.target) else 1.0

    return [
        *pairs(random, ranks, slower),
        *collectives(random, ranks, late),
        *groups(random, ranks, faults.get("group")),
    ]


def findings_of(judged: HealthVerdict) -> list[tuple[str, str]]:
    return [(finding.kind, " ".join(finding.devices)) for finding in judged.findings]


def test_a_machine_without_a_fault_is_healthy_and_says_on_what_evidence() -> None:
    judged = verdict(whole())
    assert (judged.word, judged.exit_code, judged.findings) == ("HEALTHY", 0, ())
    text = "\n".join(judged.lines())
    assert text.startswith("HEALTHY: nothing found wrong")
    assert "183 cases with correct results: 5 of 11 collectives" in text
    assert "56 pairs, 64 MiB one way, nccl" in text
    assert "between rounds" in text


def test_a_slow_rank_is_named_once_and_not_its_pairs() -> None:
    judged = verdict(whole(late=7))
    assert findings_of(judged) == [("slow_rank", "rank 7")]
    assert judged.exit_code == 1
    assert "the others wait for it in 12 of 12 collectives" in judged.findings[0].evidence
    assert "its pairs take" in judged.findings[0].evidence


def test_a_slow_rank_shows_in_collectives_alone() -> None:
    judged = verdict(collectives(np.random.default_rng(1), late=2))
    assert findings_of(judged) == [("slow_rank", "rank 2")]


def test_a_slow_pair_is_named_with_its_class_and_sizes() -> None:
    random = np.random.default_rng(1)
    made = pairs(
        random, slower=lambda pair: 2.0 if {pair.source, pair.target} == {2, 5} else 1.0
    )
    judged = verdict([*made, *collectives(random)])
    assert set(findings_of(judged)) == {
        ("slow_pair", "2>5"),
        ("slow_pair", "5>2"),
        ("slow_pair", "2<>5"),
    }
    assert "usual time of NV18" in judged.findings[0].evidence
    assert "64 MiB" in judged.findings[0].evidence


def test_a_slow_group_is_named() -> None:
    judged = verdict(whole(group=2))
    assert findings_of(judged) == [("slow_group", "ranks 4-5")]


def test_wrong_data_come_first_and_name_the_rank_and_the_case() -> None:
    made = whole()
    made[0] = replace(
        made[0], status=Status.WRONG, wrong_elements=3, detail="rank 3: 3 wrong elements"
    )
    judged = verdict(made)
    assert findings_of(judged)[0][0] == "wrong_data"
    assert judged.lines()[0].startswith("NOT HEALTHY: wrong data: rank 3 in nccl send_recv")
    assert str(judged.findings[0]).endswith("; 3 wrong elements")
    assert judged.exit_code == 1


def test_wrong_cases_are_told_apart_by_all_that_differs() -> None:
    plain = groups(np.random.default_rng(1), 4)[0]
    made = [
        replace(plain, case=replace(plain.case, **changes), status=Status.WRONG, detail="bad")
        for changes in (
            {},
            {"active_group": 1},
            {"concurrent": "all_gather"},
            {"mode": "overlap"},
            {"in_place": True},
        )
    ]
    named = [what for kind, what in findings_of(verdict(made)) if kind == "wrong_data"]
    assert len(set(named)) == len(made)
    assert (
        sum(what.endswith("4 ranks groups rank // 2 group 1 alone 4 KiB") for what in named)
        == 1
    )


def test_many_wrong_cases_are_counted() -> None:
    made = [
        replace(measurement, status=Status.WRONG, wrong_elements=3, detail="bad")
        for measurement in whole()
    ]
    judged = verdict(made)
    assert len(judged.findings) == 7
    assert "and 177 more cases" in str(judged.findings[-1])
    assert " and more" in judged.lines()[0]
    assert " and 4 more" not in judged.lines()[0]


def test_cases_that_hang_are_told_once_for_each_reason() -> None:
    made = [
        replace(measurement, status=Status.TIMED_OUT, detail="rank 1 hung", samples_seconds=())
        if place < 3
        else measurement
        for place, measurement in enumerate(whole())
    ]
    (finding,) = verdict(made).findings
    assert finding.kind == "no_result"
    assert "and 2 more" in finding.devices[0]
    assert finding.evidence == "timed_out, rank 1 hung"


def test_a_throttled_device_is_named_by_its_readings() -> None:
    made = [
        flagged(replace(measurement, device_readings=hot_readings()), "throttled")
        for measurement in whole()
    ]
    (finding,) = verdict(made).findings
    assert finding.kind == "device"
    assert "0000:3b:00.0" in finding.devices[0]
    assert finding.evidence == f"throttled in {len(made)} cases of {len(made)}"


@pytest.mark.parametrize("flag", ["power_capped", "clock_dropped"])
def test_a_power_cap_is_no_fault(flag: str) -> None:
    judged = verdict([flagged(case, flag) for case in whole()])
    assert judged.word == "HEALTHY"
    assert any(flag in line for line in judged.evidence)


def test_unstable_timing_alone_is_no_verdict() -> None:
    judged = verdict(collectives(np.random.default_rng(1), noise=0.5))
    assert findings_of(judged) == [("unstable", "")]
    assert judged.lines()[0].startswith("NO VERDICT: unstable timing")
    assert "cases vary" not in judged.lines()[0]
    assert (judged.word, judged.exit_code) == ("NO VERDICT", 3)


@pytest.mark.parametrize(
    ("seconds", "word"), [(1.2e-6, "HEALTHY"), (3e-6, "HEALTHY"), (3e-5, "NO VERDICT")]
)
def test_a_microsecond_more_or_less_is_not_unstable_timing(seconds: float, word: str) -> None:
    random = np.random.default_rng(1)
    made = [
        measured(collective.case, seconds, random, noise=0.2)
        for collective in collectives(random)
    ]
    assert verdict(made).word == word


def test_busy_loops_on_both_processors_accuse_neither_of_two_ranks() -> None:
    late = collectives(np.random.default_rng(1), ranks=2, late=1)
    waits = [
        replace(
            measurement, rank_waiting_seconds=((0.8 * measurement.samples_seconds[0],), (0.0,))
        )
        for measurement in late
    ]
    judged = verdict([flagged(case, "other_load") for case in waits])
    assert (judged.word, judged.findings) == ("NO VERDICT", ())


def test_where_times_are_flagged_only_gross_faults_show() -> None:
    judged = verdict([flagged(case, "other_load") for case in whole(late=3)])
    assert (judged.word, judged.findings) == ("NO VERDICT", ())
    assert "other_load" in judged.doubt
    random = np.random.default_rng(1)
    gross = pairs(random, slower=lambda pair: 50.0 if 3 in (pair.source, pair.target) else 1.0)
    judged = verdict([flagged(case, "other_load") for case in gross])
    assert findings_of(judged) == [("slow_rank", "rank 3")]
    assert judged.exit_code == 1


def test_a_slow_rank_is_found_though_a_few_of_its_pairs_met_other_load() -> None:
    random = np.random.default_rng(1)
    made = pairs(
        random, sizes=(8,), slower=lambda pair: 1.6 if 3 in (pair.source, pair.target) else 1.0
    )
    few = [
        flagged(measurement, "other_load") if place % 8 == 0 else measurement
        for place, measurement in enumerate(made)
    ]
    judged = verdict([*few, *collectives(random)])
    assert findings_of(judged) == [("slow_rank", "rank 3")]


def test_a_rank_whose_pairs_alone_met_other_load_is_not_accused() -> None:
    random = np.random.default_rng(1)
    made = pairs(
        random, sizes=(8,), slower=lambda pair: 1.6 if 3 in (pair.source, pair.target) else 1.0
    )
    loaded = [
        flagged(measurement, "other_load") if "3" in measurement.case.pair else measurement
        for measurement in made
    ]
    assert verdict([*loaded, *collectives(random)]).findings == ()


def test_nothing_measured_is_no_verdict() -> None:
    judged = verdict([])
    assert (judged.word, judged.exit_code) == ("NO VERDICT", 3)
    assert "no case gave a time" in judged.lines()[0]


def test_a_run_that_was_stopped_is_no_verdict() -> None:
    made = whole()
    made[-1] = replace(made[-1], status=Status.SKIPPED, samples_seconds=())
    assert "stopped early" in verdict(made).lines()[0]


@pytest.mark.parametrize("reason", [MORE_ROUNDS, NO_TEAM])
def test_a_run_that_was_killed_between_rounds_is_no_verdict(reason: str) -> None:
    made = whole()
    made[-1] = replace(made[-1], stop_reason=reason)
    judged = verdict(made)
    assert (judged.word, judged.exit_code) == ("NO VERDICT", 3)
    assert f"stopped early: 1 of {len(made)} cases lack rounds" in judged.lines()[0]


def test_a_run_that_was_killed_before_its_last_case_is_no_verdict() -> None:
    made = whole()
    stopped = health_of(run_of(made, {**manifest(), "planned_cases": len(made) + 3}))
    assert (stopped.word, stopped.exit_code) == ("NO VERDICT", 3)
    assert f"stopped early: 3 of {len(made) + 3} cases were not reached" in stopped.lines()[0]
    assert health_of(run_of(made, {**manifest(), "planned_cases": len(made)})).word == "HEALTHY"


def test_times_of_a_model_are_no_verdict() -> None:
    judged = verdict(
        [replace(case, simulated=True) for case in collectives(np.random.default_rng(1))]
    )
    assert judged.word == "NO VERDICT"


def test_two_ranks_are_judged_without_naming_one_of_the_two() -> None:
    random = np.random.default_rng(1)
    judged = verdict(pairs(random, ranks=2, slower=lambda pair: 5.0 if pair.source else 1.0))
    assert judged.findings == ()


def test_a_case_with_few_rounds_is_not_called_unstable() -> None:
    measurement = measured(
        collectives(np.random.default_rng(1))[0].case, 1e-3, np.random.default_rng(1), noise=0.5
    )
    assert verdict([replace(measurement, round_samples=(30,))]).findings == ()


def test_a_suite_asks_for_a_verdict_by_its_key() -> None:
    assert wants_health(run_of([], manifest()))
    assert not wants_health(run_of([], manifest(verdict="speed")))
    assert not wants_health(run_of([], {}))


@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 50), marks=pytest.mark.exhaustive)]
)
def test_a_slow_rank_is_named_in_every_trial_and_none_on_healthy_machines(seeds: range) -> None:
    for seed in seeds:
        rank = seed % 4
        assert findings_of(verdict(whole(seed, 4, late=rank))) == [
            ("slow_rank", f"rank {rank}")
        ]
        assert findings_of(verdict(whole(1000 + seed, 4))) == []


def test_a_rank_that_is_slow_in_two_ways_is_named_once_with_both() -> None:
    starved = [
        replace(
            collective,
            case=replace(collective.case, backend="cpu"),
            rank_cpu_share=(0.5, 0.2, 0.5, 0.5),
        )
        for collective in collectives(np.random.default_rng(1), 4, late=1)
    ]
    (finding,) = verdict(starved).findings
    assert (finding.kind, finding.devices[0]) == ("slow_rank", "rank 1")
    assert finding.evidence == (
        "the others wait for it in 12 of 12 collectives on cpu; "
        "it gets 40% of the next one's processor time in 12 of 12 collectives on cpu"
    )
