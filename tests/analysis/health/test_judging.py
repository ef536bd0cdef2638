from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ccbench.analysis.health import health_of
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


def test_a_slow_rank_is_named_once_and_not_its_pairs() -> None:
    judged = verdict(whole(late=7))
    assert findings_of(judged) == [("slow_rank", "rank 7")]
    assert judged.exit_code == 1
    assert "the others wait for it in 12 of 12 collectives" in judged.findings[0].evidence
    assert "its pairs take" in judged.findings[0].evidence


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


def test_a_throttled_device_is_named_by_its_readings() -> None:
    made = [
        flagged(replace(measurement, device_readings=hot_readings()), "throttled")
        for measurement in whole()
    ]
    (finding,) = verdict(made).findings
    assert finding.kind == "device"
    assert "0000:3b:00.0" in finding.devices[0]
    assert finding.evidence == f"throttled in {len(made)} cases of {len(made)}"


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
