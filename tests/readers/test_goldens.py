"""Whole outputs, dumps, traces and schedules, and everything that the readers make of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter

from ccbench.errors import CcbenchError
from ccbench.readers.benchmarks import read_log
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.readers.evidence import read_evidence
from ccbench.readers.machines import read_source
from ccbench.readers.schedules import ScheduleFile, use_schedule_files
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.fold import fitted, fold, suite_text
from ccbench.readers.traces.hang import hang_of
from ccbench.readers.traces.join import have_one_clock, instances
from ccbench.readers.traces.lag import lag
from ccbench.readers.traces.reading import read_traces
from ccbench.results.imported_runs import imported
from ccbench.schedules.describe import describe
from ccbench.topology.classes import topology_class
from ccbench.topology.diagnosis import diagnose
from tests.goldens import check, plain, text_of

GOLDENS = Path(__file__).parent / "goldens"
INPUTS = sorted(GOLDENS.glob("*/*.in*"))

MOST = 1200
"""Characters of a list that are written; its rest is a digest."""

STATED = (
    StatedSystem(),
    StatedSystem(ranks=16, nodes=2, library="nccl", dtype="float32"),
    StatedSystem(machine="box", devices=8, source="hgx-h100"),
)


def short(value: Any) -> Any:
    """Return JSON's own types without what is empty, entries of lists on a line each."""
    if isinstance(value, dict):
        return {
            name: short(entry) for name, entry in value.items() if entry not in ("", [], {})
        }
    if not isinstance(value, list):
        return value
    rows = "\n".join(json.dumps(row, ensure_ascii=False, sort_keys=True) for row in value)
    return (rows[:MOST] + digest(rows[MOST:])).replace('"', "").split("\n")


def digest(rest: str) -> str:
    """Return what changes when ``rest`` does, nothing for nothing."""
    return rest and f"... {hashlib.sha256(rest.encode('utf-8', 'replace')).hexdigest()[:16]}"


def made_by(make: Callable[..., Any], *of: Any) -> dict[str, Any]:
    """Return what ``make`` returns as JSON's own types, or the error that it ends with."""
    try:
        return dict(plain(make(*of)))
    except CcbenchError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def of_benchmarks(place: Path) -> dict[str, Any]:
    """Return the log, its run, and what of the run differs where a user states more."""
    log = read_log(place)
    alone, *others = (made_by(imported, log, system) for system in STATED)
    differing = [
        {name: entry for name, entry in run.items() if entry != alone.get(name)}
        for run in others
    ]
    return {"log": log, "run": alone, "as stated": differing[0], "on a machine": differing[1]}


def of_machines(place: Path) -> dict[str, Any]:
    """Return the graph, its class, and what is wrong with it."""
    graph = read_source(str(place))
    matrix = digest(str(graph.matrix))
    return vars(graph) | {
        "matrix": matrix,
        "own class": topology_class(graph),
        "findings": diagnose(graph),
    }


def of_schedules(place: Path) -> dict[str, Any]:
    """Return the schedule of each algorithm of a file."""
    try:
        rows = use_schedule_files([ScheduleFile(place.stem, place.read_text(encoding="utf-8"))])
        return {row.name: describe(row.build(row.ranks or 4, 2)).splitlines() for row in rows}
    finally:
        use_schedule_files(())


def of_statements(place: Path) -> dict[str, Any]:
    """Return what the files of an incident say together."""
    evidence = read_evidence(sorted(place.iterdir()) if place.is_dir() else [place])
    return vars(evidence) | {"trace": evidence.gap}


def trace_of_calls(place: Path) -> Trace:
    """Return the trace whose fields a file names: a job that a test made up."""
    fields, hints = json.loads(place.read_text(encoding="utf-8")), get_type_hints(Trace)
    return Trace(
        **{name: TypeAdapter(hints[name]).validate_python(fields[name]) for name in fields}
    )


def of_traces(place: Path) -> dict[str, Any]:
    """Return a job, why it hangs, and its cases."""
    trace = trace_of_calls(place) if ".calls." in place.name else read_traces([place])
    hang, folded, joined = hang_of(trace), fold(trace), instances(trace)[0]
    clock = have_one_clock(joined)
    here, refused = fitted(folded.cases, 2)
    return {
        "trace": trace,
        "hang": hang and [hang.sentence, *hang.causes, *hang.waits],
        "lag": lag(trace, hang),
        "last, waits": [(each.last_rank(clock), each.waits(clock)) for each in joined],
        "fold": folded,
        "concurrent": [overlap.concurrent for overlap in folded.overlaps],
        "suite": suite_text(folded.cases, "job").splitlines(),
        "on two": [*here.values(), *refused.values()],
    }


MAKERS = {
    "benchmarks": of_benchmarks,
    "machines": of_machines,
    "schedules": of_schedules,
    "statements": of_statements,
    "traces": of_traces,
}


@pytest.mark.parametrize("place", INPUTS, ids=lambda place: place.name)
def test_what_is_made_of_a_whole_input(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.parent)
    made = short(made_by(MAKERS[place.parent.name], Path(place.name)))
    check(place.parent / f"{place.name.partition('.in')[0]}.expected.json", text_of(made))
