"""What a reader of scores must know besides: which logs the model has seen, and what manifests get wrong."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.score.logs import LogPoints
from ccbench.model.cluster import PAIRWISE_SCHEDULES
from ccbench.model.library import Intra


def notices(logs: Sequence[LogPoints]) -> tuple[str, ...]:
    """Lines for people and for ``--json``."""
    found = []
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


def _without_shared_links(logs: Sequence[LogPoints]) -> int:
    return sum(
        len(observation.seconds)
        for log in logs
        for observation in log.observations
        if observation.request.collective in PAIRWISE_SCHEDULES
        and observation.system.intra is not Intra.NVSWITCH
    )
