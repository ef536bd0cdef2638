"""The fastest at each size: held against the plain minimum of every published table, and against times made up."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from ccbench.analysis.serving import LEAD, answers_of
from ccbench.analysis.tuning import timings_of
from ccbench.results.loading import load_published
from tests.analysis.tuning.made import NCCL, PLACE, RING, TREE, printed, timing

MIB = 2**20


def test_published_winners_are_within_ten_percent_of_the_minimum_and_change_where_it_does() -> (
    None
):
    run = load_published("servers")
    times: dict[tuple[str, int, str], dict[int, dict[str, float]]] = {}
    for point in run.points:
        if point.flags != ("ill_box",) and point.median_seconds:
            group = times.setdefault((point.device_model, point.ranks, point.mode), {})
            name = f"{point.backend_version} {point.algorithm}"
            group.setdefault(point.size_bytes, {})[name] = point.median_seconds
    answers = {
        (each.situation.place, each.situation.ranks, each.situation.mode): each
        for each in answers_of(timings_of([run]), {})
    }
    assert answers.keys() == times.keys()
    points = stayed = changes = 0
    for key, answer in answers.items():
        least = {size: min(at.values()) for size, at in times[key].items()}
        assert [each.size_bytes for each in answer.winners] == sorted(least)
        for each in answer.winners:
            at = times[key][each.size_bytes]
            assert each.p50_seconds == at[each.name] < least[each.size_bytes] * (1 + LEAD)
            points, stayed = points + 1, stayed + (at[each.name] > least[each.size_bytes])
        for before, after in pairwise(answer.winners):
            if before.name != after.name:
                lost = times[key][after.size_bytes].get(before.name)
                assert lost is None or lost >= least[after.size_bytes] * (1 + LEAD)
                changes += 1
    assert (len(answers), points, stayed, changes) == (40, 920, 253, 34)


GRAPH = replace(PLACE, mode="graph")


def test_a_lead_below_ten_percent_is_no_change_and_modes_are_never_ranked_together() -> None:
    timings = [printed(TREE, MIB, 0.1)]
    for size, nccl, ring in ((1, 1.0, 1.2), (2, 1.09, 1.0), (4, 1.11, 1.0), (8, 1.0, 1.09)):
        timings += [printed(NCCL, size, nccl, GRAPH), printed(RING, size, ring, GRAPH)]
    graph, stream = answers_of(timings, {})
    labels = [NCCL.label, NCCL.label, RING.label, RING.label]
    assert [each.name for each in graph.winners] == labels
    assert [each.name for each in stream.winners] == [TREE.label]


def test_between_measured_sizes_times_lie_on_a_line_of_logarithms() -> None:
    def power_law(size: int) -> float:
        return 3e-6 * math.pow(size, 0.7)

    (answer,) = answers_of([printed(NCCL, size, power_law(size)) for size in (1, 4, 64)], {})
    for size in (1, 2, 3, 4, 13, 64):
        seconds, low, high = answer.at(size)
        assert seconds == pytest.approx(power_law(size))
        assert low.size_bytes <= size <= high.size_bytes
    assert answer.at(0)[0] is answer.at(65)[0] is None


def test_a_tail_needs_a_hundred_samples() -> None:
    for rounds, has_tail in ((24, False), (25, True)):
        (answer,) = answers_of([timing(NCCL, MIB, 1.0, rounds=rounds)], {})
        assert (answer.winners[0].p99_seconds is not None) is has_tail
