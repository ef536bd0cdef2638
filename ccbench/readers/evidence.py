"""Evidence: everything that files of one incident say, by the readers that know each part of them.

Every reader is asked of every text, so that a paste of several tools' output is read whole: machines (as
graphs), tables of benchmarks, calls of recorded jobs, and statements. What no reader owns is listed by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from textwrap import dedent

from ccbench.errors import CcbenchError, MachineError, UsageError
from ccbench.readers import machines
from ccbench.readers.benchmarks import log_of_text
from ccbench.readers.benchmarks.log import ImportedLog, LogOutcome
from ccbench.readers.lines import (
    file_text,
    is_description,
    plain_lines,
    repeated_tags,
    unquoted,
)
from ccbench.readers.statements import Statement, formats
from ccbench.readers.traces import watchdog
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.reading import is_trace, read_traces
from ccbench.topology.graph import Topology
from ccbench.units import shown

_MUCH_MORE = 1.2

_JUDGED_LINES = 400
"""Of a text, which show whether a tag hides what lines say."""

OWNED_BY_MACHINES = {
    "nccl_xml": r"^\s*<",
    "nccl_log": r"[NR]CCL |^\s*\+ |/[\d.]+/[A-Z]{3}\)",
    "npu_smi": r"^\s*(?:NPU|PHY|Legend|X\s|Self|SYS|HCCS|PI[XB]|PXB|PHB|NIC)",
    "rocm_smi": r"^\s*(?:GPU|=+|\(Topology\)|GPU\[|DRM)",
    "amd_smi": r"^\s*(?:[0-9a-f]{4}:|[A-Z ]+TABLE:|Legend|SELF|ENABLED|[A-Z0-9/ -]+ = |[{}\[\]\"])",
    "smi_topo": r"^\s*(?:GPU\d|NIC\d|mlx|X\s|Legend|SYS|NODE|PHB|PXB|PIX|NV#|CPU|NIC Legend|[\w.]+:?\s+X\b)",
    "smi_nvlink": r"^\s*(?:GPU \d|Link \d|NVML|Unable)",
}
"""Lines that belong to a reader of machines, by what they begin with."""

_OWNED_BY_TABLES = (
    r"(?i)^\s*(?:#|\||>|//)|^\s*\d[\d.,]*\s+[\d.]|[{}\",]|nccl-tests|mpirun|srun|_perf\b"
    r"|(?:size|bytes).*(?:time|busbw|bandwidth|latency)|bandwidth *:"  # headings, averages
)


_DUMPS = (b"{", b"[{", b"\x80", b"(dp", b"(lp", b"\x1f", b"PK")
"""Beginnings of JSON, pickles and archives, which have no lines to read."""


_LOST = ("damaged_line", "truncated")
"""Kinds of warnings that tell of calls that were not read."""


@dataclass(frozen=True)
class TextPart:
    """Lines of one file that one reader took, or that none did. form: name of the reader for people."""

    file: str
    form: str
    first: int
    last: int


@dataclass(frozen=True)
class Evidence:
    """Contents of files. traces: paths of ``trace``. problems: why a part could not be read, or how, a line each."""

    files: tuple[str, ...] = ()
    statements: tuple[Statement, ...] = ()
    machines: tuple[tuple[str, Topology], ...] = ()
    logs: tuple[tuple[Path, ImportedLog], ...] = ()
    trace: Trace | None = None
    traces: tuple[Path, ...] = ()
    parts: tuple[TextPart, ...] = ()
    unread: tuple[TextPart, ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, *kinds: str) -> list[Statement]:
        """Statements of ``kinds``, in the order in which they were said."""
        return [statement for statement in self.statements if statement.kind in kinds]

    @property
    def gap(self) -> str:
        """Why the recorded job cannot show that nothing is wrong, '' where it can or none is here."""
        trace = self.trace
        if trace is None:
            return ""
        if not (trace.communications or trace.progress):
            return "no call is recorded"
        return next((row.text for row in trace.warnings if row.kind in _LOST), "")


def read_evidence(paths: Sequence[Path]) -> Evidence:
    """Return what the files at ``paths`` say together; UsageError where one cannot be opened.

    Folders, archives and dumps of a job are read as one recorded job.
    """
    paths = list({path.resolve(): path for path in paths}.values())  # each once
    traces = [path for path in paths if is_trace(path)]
    # A log may hold lines of a hang beside others, so what is no dump is read as text, too.
    dumps = []
    for path in traces:
        with suppress(OSError), path.open("rb") as file:
            dumps += [path] if file.read(64).lstrip().startswith(_DUMPS) else []
    texts = [
        (path, file_text(path, "what a tool printed", "that matters"))
        for path in paths
        if path not in traces or (path.is_file() and path not in dumps)
    ]
    traces += [
        path
        for path, text in texts
        if path not in traces
        and "ProcessGroupNCCL" in text
        and watchdog.recognises(text.encode("utf-8", "replace"))
    ]
    evidence = [_of_text(path, text) for path, text in texts]
    trace, problems = None, [problem for part in evidence for problem in part.problems]
    if traces:
        try:
            trace = read_traces(traces)
        except UsageError as error:
            problems.append(str(error))
    return Evidence(
        tuple(str(path) for path in paths),
        tuple(statement for part in evidence for statement in part.statements),
        tuple(machine for part in evidence for machine in part.machines),
        tuple(log for part in evidence for log in part.logs),
        trace,
        tuple(traces) if trace is not None else (),
        (
            *(part for single in evidence for part in single.parts),
            *(
                TextPart(path.name, "recorded job", 0, 0)
                for path in traces
                if trace is not None
            ),
        ),
        tuple(part for single in evidence for part in single.unread),
        tuple(problems),
    )


def _untagged(text: str) -> tuple[str, str]:
    """(text without the tag or quotes that hide what its lines say, remark on it); as it is where none does."""
    # An indented paste is the same text.
    text = dedent(text)
    lines = text.split("\n")
    judged = lines[:_JUDGED_LINES]

    def understood(tried: Sequence[str]) -> int:
        joined = "\n".join(tried)
        count = sum(
            1 + sum(map(bool, statement.values.values()))
            for module in formats()
            for statement in module.read(joined)
        )
        for form in machines.READERS:
            reader = machines.reader(form)
            with suppress(MachineError):
                count += len(reader.read(joined).devices) if reader.recognises(joined) else 0
        return count

    best, remark, most = lines, "", _MUCH_MORE * understood(judged)
    records = unquoted(judged)
    if records != judged and (count := understood(records)) > most:
        best, remark, most = (
            unquoted(lines),
            "lines are records or quoted; their texts were read",
            count,
        )
    # What says hardly more without its beginnings has them for a reason.
    for tag in repeated_tags(judged):
        if (count := understood(tag.removed(judged))) > most:
            best, most = tag.removed(lines), count
            remark = f"lines begin with {shown(tag.example)}, which was left out as a tag"
    # What has no tag stays the one text that it is: logs may be large.
    return "\n".join(best) if remark else text, remark


def _of_text(path: Path, original: str) -> Evidence:
    name = path.name
    if is_description(original):
        return Evidence(
            (str(path),), unread=(TextPart(name, "", 1, len(plain_lines(original))),)
        )
    text, remark = _untagged(original)
    owners: dict[int, str] = {}
    owned_by: list[tuple[str | re.Pattern[str], str]] = []
    statements = []
    for module in formats():
        new = [replace(statement, file=name) for statement in module.read(text)]
        statements += new
        owners |= dict.fromkeys((statement.line for statement in new), module.FORM)
        owned_by[:0] = [(module.OWNED, module.FORM)] if new else []
    topologies = []
    for form in machines.READERS:
        reader = machines.reader(form)
        # What one recognises may be another's words, or too little of its own.
        with suppress(MachineError):
            if reader.recognises(text):
                topologies.append((name, replace(reader.read(text), name=name)))
                owned_by.append((OWNED_BY_MACHINES[form], form.replace("_", " ")))
    logs = []
    with suppress(CcbenchError):
        log = log_of_text(original, name)
        # A program may end before its first table.
        if log.tables or log.outcome in (LogOutcome.CRASHED, LogOutcome.HUNG):
            logs.append((path, replace(log, source=str(path))))
            owned_by.append((_OWNED_BY_TABLES, log.tool))
        # Rows, and the line that the log's detail quotes.
        quoted = map(int, re.findall(r"^line (\d+):", log.detail))
        rows = (row.line for table in log.tables for row in table.rows)
        owners |= dict.fromkeys((*rows, *quoted), log.tool)
    unread = dict[int, str]()
    for number, line in enumerate(plain_lines(text), 1):
        if number not in owners and line.strip():
            owner = next((by for pattern, by in owned_by if re.search(pattern, line)), "")
            (owners if owner else unread)[number] = owner
    return Evidence(
        (str(path),),
        tuple(sorted(statements, key=lambda statement: statement.line)),
        tuple(topologies),
        tuple(logs),
        parts=tuple(_parts(name, owners)),
        unread=tuple(_parts(name, unread)),
        problems=((f"{name}: {remark}",) if remark else ()),
    )


def _parts(name: str, owners: dict[int, str]) -> Iterator[TextPart]:
    """Ranges of consecutive lines of one owner."""
    ranges = groupby(
        enumerate(sorted(owners)), lambda item: (owners[item[1]], item[1] - item[0])
    )
    for (form, _), numbered in ranges:
        numbers = [number for _, number in numbered]
        yield TextPart(name, form, numbers[0], numbers[-1])
