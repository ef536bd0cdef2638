"""Reads the output of NVIDIA's nccl-tests: the text of every version, whole or damaged, and its JSON.

A text that holds nothing of nccl-tests gives a log without tables and a notice that says so: ``read`` takes
any text and raises nothing. Forms and sources are named in the modules this one is made of.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers import nccl_tests_facts as facts
from ccbench.results.importers.readers import nccl_tests_inference as inference
from ccbench.results.importers.readers.nccl_tests_columns import header_layout
from ccbench.results.importers.readers.nccl_tests_inference import log_outcome, table_outcome
from ccbench.results.importers.readers.nccl_tests_lines import Line, lines_of
from ccbench.results.importers.readers.nccl_tests_tables import OpenRun, OpenTable, Tables
from ccbench.topology.graph import Notice

_MARKS = (
    "Avg bus bandwidth",
    "nccl-tests version",
    "rccl-tests: Version",
    "Collective test starting",
    "minBytes",
)
_LOOKED_AT = 4000
"""Lines of a text that ``recognises`` looks at, messages of the library not counted."""


def recognises(text: str) -> bool:
    """Whether ``text`` is output of nccl-tests or its ports, judged by its own words or a row's figures."""
    from ccbench.results.importers.readers import nccl_tests_json

    if nccl_tests_json.recognises(text):
        return True
    tables = Tables()
    for line in islice((line for line in lines_of(text) if not line.message), _LOOKED_AT):
        if "time:avg" in line.text:  # nccom-test, whose rows and closing line look the same
            return False
        if any(mark in line.text for mark in _MARKS) or header_layout(line.cells()) is not None:
            return True
        if line.text[:1].isspace() or line.text[:1].isdigit():
            tables.take(line)
            if any(run.tables for run in tables.runs):
                return True
    return False


def read(text: str) -> ImportedLog:
    """The log that ``text`` is; see the module. Sizes are today's nccl-tests sizes, figures as printed."""
    from ccbench.results.importers.readers import nccl_tests_json

    return nccl_tests_json.read(text) if nccl_tests_json.recognises(text) else read_text(text)


def read_text(text: str) -> ImportedLog:
    """The log of a text output, of nccl-tests or a port that prints the same tables."""
    tables, around = Tables(), _Around()
    for line in lines_of(text):
        around.take(line)
        if line.message:
            tables.learn(line.text)
        else:
            tables.take(line)
    runs = tables.finish()
    program = around.collective
    built = [_table(table, run, program, around.environment) for run in runs for table in run.tables]
    notices = [*tables.notices, *(notice for _, found in built for notice in found)]
    kept = tuple(table for table, _ in built)
    outcome, detail = log_outcome(kept, runs, around.failure, around.failure_line)
    if outcome in (Outcome.HUNG, Outcome.CRASHED):
        kept = tuple(t if t.outcome is Outcome.COMPLETE else replace(t, outcome=outcome) for t in kept)
    if not kept and not runs and not around.versions:
        notices.append(Notice("unsupported", "no line of nccl-tests is in this text"))
    devices = {device: None for run in runs for device in run.devices}
    return ImportedLog(
        tool="rccl-tests" if around.is_rccl else "nccl-tests",
        library="RCCL" if around.is_rccl else "NCCL" if kept or "NCCL" in around.versions else "",
        tables=kept,
        devices=tuple(devices),
        versions=around.versions,
        environment=around.environment,
        hints=tuple(around.hints),
        notices=tuple(sorted(notices, key=lambda notice: notice.line or 0)),
        outcome=outcome,
        detail=detail,
    )


class _Around:
    """What lines say wherever they stand."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.hints: dict[str, None] = {}
        self.collective = ""
        self.failure = ""
        self.failure_line = ""
        self.is_rccl = False

    def take(self, line: Line) -> None:
        text = line.text
        if line.message or (not text[:1].isspace() and not text[:1].isdigit()):
            for name, version in facts.version_facts(text).items():
                self.versions.setdefault(name, version)
            self.environment |= facts.environment_facts(text)
            self.collective = self.collective or facts.program_collective(text)
            self.is_rccl = self.is_rccl or "rccl-tests" in text or "RCCL version" in text
            found = facts.failure(text)
            if found and self.failure != "crashed":
                self.failure, self.failure_line = found, text.strip()[:200]
        if line.message and len(self.hints) < facts.MOST_HINTS and facts.is_hint(text):
            self.hints[text.partition("] ")[2]] = None


def _table(
    table: OpenTable, run: OpenRun, program: str, environment: dict[str, str]
) -> tuple[ImportedTable, list[Notice]]:
    devices = list(run.devices)
    named = next(filter(None, map(facts.program_collective, run.programs)), "") or program
    listed = run.ranks or inference.ranks_of_devices(devices)
    columns = table.layout.head if table.layout is not None else ()
    collective = named or inference.likely_collective(table.rows, columns, listed)
    told: dict[str, Any] = dict(run.config) | {
        key: value for key, value in run.written.items() if key in ("backend", "backend_version")
    }
    if collective and not named:
        told["collective_from"] = "figures"
    if table.wrong_values is not None:
        told["out_of_bounds"] = table.wrong_values
    ranks = listed
    shown = _ranks_of_figures(table.rows, collective)
    if shown is not None and (listed is None or shown > listed):  # lists of devices are often cut
        ranks, told["ranks_from"] = shown, "figures"
    nodes = run.nodes or inference.nodes_of_devices(devices, ranks)
    if nodes and ranks and not run.nodes and len({device.rank for device in devices}) < ranks:
        told["nodes_from"] = "device numbers"
    outcome, notices = table_outcome(table, run)
    return (
        ImportedTable(
            collective,
            inference.with_sizes_of_today(_with_ops(table.rows, collective), collective, ranks),
            ranks,
            nodes,
            run.written.get("algorithm") or _forced(environment, "ALGO"),
            run.written.get("protocol") or _forced(environment, "PROTO"),
            _mode(run),
            table.average,
            outcome,
            table.line,
            told,
        ),
        notices,
    )


def _ranks_of_figures(rows: list[ImportedRow], collective: str) -> int | None:
    blocks = inference.ranks_of_counts(rows)
    if blocks is not None and blocks > 1:
        return blocks
    return inference.ranks_of_rates(rows, collective)


def _with_ops(rows: list[ImportedRow], collective: str) -> list[ImportedRow]:
    """Versions without a column for the op leave it out of collectives that have none."""
    row = COLLECTIVES.get(collective)
    if row is None or row.reduces:
        return rows
    return [replace(one, op="none") if not one.op else one for one in rows]


def _forced(environment: dict[str, str], what: str) -> str:
    """The one algorithm or protocol that NCCL_ALGO or NCCL_PROTO allows; lists and exclusions force none."""
    value = environment.get(f"NCCL_{what}", "")
    return value.lower() if value.isalnum() else "default"


def _mode(run: OpenRun) -> str:
    if written := run.written.get("mode"):
        return str(written)
    if run.config.get("graph_launches"):
        return "graph"
    return "isolated" if run.config.get("blocking") else "streaming"
