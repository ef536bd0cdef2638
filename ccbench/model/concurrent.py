"""Times of two collectives that run at the same time.

What both need of the same links and NICs adds up, waits do not. Neither knows of the other, so each
keeps its own algorithm. A launch is over when both are: it takes at least as long as either alone, and as long
as the busiest thing that they share has to serve both, on top of the longer wait of the two. At worst that is
one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ccbench.cases.axes import Case
from ccbench.errors import ScheduleError
from ccbench.model import Prediction
from ccbench.model.cluster import Cluster
from ccbench.model.group_points import group_points
from ccbench.model.group_systems import group_systems
from ccbench.model.library import LibraryRequest
from ccbench.model.library.predictor import busy_seconds
from ccbench.model.rank_subset import schedule_of, subset_of
from ccbench.model.subset_points import link_seconds, subset_points, subset_prices
from ccbench.schedules import algorithms_of
from ccbench.schedules.schedule import Schedule


@dataclass(frozen=True)
class Both:
    """Two collectives at once: the prediction of the launch, and when in it each of them is over.

    What sharing costs the longer one, it costs the shorter one too.
    """

    prediction: Prediction
    main_seconds: float
    other_seconds: float


def cheapest(case: Case, where: Cluster) -> Schedule:
    """The schedule that takes least time for a group of ``case`` with nothing else at the same time.

    Raises ScheduleError where there is none for that number of ranks.
    """
    candidates: list[tuple[float, Schedule]] = []
    for name in algorithms_of(case.collective, added=False):
        try:
            schedule = schedule_of(case, name)
        except ScheduleError:
            continue  # not for this number of ranks
        prices = subset_prices(where, schedule, subset_of(case), (case.size_bytes,)).seconds
        candidates.append((float(prices[0]), schedule))
    if not candidates:
        raise ScheduleError(f"{case.label}: no algorithm exists for {case.group_ranks} ranks")
    return min(candidates, key=lambda candidate: candidate[0])[1]


def schedules_at_once(
    where: Cluster, first: tuple[Case, Schedule], second: tuple[Case, Schedule]
) -> Both:
    """Both as ccbench's own schedules, on a cluster's links."""
    predictions: list[Prediction] = []
    # The seconds for which each link is busy with either add up.
    shared = np.zeros(where.fabric.links)
    for case, schedule in (first, second):
        subset = subset_of(case)
        (point,) = subset_points(
            where, schedule, subset, (case.size_bytes,), schedule.algorithm
        )
        predictions.append(point.prediction)
        shared = shared + link_seconds(where, schedule, subset, case.size_bytes)
    latency = max(prediction.latency_seconds for prediction in predictions)
    return _both(first[0], predictions, latency, latency + float(shared.max(initial=0.0)))


def library_at_once(
    cluster: Cluster, first: tuple[Case, LibraryRequest], second: tuple[Case, LibraryRequest]
) -> Both:
    """Both by the collective library, on communicators of their own: GPUs' links and NICs serve both."""
    predictions: list[Prediction] = []
    waiting, inside, network = 0.0, 0.0, 0.0
    for case, request in (first, second):
        (point,) = group_points(cluster, case.members, request)
        predictions.append(point.prediction)
        kinds = [
            busy_seconds(kind.system, request) for kind in group_systems(cluster, case.members)
        ]
        waits, links, nics = (max(column) for column in zip(*kinds, strict=True))
        # Neither waits for the other, but both need the same links and NICs.
        waiting, inside, network = max(waiting, waits), inside + links, network + nics
    return _both(first[0], predictions, waiting, waiting + max(inside, network))


def _both(case: Case, predictions: list[Prediction], latency: float, seconds: float) -> Both:
    # Whatever is shared, both cannot end before the longer would alone.
    longer = max(predictions, key=lambda prediction: prediction.predicted_seconds)
    whole = max(seconds, longer.predicted_seconds)
    latency = min(latency, whole)
    sharing = whole - longer.predicted_seconds
    main, second = (prediction.predicted_seconds + sharing for prediction in predictions)
    prediction = replace(
        longer,
        bound_seconds=max(prediction.bound_seconds for prediction in predictions),
        predicted_seconds=whole,
        latency_seconds=latency,
        bandwidth_seconds=whole - latency,
        bottleneck=f"{longer.bottleneck}; concurrent with {case.concurrent}, which shares what both use",
    )
    return Both(prediction, main, second)
