"""ccbench's CPU backend against Open MPI, MPICH and Gloo, interleaved in one run; by hand, never in CI.

    python benchmarks/cpu.py --python-openmpi E1/bin/python --python-mpich E2/bin/python \\
        --python-gloo E3/bin/python --json run.json --into docs/performance.md

Every round visits every (contender, point) once, in a shuffled order of its own. All teams live through the
whole run and sleep while another one is measured. See docs/performance.md for what is and is not equal.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that a checkout runs without being installed

from benchmarks.figures import Figures, exit_code  # noqa: E402 - the path must come first
from benchmarks.peer_teams import PeerTeam, processor_seconds  # noqa: E402
from benchmarks.points import (  # noqa: E402
    CCBENCH,
    COPY_BYTES,
    MEMCPY,
    PEERS,
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
)  # fmt: skip
from benchmarks.tables import Header, inserted, markdown  # noqa: E402
from ccbench import __version__  # noqa: E402
from ccbench.cases import Measurement  # noqa: E402
from ccbench.errors import BackendUnavailable  # noqa: E402
from ccbench.measure import durations  # noqa: E402
from ccbench.teams import ProcessTeam  # noqa: E402
from ccbench.worker import RankReport  # noqa: E402

IDLE_LOOK_SECONDS = 1.0
IDLE_LIMIT = 0.02
"""Sleeping teams may take this share of one processor together, or the run would measure them too."""


@dataclass(frozen=True)
class Options:
    """The command line. pythons: interpreter of each peer."""

    ranks: tuple[int, ...]
    rounds: int
    quick: bool
    pinned: bool
    peers: tuple[str, ...]
    pythons: dict[str, str]
    json: Path | None
    into: Path | None
    replay: Path | None
    note: str
    seed: int


@dataclass(frozen=True)
class Stop:
    """One visit to come."""

    contender: str
    ranks: int
    point: Point
    memory: str = ""


def parse(arguments: Sequence[str]) -> Options:
    """The command line as Options; exits with 2 and a line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks/cpu.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", default="2,4", help="team sizes, separated by commas (default: 2,4)")
    parser.add_argument("--rounds", type=int, help="visits to every point (default: 5, quick: 2)")
    parser.add_argument("--quick", action="store_true", help="only sizes up to 1 MiB")
    parser.add_argument("--unpinned", action="store_true", help="do not pin the peers; ccbench stays pinned")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)} (default: all)")
    for peer in PEERS:
        parser.add_argument(f"--python-{peer}", metavar="PATH", default=sys.executable,
                            help=f"interpreter that has {TITLES[peer]} (default: this one)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every sample")
    parser.add_argument("--into", type=Path, metavar="FILE", help="put the tables between FILE's markers")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="only print the tables of a --json file")
    parser.add_argument("--note", default="", help="a sentence to put above the tables")
    parser.add_argument("--seed", type=int, default=0, help="of the order of visits (default: 0)")
    given = parser.parse_args(arguments)
    try:
        ranks = tuple(sorted({int(word) for word in given.ranks.split(",")}))
    except ValueError:
        parser.error(f"--ranks: {given.ranks!r} is not a list of whole numbers; write 2,4")
    rounds = given.rounds if given.rounds is not None else 2 if given.quick else 5
    if min(ranks) < 2 or rounds < 1:
        parser.error("--ranks are 2 or more, --rounds 1 or more")
    peers = tuple(word for word in given.peers.split(",") if word)
    if unknown := set(peers) - set(PEERS):
        parser.error(f"--peers: {sorted(unknown)} unknown; choose of {', '.join(PEERS)}")
    pythons = {peer: getattr(given, f"python_{peer}") for peer in PEERS}
    return Options(ranks, rounds, given.quick, not given.unpinned, peers, pythons,
                   given.json, given.into, given.replay, given.note, given.seed)  # fmt: skip


def stops(options: Options, contenders: Sequence[tuple[str, int]], round_number: int) -> list[Stop]:
    """Every visit of one round, shuffled. contenders: (name, ranks) of the teams there are."""
    found = []
    for name, ranks in contenders:
        if name == MEMCPY:
            found += [Stop(name, ranks, Point("send_recv", COPY_BYTES), kind) for kind in (PRIVATE, SHARED)]
        else:
            own = own_points(options.quick) if name == CCBENCH else ()
            found += [Stop(name, ranks, point) for point in (*points(options.quick), *own)]
    random.Random(f"{options.seed}/{round_number}").shuffle(found)
    return found


Teams = dict[tuple[str, int], ProcessTeam | PeerTeam]


def start_teams(options: Options, scratch: Path, cleanup: ExitStack) -> Teams:
    """All teams that can be had; the others are named with the reason."""
    teams: Teams = {}
    processors = len(os.sched_getaffinity(0))
    wanted = [(name, ranks) for ranks in options.ranks for name in (CCBENCH, *options.peers)]
    if not options.quick:
        wanted.append((MEMCPY, min(2, processors)))
    for name, ranks in wanted:
        try:
            team: ProcessTeam | PeerTeam
            if name == CCBENCH:
                team = ProcessTeam("cpu", ranks)
            else:
                python = options.pythons.get(name, sys.executable)
                team = PeerTeam(name, python, ranks, options.pinned, scratch)
        except BackendUnavailable as error:
            say(f"SKIPPED {TITLES[name]} with {ranks} ranks: {error}")
            continue
        cleanup.callback(team.close)
        teams[(name, ranks)] = team
    return teams


def look_at_sleepers(teams: Teams) -> None:
    """Say so when teams use processor time while nobody asks them for anything."""
    before = {key: processor_seconds(list(team.pids)) for key, team in teams.items()}
    time.sleep(IDLE_LOOK_SECONDS)
    shares = {key: (processor_seconds(list(team.pids)) - before[key]) / IDLE_LOOK_SECONDS
              for key, team in teams.items()}  # fmt: skip
    total = sum(shares.values())
    say(f"{len(teams)} sleeping teams use {100 * total:.1f} % of one processor")
    if total > IDLE_LIMIT:
        worst = max(shares, key=lambda key: shares[key])
        say(f"WARNING: {TITLES[worst[0]]} with {worst[1]} ranks does not sleep: all figures suffer")


def visit(team: ProcessTeam | PeerTeam, stop: Stop, round_number: int) -> Visit:
    """Measure one stop."""
    blank = Visit(stop.contender, stop.ranks, stop.point, round_number, "skipped", memory=stop.memory)
    if not team.usable():
        return replace(blank, detail="its team ended in an earlier visit")
    case = copy_case(stop.memory) if stop.memory else case_for(stop.contender, stop.point, stop.ranks)
    sampling = sampling_for(case.size_bytes)
    if isinstance(team, ProcessTeam):
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
        foreign_cpu_share=seen.foreign_cpu_share,
        steal_share=seen.steal_share,
    )


def from_reports(blank: Visit, reports: Sequence[RankReport]) -> Visit:
    """A visit of a peer: the worst rank's status, rank 0's view of what all ranks share."""
    first = reports[0]
    bad = next((report for report in reports if report.status.value != "ok"), first)
    found = replace(blank, status=bad.status.value, detail=bad.detail)
    if first.result is None:
        return found
    foreign, steal = first.shares or (None, None)
    return replace(
        found,
        samples_seconds=tuple((durations(first.result.stamps) / first.result.launches).tolist()),
        calls_per_sample=first.result.launches,
        core_latency_seconds=first.core_latency_seconds[0],
        foreign_cpu_share=foreign,
        steal_share=steal,
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
                visits.append(visit(teams[(stop.contender, stop.ranks)], stop, round_number))
                if visits[-1].status not in ("ok", "skipped"):
                    say(f"{visits[-1].status}: {stop}: {visits[-1].detail}")
            say(f"round {round_number + 1} of {options.rounds}: {time.monotonic() - began:.0f} s")
    return header, visits


def describe(options: Options, teams: Teams) -> Header:
    """Where this runs, with what."""
    versions = {
        CCBENCH: f"{__version__}, NumPy {metadata.version('numpy')}, Python {platform.python_version()}"
    }
    pinned = "rank r on processor r mod processors"
    bindings = {CCBENCH: pinned}
    for (name, _), team in teams.items():
        if isinstance(team, PeerTeam):
            versions[name] = team.version
            bindings[name] = pinned if options.pinned or name == MEMCPY else "ranks not pinned"
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
    words = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
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
        Visit(**{**row, "point": Point(**row["point"]), "samples_seconds": tuple(row["samples_seconds"])})
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
