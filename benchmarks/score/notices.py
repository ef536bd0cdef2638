"""What a reader of scores must know besides: which logs the model has seen, and what manifests get wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.score.logs import LogPoints
from ccbench.errors import CcbenchError
from ccbench.model.cluster import PAIRWISE_SCHEDULES
from ccbench.model.library import Intra

SEEN_SHARE = 0.5
"""A log counts as seen when this share of its points is among the published figures that ship: some of a
log's times follow from rates here and there, and then differ in their last digits."""

FEWEST_SEEN = 3
"""And so many: two printed times may be alike by chance."""

_Figure = tuple[str, int, str]


def notices(logs: Sequence[LogPoints], seen: Sequence[str]) -> tuple[str, ...]:
    """Lines for people and for ``--json``. seen: as ``learned_from`` says."""
    found = []
    if seen:
        found.append(
            f"the model's constants were learned from at least {len(seen)} of these {len(logs)} logs, so "
            "their errors are those of a fit; --holdout tests on sizes and systems that a fit did not see"
        )
    apart = _without_shared_links(logs)
    if apart:
        found.append(
            f"{apart} points of {', '.join(PAIRWISE_SCHEDULES)} between GPUs without NVSwitch are of the "
            "library's model alone; predict and import also price links that several GPUs share, for which "
            "they have a graph"
        )
    unsaid = sum(
        any(not observation.request.launch_known for observation in log.observations)
        for log in logs
    )
    if unsaid:
        found.append(
            f"{unsaid} logs do not say how many GPUs one thread launched on (nccl-tests -g); they are priced "
            "for one, and their small sizes may take longer"
        )
    return (
        *found,
        *(f"{log.entry.file}: {line}" for log in logs for line in log.contradictions),
    )


def learned_from(logs: Sequence[LogPoints]) -> tuple[str, ...]:
    """Files of those logs whose figures are among the ones that the shipped constants were learned from.

    Those are the published results that ship; () where the constants were learned from nothing, or where an
    installation has no published results.
    """
    from ccbench.model.library.constants import shipped

    if not shipped().learned_on:
        return ()
    try:
        published = frozenset(_published())
    except CcbenchError:
        return ()
    return tuple(log.entry.file for log in logs if _is_seen(log, published))


def _published() -> Iterator[_Figure]:
    from ccbench.results.loading import load_published, published_names

    for name in published_names():
        for point in load_published(name).points:
            yield point.collective, point.size_bytes, _digits(point.median_seconds or 0.0)


def _is_seen(log: LogPoints, published: frozenset[_Figure]) -> bool:
    figures = [
        (observation.request.collective, size, _digits(seconds))
        for observation in log.observations
        for size, seconds in zip(
            observation.request.size_bytes, observation.seconds, strict=True
        )
    ]
    return sum(figure in published for figure in figures) >= max(
        FEWEST_SEEN, SEEN_SHARE * len(figures)
    )


def _digits(seconds: float) -> str:
    return f"{seconds:.5e}"


def _without_shared_links(logs: Sequence[LogPoints]) -> int:
    return sum(
        len(observation.seconds)
        for log in logs
        for observation in log.observations
        if observation.request.collective in PAIRWISE_SCHEDULES
        and observation.system.intra is not Intra.NVSWITCH
    )
