"""One run: start the teams, visit every point with every contender round by round, print what came out."""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.figures import Figures, exit_code
from benchmarks.options import Options, parse
from benchmarks.peer_teams import ROOT, PeerTeam, processor_seconds
from benchmarks.points import (
    CCBENCH,
    COPY_BYTES,
    COPY_POINT,
    MEMCPY,
    PRIVATE,
    SHARED,
    TITLES,
    Point,
    Visit,
    case_for,
    copy_case,
    own_points,
    points,
    sampling_for,
)
from benchmarks.tables import Header, inserted, markdown
from ccbench.backends.base import TeamRequest
from ccbench.cases.measurement import Measurement
from ccbench.errors import BackendUnavailable
from ccbench.runner.measure import durations
from ccbench.runner.workers.messages import RankReport
from ccbench.runner.workers.team import WorkerTeam
from ccbench.version import __version__

BOUNDED_POINT = Point("all_reduce", COPY_BYTES)
SETTLE_SECONDS = 1.0
IDLE_LOOK_SECONDS = 2.0
PINNED = "rank r pinned to processor r mod processors"
IDLE_LIMIT = 0.05
"""Sleeping teams may take this share of one processor together, or the run would measure them too."""


@dataclass(frozen=True)
class Stop:
    """One visit to come."""

    contender: str
    ranks: int
    point: Point
    memory: str = ""


def stops(
    options: Options, contenders: Sequence[tuple[str, int]], round_number: int
) -> list[Stop]:
    """Every visit of one round. contenders: (name, ranks) of the teams there are.

    Points come in shuffled order, and at each point its contenders one after the other, shuffled: memory and
    processors of a shared machine change their speed within seconds, and what is compared should meet the
    same speed. For the same reason the copies are next to the all_reduce whose bound they give.
    """
    shuffler = random.Random(f"{options.seed}/{round_number}")
    blocks = [
        (ranks, point)
        for ranks in options.ranks
        for point in (*points(options.quick), *own_points(options.quick))
    ]
    shuffler.shuffle(blocks)
    found: list[Stop] = []
    for ranks, point in blocks:
        names = [name for name, size in contenders if size == ranks and name != MEMCPY]
        if point in own_points(options.quick):
            names = [name for name in names if name == CCBENCH]
        block = [Stop(name, ranks, point) for name in names]
        if point == BOUNDED_POINT and ranks == min(options.ranks):
            copies = [size for name, size in contenders if name == MEMCPY]
            block += [
                Stop(MEMCPY, size, COPY_POINT, kind)
                for size in copies
                for kind in (PRIVATE, SHARED)
            ]
        shuffler.shuffle(block)
        found += block
    return found


Teams = dict[tuple[str, int], WorkerTeam | PeerTeam]


def start_teams(options: Options, scratch: Path, cleanup: ExitStack) -> Teams:
    """All teams that can be had; the others are named with the reason."""
    teams: Teams = {}
    processors = len(os.sched_getaffinity(0))
    expected = [(name, ranks) for ranks in options.ranks for name in (CCBENCH, *options.peers)]
    if not options.quick:
        expected.append((MEMCPY, min(2, processors)))
    for name, ranks in expected:
        try:
            team: WorkerTeam | PeerTeam
            if name == CCBENCH:
                team = WorkerTeam(TeamRequest("cpu", ranks))
            else:
                python = options.pythons.get(name, sys.executable)
                team = PeerTeam(name, python, ranks, name in (*options.pinned, MEMCPY), scratch)
        except BackendUnavailable as error:
            say(f"SKIPPED {TITLES[name]} with {ranks} ranks: {error}")
            continue
        cleanup.callback(team.close)
        teams[(name, ranks)] = team
    return teams


def look_at_sleepers(teams: Teams) -> None:
    """Say so when teams use processor time while nobody asks them for anything."""
    time.sleep(SETTLE_SECONDS)  # what starting left to do
    before = {key: processor_seconds(list(team.pids)) for key, team in teams.items()}
    time.sleep(IDLE_LOOK_SECONDS)
    shares = {
        key: (processor_seconds(list(team.pids)) - before[key]) / IDLE_LOOK_SECONDS
        for key, team in teams.items()
    }
    total = sum(shares.values())
    say(f"{len(teams)} sleeping teams use {100 * total:.1f} % of one processor")
    if total > IDLE_LIMIT:
        worst = max(shares, key=lambda key: shares[key])
        name, ranks = worst
        share = f"{100 * shares[worst]:.0f} %"
        say(f"WARNING: {TITLES[name]} with {ranks} ranks takes {share}: all figures suffer")


def visit(team: WorkerTeam | PeerTeam, stop: Stop, round_number: int) -> Visit:
    """Measure one stop."""
    blank = Visit(
        stop.contender, stop.ranks, stop.point, round_number, "skipped", memory=stop.memory
    )
    if not team.usable():
        return replace(blank, detail="its team ended in an earlier visit")
    case = (
        copy_case(stop.memory)
        if stop.memory
        else case_for(stop.contender, stop.point, stop.ranks)
    )
    sampling = sampling_for(case.size_bytes)
    if isinstance(team, WorkerTeam):
        return from_measurement(blank, team.run(case, sampling))
    return from_reports(blank, team.run(case, sampling))


def from_measurement(blank: Visit, measurement: Measurement) -> Visit:
    """A visit of ccbench's own team."""
    seen = measurement.conditions
    return replace(
        blank,
        status=measurement.status.value,
        detail=measurement.detail,
        samples_seconds=measurement.samples_seconds,
        calls_per_sample=measurement.launches_per_sample,
        algorithm=measurement.algorithm_used,
        core_latency_seconds=seen.core_latency_before_seconds,
        other_cpu_share=seen.other_cpu_share,
        steal_share=seen.steal_share,
    )


def from_reports(blank: Visit, reports: Sequence[RankReport]) -> Visit:
    """A visit of a peer: the worst rank's status, rank 0's view of what all ranks share."""
    first = reports[0]
    bad = next((report for report in reports if report.status.value != "ok"), first)
    found = replace(blank, status=bad.status.value, detail=bad.detail)
    if first.result is None:
        return found
    seen = first.conditions
    return replace(
        found,
        samples_seconds=tuple(
            (durations(first.result.stamps) / first.result.launches).tolist()
        ),
        calls_per_sample=first.result.launches,
        core_latency_seconds=seen.core_latency_before_seconds,
        other_cpu_share=seen.other_cpu_share,
        steal_share=seen.steal_share,
    )


def run(options: Options) -> tuple[Header, list[Visit]]:
    """Measure everything."""
    os.environ["PYTHONPATH"] = str(ROOT)  # for the workers of ccbench's own teams
    visits: list[Visit] = []
    with tempfile.TemporaryDirectory(prefix="ccbench-peers-") as folder, ExitStack() as cleanup:
        teams = start_teams(options, Path(folder), cleanup)
        look_at_sleepers(teams)
        header = describe(options, teams)
        for round_number in range(options.rounds):
            began = time.monotonic()
            for stop in stops(options, list(teams), round_number):
                started = time.monotonic()
                found = visit(teams[(stop.contender, stop.ranks)], stop, round_number)
                visits.append(replace(found, wall_seconds=time.monotonic() - started))
                if visits[-1].status not in ("ok", "skipped"):
                    say(f"{visits[-1].status}: {stop}: {visits[-1].detail}")
            say(
                f"round {round_number + 1} of {options.rounds}: {time.monotonic() - began:.0f} s"
            )
    return header, visits


def describe(options: Options, teams: Teams) -> Header:
    """Where this runs, with what."""
    python = f"NumPy {metadata.version('numpy')}, Python {platform.python_version()}"
    versions = {CCBENCH: f"{__version__}, {python}"}
    bindings = {CCBENCH: PINNED}
    settings: dict[str, dict[int, str]] = {}
    for (name, ranks), team in teams.items():
        if isinstance(team, PeerTeam):
            versions[name] = team.version
            settings.setdefault(name, {})[ranks] = team.setting
            one_each = all(len(processors) == 1 for processors in team.bindings)
            bindings[name] = PINNED if one_each else "ranks not pinned"
    for name, by_ranks in settings.items():
        texts = sorted(set(by_ranks.values()))
        each = [f"{text} with {ranks} ranks" for ranks, text in by_ranks.items()]
        versions[name] += ", " + (texts[0] if len(texts) == 1 else ", ".join(each))
    return Header(
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        machine=machine_line(),
        versions=versions,
        bindings=bindings,
        rounds=options.rounds,
        note=options.note,
    )


def machine_line() -> str:
    """Processor, how many, virtual or not, memory, kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    words = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kind = "virtual machine" if "hypervisor" in words.get("flags", "") else "no hypervisor seen"
    family = f" family {words['cpu family']}" if "cpu family" in words else ""
    return (
        f"{len(os.sched_getaffinity(0))} x {words.get('model name', platform.machine())}{family}, {kind}, "
        f"{memory_gib:.0f} GiB, Linux {platform.release()}"
    )


def to_json(header: Header, visits: Sequence[Visit]) -> str:
    """Everything that was measured."""
    return json.dumps({"header": asdict(header), "visits": [asdict(one) for one in visits]})


def from_json(text: str) -> tuple[Header, list[Visit]]:
    """What ``to_json`` wrote."""
    document: dict[str, Any] = json.loads(text)
    visits = [
        Visit(
            **{
                **row,
                "point": Point(**row["point"]),
                "samples_seconds": tuple(row["samples_seconds"]),
            }
        )
        for row in document["visits"]
    ]
    return Header(**document["header"]), visits


def say(text: str) -> None:
    """Progress and warnings go to stderr, tables to stdout."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Measure or replay, then print; returns the exit code."""
    options = parse(arguments)
    if not hasattr(os, "sched_setaffinity"):
        say("benchmarks/cpu.py pins ranks and reads /proc: it runs on Linux only")
        return 2
    if options.replay:
        header, visits = from_json(options.replay.read_text())
        header = replace(header, note=options.note or header.note)
    else:
        header, visits = run(options)
    if options.json:
        options.json.write_text(to_json(header, visits))
    figures = Figures(visits)
    text = markdown(header, figures)
    print(text)
    if options.into:
        options.into.write_text(inserted(options.into.read_text(), text))
    return exit_code(figures)
