"""Readings on their way into a measurement: from every process of a team, over every round of a case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ccbench.backends.base import TeamRequest
from ccbench.cases.axes import Case
from ccbench.cases.measurement import CaseFacts, Measurement, Status
from ccbench.machine.readings import DeviceReading, readings_from_json, readings_json
from ccbench.runner.measure import RankResult, merged
from ccbench.runner.workers.leader import Leader
from ccbench.runner.workers.messages import RankReport

CASE = Case("s", "cpu", "barrier", "default", "int8", "sum", 0, 0, 2)


def look(bus: int, replays: int = 0) -> str:
    before = DeviceReading(f"0000:{bus:02x}:00.0", pcie_replays=0)
    return readings_json([before], [replace(before, pcie_replays=replays)])


def report(rank: int, facts: CaseFacts) -> RankReport:
    stamps = np.cumsum(np.ones((2, 0 if rank else 3, 2)), axis=2)
    return RankReport(
        Status.OK,
        "",
        RankResult(stamps, (), 0.0, 1, "enough", None, 1.0),
        flags=facts.flags,
        facts=facts,
    )


@pytest.mark.parametrize("hosts", [(), ("north", "south")])
def test_a_measurement_has_the_devices_and_flags_of_all_processes(
    hosts: tuple[str, ...],
) -> None:
    leader = Leader(TeamRequest("cpu", 2))
    leader.hosts = hosts
    facts = (CaseFacts(devices=look(1)), CaseFacts(devices=look(2, 5), flags=("link_errors",)))
    composed = leader.composed(CASE, {rank: report(rank, facts[rank]) for rank in (1, 0)})
    _, after = readings_from_json(composed.device_readings)
    assert [one.device for one in after] == [
        (hosts[0] if hosts else "", "0000:01:00.0"),
        (hosts[1] if hosts else "", "0000:02:00.0"),
    ]
    assert composed.conditions.flags.count("link_errors") == 1


def test_a_flag_of_several_processes_is_one_flag() -> None:
    leader = Leader(TeamRequest("cpu", 2))
    facts = CaseFacts(flags=("throttled",))
    composed = leader.composed(CASE, {rank: report(rank, facts) for rank in (0, 1)})
    assert composed.conditions.flags.count("throttled") == 1
    assert composed.device_readings == ""


def test_the_readings_of_the_round_with_most_to_flag_stay() -> None:
    def one_round(readings: str) -> Measurement:
        return Measurement(CASE, Status.OK, samples_seconds=(1.0,), device_readings=readings)

    loud, quiet = one_round(look(1, 5)), one_round(look(1))
    assert (
        merged(loud, quiet).device_readings == merged(quiet, loud).device_readings == look(1, 5)
    )
