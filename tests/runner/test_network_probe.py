"""Figures of the probe of messages on a machine that others use, too."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import pytest

from ccbench.cases import Case, Measurement, Sampling, Status
from ccbench.model.host_collectives import HostNetwork
from ccbench.runner.network_probe import MOST_TRIES, ROUNDS, probe_network

MESSAGE_SECONDS, BARRIER_SECONDS, DISTURBED_SECONDS = 5e-7, 2e-6, 3e-2


def probed(tries: list[tuple[float, ...]]) -> tuple[HostNetwork, Counter[str]]:
    """Return what a probe makes of a barrier whose tries have these samples, and how often each was tried."""
    asked: Counter[str] = Counter()
    samples = cycle(tries)

    def measured(case: Case, sampling: Sampling) -> Measurement:
        asked[f"{case.collective} {case.pair} {case.size_bytes}"] += 1
        own = next(samples) if case.collective == "barrier" else (MESSAGE_SECONDS,) * 5
        return Measurement(case, Status.OK, samples_seconds=own)

    return probe_network(measured, "mpi", 2, 8), asked


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
    ids=["quiet", "one slow", "one quiet", "none quiet but by single samples", "quiet in the last"],
)
def test_what_disturbs_most_tries_of_a_point_spoils_no_figure(
    tries: list[tuple[float, ...]], times: int
) -> None:
    found, asked = probed(tries)
    assert found.call_seconds == pytest.approx(BARRIER_SECONDS - MESSAGE_SECONDS)
    assert asked.pop("barrier  0") == times
    assert set(asked.values()) == {ROUNDS, ROUNDS + 1}  # the first message is asked for once more


def test_a_point_that_no_try_finds_quiet_is_given_up_after_a_few() -> None:
    found, asked = probed([HALF_DISTURBED])
    assert found.call_seconds == pytest.approx(DISTURBED_SECONDS, rel=1e-3)
    assert asked["barrier  0"] == MOST_TRIES
