"""Other tools' outputs become runs: from a file to an ImportedLog, the reader chosen by content."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice
from os import PathLike
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

from ccbench.errors import UsageError
from ccbench.findings import SourceWarning
from ccbench.flags import Flag
from ccbench.readers.lines import (
    file_text,
    is_description,
    repeated_tags,
    unquoted,
)
from ccbench.units import shown

if TYPE_CHECKING:
    from ccbench.readers.benchmarks.log import ImportedLog, ImportedRow, LogReader

_JUDGED_LINES = 5000
"""Lines on which tags are tried out, before all are read without the one that uncovers the most rows."""

_MOST_TAGS = 4
"""Loggers, launchers and containers that may each have written something before a line."""

FORMS = (
    "nccl-tests and rccl-tests (text, JSON, CSV), OSU micro-benchmarks, Intel MPI Benchmarks, torch "
    "all_reduce_bench, PARAM comms, mscclpp-test, nccom-test, hccl_test, ucc_perftest, Gloo's benchmark, and "
    "all-reduces of servers (aiconfigurator's tables, vLLM's and TensorRT-LLM's benchmarks)"
)


@cache
def readers() -> dict[str, LogReader]:
    """Return readers by name, in the order they are asked: those with words of their own first."""
    from ccbench.readers.benchmarks import (
        column_tables,
        nccl_reports,
        nccl_tests,
        serving_tables,
    )
    from ccbench.readers.benchmarks import torch_benchmarks as torch
    from ccbench.readers.benchmarks.log import LogReader

    listed = (
        LogReader("serving_tables", serving_tables.recognises, serving_tables.read),
        *column_tables.READERS,
        LogReader("param", torch.is_param, torch.read_param),
        LogReader("torch_bench", torch.is_all_reduce_bench, torch.read_all_reduce_bench),
        LogReader("nccl_reports", nccl_reports.recognises, nccl_reports.read),
        LogReader("nccl_tests", nccl_tests.recognises, nccl_tests.read),
    )
    return {reader.name: reader for reader in listed}


def read_log(path: str | PathLike[str]) -> ImportedLog:
    """Return what the file at ``path`` says, by the first reader that recognises its content, not its name.

    Raises UsageError when the file cannot be read, is larger than LARGEST_TEXT_BYTES, or holds nothing that a
    reader knows.
    """
    text = file_text(Path(path), "a file with a tool's output", "with the tables")
    return replace(log_of_text(text, str(path)), source=str(path))


def log_of_text(text: str, place: str) -> ImportedLog:
    """Return what ``text`` says: of the first reader that finds rows in it, else of the first that knows it.

    Where tags or quotes before and around its lines hide rows, it is read without them, and a remark of
    the kind ``assumed`` names the tag. place: where the text comes from, with which errors begin.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    log, error = _read(text)
    lines = text.split("\n")
    for _ in range(_MOST_TAGS):
        uncovered, remark = _uncovered(lines, log)
        if not remark:
            break
        lines, kept = uncovered, log.warnings if log else ()
        log, error = _read("\n".join(uncovered))
        if log is not None:
            remarks = (warning for warning in kept if warning.kind == "assumed")
            own = SourceWarning("assumed", remark)
            log = replace(log, warnings=(*remarks, own, *log.warnings))
    if log is not None:
        return log
    if error is not None:
        raise UsageError(f"{place}: {error}") from error
    beginning = shown(text.strip())
    raise UsageError(
        f"{place}: no benchmark output that ccbench knows: {beginning}; known are {FORMS}"
    )


def _read(text: str) -> tuple[ImportedLog | None, UsageError | None]:
    """The log of the first reader that finds rows, else of the first that reads; or the first error."""
    # Titles begin lines, and an indented paste is the same text.
    if text.lstrip("\n")[:1].isspace():
        text = dedent(text)
    first: ImportedLog | None = None
    first_error: UsageError | None = None
    for reader in () if is_description(text) else readers().values():
        if not reader.recognises(text):
            continue
        try:
            log = reader.read(text)
        except UsageError as error:
            first_error = first_error or error
            continue
        if first is None:
            first = log
        if any(table.rows for table in log.tables):
            # A reader that knew the text without finding a table knew what it is about.
            return replace(
                log,
                library=log.library or first.library,
                versions={**first.versions, **log.versions},
                environment={**first.environment, **log.environment},
            ), None
    return first, first_error


def _is_sound(row: ImportedRow) -> bool:
    return not {Flag.INCOMPLETE, Flag.SURPLUS_COLUMNS} & set(row.flags)


def _understood(text: str) -> tuple[int, int, int]:
    """How much is read of ``text``: whole rows, facts of their tables, and, negative, remarks."""
    log, _ = _read(text)
    if log is None:
        return 0, 0, 0
    rows = sum(_is_sound(row) for table in log.tables for row in table.rows)
    facts = sum(bool(table.collective) + bool(table.ranks) for table in log.tables)
    return rows, facts, -len(log.warnings)


def _uncovered(lines: list[str], log: ImportedLog | None) -> tuple[list[str], str]:
    """(lines, remark): ``lines`` without what hides rows, and what that was; a remark only if it did.

    log: what they say as they are. Tried on what is no message of a library, at most _JUDGED_LINES of it.
    """
    rows = [row for table in (log.tables if log else ()) for row in table.rows]
    if any(row.line == 0 for row in rows):  # a document, whose lines mean nothing by themselves
        return lines, ""
    sound = {row.line for row in rows if _is_sound(row)}
    numbered = (
        (number, line) for number, line in enumerate(lines, 1) if "CCL INFO" not in line
    )
    judged = list(islice(numbered, _JUDGED_LINES))
    bare = [line for _, line in judged]
    if not sound and unquoted(bare) != bare:
        return unquoted(lines), "lines are records or quoted; their texts were read"
    tags = repeated_tags([line for number, line in judged if number not in sound])
    best, most = None, _understood("\n".join(bare)) if tags else (0, 0, 0)
    as_is = most[:2]
    for tag in tags:
        understood = _understood("\n".join(tag.removed(bare)))
        if understood[:2] > as_is and understood > most:
            best, most = tag, understood
    if best is not None:
        remark = f"lines begin with {shown(best.example)}, which was left out as a tag"
        return best.removed(lines), remark
    return lines, ""
