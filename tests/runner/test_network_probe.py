"""Figures of the probe of messages on a machine that others use, too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import cycle

import pytest

from ccbench.backends.base import lacked
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.model.host_collectives import (
    HostNetwork,
    is_priced_on_one_host,
    predict_host_library,
)
from ccbench.runner.network_probe import MOST_TRIES, ROUNDS, probe_network

MESSAGE_SECONDS, BARRIER_SECONDS, DISTURBED_SECONDS = 5e-7, 2e-6, 3e-2


def probed(tries: list[tuple[float, ...]]) -> tuple[HostNetwork, Counter[str]]:
    """Return what a probe makes of a barrier whose tries have these samples, and how often each was tried."""
    tries_of: Counter[str] = Counter()
    samples = cycle(tries)

    def measured(case: Case, sampling: Sampling) -> Measurement:
        tries_of[f"{case.collective} {case.pair} {case.size_bytes}"] += 1
        own = next(samples) if case.collective == "barrier" else (MESSAGE_SECONDS,) * 5
        return Measurement(case, Status.OK, samples_seconds=own)

    return probe_network(measured, "mpi", 2, 8), tries_of


QUIET = (BARRIER_SECONDS,) * 5
DISTURBED = (DISTURBED_SECONDS,)
HALF_DISTURBED = (BARRIER_SECONDS, DISTURBED_SECONDS, 1.2 * DISTURBED_SECONDS)


@pytest.mark.parametrize(
    ("tries", "times"),
    [
        ([QUIET], ROUNDS),
        ([DISTURBED, QUIET, QUIET], ROUNDS),
        ([QUIET, DISTURBED, HALF_DISTURBED, QUIET], ROUNDS + 1),
        ([HALF_DISTURBED] * ROUNDS + [QUIET] * 2, ROUNDS + 2),
        ([HALF_DISTURBED] * (MOST_TRIES - 1) + [QUIET], MOST_TRIES),
    ],
    ids=[
        "quiet",
        "one slow",
        "one quiet",
        "none quiet but by single samples",
        "quiet in the last",
    ],
)
def test_what_disturbs_most_tries_of_a_point_spoils_no_figure(
    tries: list[tuple[float, ...]], times: int
) -> None:
    network, tries_of = probed(tries)
    assert network.call_seconds == pytest.approx(BARRIER_SECONDS - MESSAGE_SECONDS)
    assert tries_of.pop("barrier  0") == times
    assert set(tries_of.values()) == {
        ROUNDS,
        ROUNDS + 1,
    }  # the first message is asked for once more


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_collectives_of_two_ranks_stand_for_messages_where_a_library_has_none(
    ranks: int,
) -> None:
    cases_run: dict[str, Case] = {}

    def measured(case: Case, sampling: Sampling) -> Measurement:
        cases_run.setdefault(f"{case.collective} {case.groups} {case.count}", case)
        quick = case.collective == "barrier"
        return Measurement(
            case, Status.OK, samples_seconds=(1e-6 if quick else 1e-6 + case.count * 1e-9,) * 5
        )

    network = probe_network(measured, "oneccl", ranks, 1 << 20)
    assert {case.collective for case in cases_run.values()} == {
        "all_gather",
        "broadcast",
        "barrier",
    }
    assert all(lacked("oneccl", case) is None for case in cases_run.values())
    gathers = [case for case in cases_run.values() if case.collective == "all_gather"]
    assert {case.groups for case in gathers} == {
        "[[0,1],[2,3]]" if ranks == 4 else "[[0,1]]",
        "[[0,1]]",
    }
    assert all(case.size_bytes == 2 * case.count for case in gathers)
    assert network.together is not None
    assert network.together.bytes_per_second == pytest.approx(1e9, rel=0.01)
    case = next(iter(cases_run.values()))
    all_reduce = replace(
        case, collective="all_reduce", op="sum", dtype="float32", groups="", count=256, root=-1
    )
    expected = predict_host_library(all_reduce, network)
    assert expected is not None
    assert expected.predicted_seconds > 1e-6
    assert is_priced_on_one_host("oneccl", ranks, None)


def test_a_point_that_no_try_finds_quiet_is_given_up_after_a_few() -> None:
    network, tries_of = probed([HALF_DISTURBED])
    assert network.call_seconds == pytest.approx(DISTURBED_SECONDS, rel=1e-3)
    assert tries_of["barrier  0"] == MOST_TRIES
