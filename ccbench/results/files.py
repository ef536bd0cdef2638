"""Files of a run's cases: a log while the run goes on, one table when it is closed; and how any file is written whole.

The log has a line a case, its row as JSON with a digest in front; of the lines of one case the last counts. The table
is parquet. A digest of it lies between the pages and the footer: readers find the footer from the end of the file and
the pages from its beginning, and look at nothing between.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import ALL_GROUPS, SETTINGS, UNEVEN
from ccbench.cases.measurement import Status
from ccbench.collectives import read_traffic
from ccbench.documents import open_file
from ccbench.errors import RunFolderError, UsageError
from ccbench.groups import parse_concurrent, parse_groups, parse_pair
from ccbench.results.schema import SCHEMA, SCHEMA_VERSION, VERSION_KEY, Row, arrow_schema
from ccbench.units import plain, plural

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types


MANIFEST_NAME = "run.json"

LOG_NAME = "cases.log"

TABLE_NAME = "cases.parquet"

EARLIER = "cases"
"""Folder of files of one case each, as earlier versions wrote them."""

GROUP_CASES = 256
"""Cases in a row group of the table, which is what a flipped bit costs."""

_SEAL = b"\nccbench table sha256 "
"""Precedes the digest in a table."""


def write_atomically(target: Path, content: bytes) -> None:
    """Give ``target`` its whole new content or leave it as it was, whatever happens meanwhile.

    The temporary name starts with a dot and ends in .tmp: no reader of *.parquet picks it up. Raises
    OSError, and leaves no temporary file behind. It is on the disk when this returns.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    # The rename must survive a power cut as well; some network filesystems cannot sync a folder.
    folder = os.open(target.parent, os.O_RDONLY)
    with suppress(OSError):
        os.fsync(folder)
    os.close(folder)


def has_cases(path: Path) -> bool:
    """Return whether the run folder ``path`` has cases, whether it goes on, was killed or was closed."""
    return any((path / name).exists() for name in (LOG_NAME, TABLE_NAME, EARLIER))


def as_line(row: Row) -> bytes:
    """The line of one case in the log."""
    cells = {name: value for name, value in row.items() if value is not None}
    # Figures of NumPy are written as Python's own.
    text = json.dumps(cells, separators=(",", ":"), default=methodcaller("tolist")) + "\n"
    return _mark(text.encode()) + text.encode()


def _mark(text: bytes) -> bytes:
    return f"{hashlib.sha256(text).hexdigest()[:16]} ".encode()


def rows_of(content: bytes) -> tuple[dict[str, Row], list[int]]:
    """The last row of each case in a log by id, and the numbers of lines that are not as they were meant."""
    rows, changed = dict[str, Row](), list[int]()
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if line[:17] == _mark(line[17:]):
            row = json.loads(line[17:])
            rows[row["case_id"]] = row
        else:
            changed.append(number)
    return rows, changed


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn what a damaged file makes readers raise into a RunFolderError that names it."""
    import pyarrow as pa

    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        TypeError,
        ArithmeticError,
        LookupError,
        RecursionError,
        MemoryError,
    ) as error:
        raise RunFolderError(
            f"{file}: cannot be read ({one_line(error)}); measure its cases again"
        ) from None


def _whole(parts: Sequence[pa.Table]) -> pa.Table:
    """``parts`` together with every column of SCHEMA, further columns behind.

    Of a column that a file lacks a setting is at its default, others are null: a further axis or column leaves
    files readable, as an axis leaves the ids of their cases.
    """
    import pyarrow as pa

    tables = [arrow_schema().empty_table(), *parts]
    table = pa.concat_tables(tables, promote_options="default").replace_schema_metadata(None)
    for axis in SETTINGS:
        place = table.column_names.index(axis.name)
        cells = table[axis.name].fill_null(axis.default)
        table = table.set_column(place, table.schema.field(place), cells)
    return table


def _read_log(file: Path) -> tuple[pa.Table, list[str]]:
    """The cases of a log, and what is wrong with others. Raises RunFolderError as ``read_table``."""
    import pyarrow as pa

    with _readable(file):
        # A line without an end may be in the writing: it is given time to get one.
        for seconds in (0.01, 0.1, 0):
            with open_file(file) as stream:
                content = stream.read()
            if content[-1:] in b"\n":
                break
            time.sleep(seconds)
        rows, changed = rows_of(content)
        table = _whole([pa.Table.from_pylist([*rows.values()], arrow_schema())])
    what = "was changed after it was written, or not wholly written; measure that case again"
    return table, [f"{file}: line {number} {what}" for number in changed]


def as_parquet(table: pa.Table) -> bytes:
    """The file of many cases, as ``stored`` has them, a digest of it in front of the footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    # What lacks a cell, which ``sensible`` names, is written as it was read.
    fields = [field.with_nullable(True) for field in table.schema]
    table = table.cast(pa.schema(fields, arrow_schema().metadata))
    pq.write_table(table, sink, GROUP_CASES, compression="zstd", write_page_checksum=True)
    content = sink.getvalue().to_pybytes()
    # The length of the footer and a magic word of 4 bytes follow it.
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return b"".join((content[:end], _SEAL, hashlib.sha256(content).digest(), content[end:]))


def read_table(file: Path) -> tuple[pa.Table, list[str]]:
    """The cases of a table, with its further columns after those of SCHEMA, and what is wrong with others.

    Raises RunFolderError that names the file when it is truncated, foreign or of another schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _readable(file), open_file(file) as stream:
        content = stream.read()
        source = pa.BufferReader(content)
        with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
            version = (parquet.schema_arrow.metadata or {}).get(VERSION_KEY, b"none")
            if version != str(SCHEMA_VERSION).encode():
                raise RunFolderError(
                    f"{file}: schema version is {version.decode(errors='replace')[:40]}, expected "
                    f"{SCHEMA_VERSION}; use the ccbench that wrote it"
                )
            groups = [_row_group(parquet, number) for number in range(parquet.num_row_groups)]
            table = _whole([group for group in groups if group is not None])
    changed = [f"row group {number}" for number, group in enumerate(groups, 1) if group is None]
    pages, mark, rest = content.rpartition(_SEAL)
    if mark and not changed and rest[:32] != hashlib.sha256(pages + rest[32:]).digest():
        changed = ["the file"]
    what = "was changed after it was written; measure its cases again"
    return table, [f"{file}: {part} {what}" for part in changed]


def _row_group(parquet: pq.ParquetFile, number: int) -> pa.Table | None:
    """A row group; None where it is damaged."""
    with suppress(OSError, ValueError):  # which pyarrow's own are
        table = parquet.read_row_group(number)
        table.validate(full=True)
        return table
    return None


def cases_files(path: Path) -> tuple[Path, ...]:
    """The files that the run folder ``path`` may have cases in; of what is written twice the first has the latest.

    Who closes the run meanwhile writes the table before the log goes.
    """
    return (path / LOG_NAME, path / TABLE_NAME, *sorted((path / EARLIER).glob("*.parquet")))


def stored(path: Path) -> tuple[pa.Table, list[str]]:
    """Every case of a run folder, once, and what could not be read of others.

    What somebody added to the table as further columns is behind those of SCHEMA.
    """
    import pyarrow as pa

    parts, problems, names = list[pa.Table](), list[str](), arrow_schema().names
    for file in cases_files(path):
        read = _read_log if file.name == LOG_NAME else read_table
        try:
            table, wrong = read(file)
            parts.insert(0, table if file.name == TABLE_NAME else table.select(names))
            problems += wrong
        except RunFolderError as error:
            problems += [str(error)] * os.path.lexists(file)
    table = _whole(parts)
    # Rows without an id, of some foreign table, are all kept.
    last = {
        case_id or place: place for place, case_id in enumerate(table["case_id"].to_pylist())
    }
    return table.take(pa.array(last.values(), pa.int64())), problems


def sensible(path: Path, table: pa.Table) -> tuple[pa.Table, list[str]]:
    """The rows of ``table``, of the run folder ``path``, that make sense, and what is wrong with the others."""
    import pyarrow as pa

    samples = (sample.values for sample in table["samples_seconds"])
    rows = table.select(_JUDGED).to_pylist()
    reasons = [
        _misfit(row, np.array([] if times is None else times, float))
        for row, times in zip(rows, samples, strict=True)
    ]
    return table.filter(pa.array([not reason for reason in reasons], pa.bool_())), [
        f"{path}: case {row['case_id']}: {reason}; use the ccbench that wrote it, or measure that case again"
        for row, reason in zip(rows, reasons, strict=True)
        if reason
    ]


MOST_GROUPED = 2**20
"""Ranks of a case with groups, which are listed rank by rank; a suite has no more."""


_JUDGED = [
    column.name
    for column in SCHEMA
    if not (column.kind.startswith("list") and column.null_when)
]
"""Columns of which some must be there, and some have a meaning only in some words or numbers; samples besides."""

_NEEDED = [column.name for column in SCHEMA if not column.null_when and column.name in _JUDGED]

_LEAST = {
    column.name: -math.inf if column.unit in ("", "fraction", "elements") else 0
    for column in SCHEMA
    if column.kind in ("double", "int64")
}
"""Sizes, times and rates are never negative."""


def _misfit(row: Row, samples: NDArray[np.float64]) -> str:
    """Return what makes no sense in ``row``, its columns _JUDGED; '' where everything does.

    A name (of a backend, a dtype) may be newer than this version and is shown; what is parsed or computed
    with must be understood.
    """
    for name in _NEEDED:
        if row[name] is None:
            return f"column {name} is missing"
    # Of an imported row nothing but what its source prints is known, and that may be anything.
    own, ranks, groups = not row["source"], row["ranks"], 1
    for name, least in _LEAST.items():
        value = row[name] or 0
        if not math.isfinite(value) or (own and value < least):
            return f"{name} is {value}"
    try:
        status = Status(row["status"])
        if row["pair"] and max(vars(parse_pair(row["pair"])).values()) >= ranks:
            return f"pair {row['pair']} is of more than {plural(ranks, 'rank')}"
        concurrent = row["concurrent"] and parse_concurrent(row["concurrent"]).groups
        if ranks < 1 or (ranks > MOST_GROUPED and (row["groups"] or concurrent)):
            return f"ranks is {ranks}"
        if concurrent:
            parse_groups(concurrent, ranks)
        if row["groups"]:
            groups = len(parse_groups(row["groups"], ranks)[0])
        if not ALL_GROUPS <= row["active_group"] < groups:
            return f"active_group {row['active_group']} is none of {plural(groups, 'group')}"
        if row["collective"] == UNEVEN:
            read_traffic(row["traffic"])
    except (UsageError, ValueError) as error:
        return one_line(error)
    if status is not Status.OK:
        return ""
    if own and (row["median_seconds"] is None or not len(samples)):
        return "status is ok and median_seconds or samples_seconds is missing"
    if row["wrong_elements"]:
        return f"status is ok and wrong_elements is {row['wrong_elements']}"
    sound = ((samples >= 0) & (samples < math.inf)).all()
    return "" if sound else "status is ok and a sample is negative or no number"


def one_line(error: BaseException) -> str:
    """Return the message of ``error`` in one line of at most 200 characters."""
    return plain(error, 200) or type(error).__name__
