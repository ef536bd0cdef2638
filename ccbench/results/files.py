"""File of one case: how its row is written, sealed, read back and checked; and how any file is written whole."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import ALL_GROUPS, SETTINGS, UNEVEN
from ccbench.cases.measurement import Status
from ccbench.collectives import read_traffic
from ccbench.errors import RunFolderError, UsageError
from ccbench.groups import parse_concurrent, parse_groups, parse_pair
from ccbench.results.schema import SCHEMA, SCHEMA_VERSION, VERSION_KEY, arrow_schema
from ccbench.units import plural

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types


MANIFEST_NAME = "run.json"


CASES_NAME = "cases"


_SEAL = b"\nccbench sha256 "
"""Precedes the digest in a parquet file."""


_ROW = f"\nccbench row {SCHEMA_VERSION} ".encode()
"""Precedes the row in a parquet file."""


LONGEST_ROW = 2**16
"""Bytes of JSON; a longer row is read from the pages as quickly."""


NAMES = tuple(column.name for column in SCHEMA)


_COMPRESSED = {
    column.name + ".list.element" * column.kind.count("list<"): "zstd"
    for column in SCHEMA
    if column.kind.startswith("list<")
}
"""Columns that hold more than one value, as parquet names their leaves, and how they are compressed."""


def write_atomically(target: Path, content: bytes, durable: bool = True) -> None:
    """Give ``target`` its whole new content or leave it as it was, whatever happens meanwhile.

    The temporary name starts with a dot and ends in .tmp: no reader of *.parquet picks it up. Raises
    OSError and leaves no temporary file behind. durable: it is on the disk when this returns.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        # The rename must survive a power cut as well.
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError as error:
            # Some network filesystems cannot sync a folder; the file itself is synced all the same.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(folder)


def as_parquet(row: Mapping[str, Any]) -> bytes:
    """The file of one case."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

    table = pa.Table.from_pylist([dict(row)], schema=arrow_schema())
    sink = pa.BufferOutputStream()
    # Checksums tell a flipped bit from a figure; one row has nothing for a dictionary to share, and single
    # values have nothing to compress: trying that took a third of the time of a whole file.
    pq.write_table(
        table, sink, compression=_COMPRESSED, use_dictionary=False, write_page_checksum=True
    )
    text = _ROW + json.dumps(table.to_pylist()[0]).encode()
    return sealed(bytes(sink.getvalue()), text if len(text) <= LONGEST_ROW else b"")


def sealed(content: bytes, row: bytes = b"") -> bytes:
    """Return ``content``, a parquet file, with ``row`` and a digest of both in front of the footer."""
    footer = _footer(content)
    before, end = content[:footer] + row, content[footer:]
    return before + _SEAL + hashlib.sha256(before + end).digest() + end


def stored_row(content: bytes) -> Mapping[str, Any] | None:
    """Return the row that a whole file holds beside its pages; None where it has none of these columns."""
    _, mark, text = content.rpartition(_SEAL)[0].rpartition(_ROW)
    row = None
    with suppress(ValueError):  # the mark is a part of some longer row's text
        row = json.loads(text) if mark else None
    return row if isinstance(row, dict) and row.keys() == set(NAMES) else None


def is_whole(content: bytes) -> bool | None:
    """Return whether a parquet file is as it was when ``sealed``; None where it has no digest."""
    end = _footer(content)
    start = end - hashlib.sha256().digest_size
    before = start - len(_SEAL)
    if before < 0 or content[before:start] != _SEAL:
        return None
    digest = hashlib.sha256(memoryview(content)[:before])
    digest.update(memoryview(content)[end:])
    return digest.digest() == content[start:end]


def _footer(content: bytes) -> int:
    """Return the offset of the footer of a parquet file: its length and a magic word of 4 bytes follow it."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def read_case(file: Path) -> pa.Table:
    """The one row of a case's file. Raises RunFolderError, as ``read_row``."""
    import pyarrow as pa

    row = read_row(file)
    return row if isinstance(row, pa.Table) else pa.Table.from_pylist([row], arrow_schema())


def read_row(file: Path) -> Mapping[str, Any] | pa.Table:
    """The one row of a case's file: cells by column, or a table where it is long or of an earlier version.

    Raises RunFolderError that names the file when it is truncated, changed, foreign, of another schema, or
    holds what no measurement can be.
    """
    import pyarrow as pa

    if not file.is_file():
        raise RunFolderError(f"{file}: not a regular file; remove it")
    try:
        # The memory copy keeps a file that shrinks meanwhile from taking the process down.
        content = file.read_bytes()
        whole = is_whole(content)
        if whole is False:
            raise RunFolderError(
                f"{file}: was changed after it was written; measure that case again"
            )
        row = (stored_row(content) if whole else None) or _from_pages(
            file, content, bool(whole)
        )
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise RunFolderError(
            f"{file}: cannot be read ({one_line(error)}); remove it and measure that case again"
        ) from None
    if isinstance(row, Mapping):
        cells, samples = row, np.array(row["samples_seconds"] or (), float)
    else:
        (cells,) = row.select(_JUDGED).to_pylist()
        samples = row["samples_seconds"].combine_chunks().values.to_numpy()
    if cells["case_id"] != file.stem:
        raise RunFolderError(f"{file}: holds case {cells['case_id']}; give it that name back")
    if reason := _misfit(cells, samples):
        raise RunFolderError(
            f"{file}: {reason}; use the ccbench that wrote it, or measure that case again"
        )
    return row


def _from_pages(file: Path, content: bytes, whole: bool) -> pa.Table:
    """The one row of a case's file as any reader of parquet has it; whole: its digest is right."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # One row is read faster without Arrow's own threads and read-ahead; files are read side by side.
    source = pa.BufferReader(content)
    with pq.ParquetFile(
        source, page_checksum_verification=not whole, pre_buffer=False
    ) as parquet:
        if parquet.metadata.num_rows != 1:
            raise RunFolderError(
                f"{file}: holds {parquet.metadata.num_rows} rows, expected 1; remove it"
            )
        table = completed(file, parquet.read(use_threads=False)).select(arrow_schema().names)
    if not whole:
        table.validate(full=True)
    return table


MOST_GROUPED = 2**20
"""Ranks of a case with groups, which are listed rank by rank; a suite has no more."""


_JUDGED = [column.name for column in SCHEMA if not column.kind.startswith("list")]
"""Columns of which some have a meaning only in some words or numbers; samples besides."""

_LEAST = {
    column.name: -math.inf if column.unit in ("", "fraction", "elements") else 0
    for column in SCHEMA
    if column.kind in ("double", "int64")
}
"""Sizes, times and rates are never negative."""


def _misfit(row: Mapping[str, Any], samples: NDArray[np.float64]) -> str:
    """Return what makes no sense in ``row``, its columns _JUDGED; '' where everything does.

    A name (of a backend, a dtype) may be newer than this version and is shown; what is parsed or computed
    with must be understood.
    """
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


def completed(file: Path, table: pa.Table) -> pa.Table:
    """``table`` of ``file`` with every column of SCHEMA that it may lack.

    A setting is at its default, other columns are null: a further axis or column leaves files readable, as an
    axis leaves the ids of their cases. Raises RunFolderError unless the file states this schema's version and
    has its columns.
    """
    import pyarrow as pa

    version = (table.schema.metadata or {}).get(VERSION_KEY, b"none").decode(errors="replace")
    if version != str(SCHEMA_VERSION):
        raise RunFolderError(
            f"{file}: schema version is {version[:40]}, expected {SCHEMA_VERSION}; use the ccbench that wrote "
            "it, or remove what is none of its cases"
        )
    types = dict(zip(table.column_names, table.schema.types, strict=True))
    for column in arrow_schema():
        if column.name not in types and (column.nullable or column.name in _DEFAULTS):
            cells = [_DEFAULTS.get(column.name)] * table.num_rows
            table = table.append_column(column, pa.array(cells, column.type))
        elif types.get(column.name) != column.type:
            raise RunFolderError(
                f"{file}: column {column.name} is not {column.type}; measure that case again"
            )
    return table.replace_schema_metadata(None)


_DEFAULTS: Mapping[str, Any] = {axis.name: axis.default for axis in SETTINGS}


def one_line(error: BaseException) -> str:
    """Return the message of ``error`` in one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__
