"""Reports of all ranks put together: where they are when they are ready, and one measurement of a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import OVERLAP, OVERLAP_PARTS, Case
from ccbench.cases.measurement import CaseFacts, Measurement, Status
from ccbench.collectives import collective
from ccbench.columns import columns_of
from ccbench.errors import BackendUnavailable
from ccbench.flags import Flag
from ccbench.groups import format_ranks
from ccbench.machine.readings import joined
from ccbench.runner.bits import rounding_of_ranks
from ccbench.runner.measure import RankResult, durations, takes_fastest_rank, taking_part
from ccbench.runner.workers.messages import RankReport, Ready

_SEVERITY = (Status.OK, Status.WRONG, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.FAILED)


_FACTS = (
    {field.name for field in fields(CaseFacts)}
    & {column.attribute for column in columns_of(Measurement)}
    - {"group_samples_seconds"}  # those may be taken apart by measuring, too
)
"""Fields of a measurement that rank 0 knows."""


def measurement_of(
    case: Case, reports: Mapping[int, RankReport], hosts: Sequence[str], single_process: bool
) -> Measurement:
    """Make one measurement of the reports of all ranks, which may have come in any order.

    hosts: of each rank, where a launcher started them. single_process: one process drives all ranks.
    """
    in_order = [reports[rank] for rank in sorted(reports)]
    # Rank 0 alone keeps the stamps, so its figures count where all ranks have some; where one could not run,
    # that one says why.
    worst = max(in_order, key=lambda report: _SEVERITY.index(report.status))
    first = in_order[0] if worst.result is not None else worst
    result, facts = first.result, first.facts
    if result is None:
        return Measurement(case, worst.status, first.detail)
    # Of a wrong result those who have one speak: how the others took their samples explains nothing.
    details = [
        report.detail for report in in_order if report.status is worst.status and report.detail
    ]
    stamps = taking_part(case, result.stamps)
    parts, part_samples = parts_of(case, facts, result)
    measurement = Measurement(
        case=case,
        status=worst.status,
        detail="; ".join(details),
        launches_per_sample=result.launches,
        samples_seconds=tuple(
            (durations(stamps, takes_fastest_rank(case)) / result.launches).tolist()
        ),
        warmup_seconds=result.warmup_seconds,
        simulated=Flag.EMULATION in first.flags,
        launching_seconds=result.launching_seconds,
        round_samples=(stamps.shape[1],),
        wrong_elements=wrong_elements_of(
            case, [report.result for report in in_order if report.result]
        ),
        stop_reason=result.stop_reason,
        backend_version=facts.library_version,
        group_names=parts,
        group_samples_seconds=part_samples,
        rounding=rounding_of_ranks(
            case,
            [bits for report in in_order if report.result for bits in report.result.bits],
        ),
        device_readings=joined([report.facts.devices for report in in_order], hosts),
        **{name: getattr(facts, name) for name in _FACTS},
    )
    if single_process:
        return measurement  # there is one clock, and no rank's own time
    active = [reports[rank] for rank in case.communicating_ranks]
    began = stamps[
        :, :, 0
    ]  # all 0 where ranks have no clock in common, or devices that start together
    seconds = (stamps[:, :, 1] - began) / result.launches
    queued = tuple(report.queued_share for report in active if report.queued_share is not None)
    return replace(
        measurement,
        skew_seconds=tuple(np.ptp(began, axis=0).tolist()) if began.any() else (),
        rank_samples_seconds=tuple(map(tuple, seconds.tolist())),
        rank_waiting_seconds=tuple(
            (report.result.waiting_seconds,) for report in active if report.result
        ),
        rank_cpu_share=tuple(report.processor_share for report in active),
        rank_queued_share=queued if len(queued) == len(active) else (),
    )


def parts_of(
    case: Case, facts: CaseFacts, result: RankResult
) -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]:
    """Return the parts of samples, or what ran at the same time, each with its samples in seconds per launch.

    As measuring took it apart, else as the endpoint says, else groups by ranks' stamps.
    """

    def samples(stamps: NDArray[np.float64]) -> tuple[float, ...]:
        return tuple((durations(stamps) / result.launches).tolist())

    if case.mode == OVERLAP:
        every = (
            taking_part(case, result.part_stamps[:, part]) for part in range(len(OVERLAP_PARTS))
        )
        return OVERLAP_PARTS, tuple(map(samples, every))
    untold = case.concurrent or not case.groups or not case.everybody
    if facts.parts or untold or len(result.stamps) != case.ranks:
        return facts.parts, facts.group_samples_seconds
    names = tuple(f"ranks {format_ranks(members)}" for members in case.members)
    return names, tuple(samples(result.stamps[members, :]) for members in case.members)


def wrong_elements_of(case: Case, results: Iterable[RankResult]) -> int | None:
    """Return how many elements of all ranks are wrong; None where nothing was there to be compared."""
    if case.count == 0 and collective(case.collective).moves_data:
        return None
    return sum(result.mismatch.wrong_elements for result in results if result.mismatch)


def crowded(hosts: Sequence[str], ready: Sequence[Ready]) -> bool:
    """Return True if any host has more ranks than processors that these may run on, or than its quota.

    A host that does not tell where ranks may run is taken to have room.
    """
    for host in dict.fromkeys(hosts):
        here = [answer for where, answer in zip(hosts, ready, strict=True) if where == host]
        room = {processor for answer in here for processor in answer.processors}
        quotas = [
            max(1, int(answer.quota_cores)) for answer in here if answer.quota_cores is not None
        ]
        if room and len(here) > min([len(room), *quotas]):
            return True
    return False


def one_version(backend: str, versions: Sequence[str], hosts: Sequence[str]) -> str:
    """Return the version that all ranks have; BackendUnavailable where they differ."""
    differing = next(
        (rank for rank, version in enumerate(versions) if version != versions[0]), None
    )
    if differing is not None:
        raise BackendUnavailable(
            f"{backend}: rank 0 on {hosts[0]} has {versions[0]}, rank {differing} on {hosts[differing]} has "
            f"{versions[differing]}; install the same on all hosts"
        )
    return versions[0]
