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
        check_schema(file, parquet.schema_arrow)
        if parquet.metadata.num_rows != 1:
            raise RunFolderError(
                f"{file}: holds {parquet.metadata.num_rows} rows, expected 1; remove it"
            )
        table = parquet.read(use_threads=False)
    # Names are slow to look up, so only a file of another version is looked through for them.
    if not table.schema.equals(arrow_schema()):
        table = completed(table).select(arrow_schema().names)
    if not whole:
        table.validate(full=True)
    return table


MOST_GROUPED = 2**20
"""Ranks of a case with groups, which are listed rank by rank; a suite has no more."""


_FIGURES = tuple(column for column in SCHEMA if column.kind in ("double", "int64"))


AMOUNTS = frozenset(
    column.name for column in _FIGURES if column.unit not in ("", "fraction", "elements")
)
"""Columns of sizes, times and rates, which are never negative."""


_JUDGED = (
    *("case_id", "status", "pair", "groups", "concurrent", "collective", "traffic", "source"),
    *(column.name for column in _FIGURES),
)
"""Columns that have a meaning only in some words or numbers; samples besides."""


def _misfit(row: Mapping[str, Any], samples_seconds: NDArray[np.float64]) -> str:
    """Return what makes no sense in ``row``, its columns _JUDGED; '' where everything does.

    A name (of a backend, a dtype) may be newer than this version and is shown; what is parsed or computed
    with must be understood.
    """
    # Of an imported row nothing but what its source prints is known, and that may be anything.
    own = not row["source"]
    try:
        status = Status(row["status"])
        ranks = row["ranks"]
        concurrent_groups = (
            parse_concurrent(row["concurrent"]).groups if row["concurrent"] else ""
        )
        if ranks < 1 or (ranks > MOST_GROUPED and (row["groups"] or concurrent_groups)):
            return f"ranks is {ranks}"
        for name in (column.name for column in _FIGURES):
            value = row[name]
            if value is not None and (
                not math.isfinite(value) or (own and name in AMOUNTS and value < 0)
            ):
                return f"{name} is {value}"
        if row["pair"] and max(vars(parse_pair(row["pair"])).values()) >= ranks:
            return f"pair {row['pair']} is of more than {plural(ranks, 'rank')}"
        groups, _ = (
            parse_groups(text, ranks) if text else ()
            for text in (row["groups"], concurrent_groups)
        )
        if not ALL_GROUPS <= row["active_group"] < max(len(groups), 1):
            return (
                f"active_group {row['active_group']} is none of {plural(len(groups), 'group')}"
            )
        if row["collective"] == UNEVEN:
            read_traffic(row["traffic"])
    except (UsageError, ValueError) as error:
        return one_line(error)
    if status is not Status.OK:
        return ""
    if own and not (len(samples_seconds) and row["median_seconds"] is not None):
        return "status is ok and median_seconds or samples_seconds is missing"
    if row["wrong_elements"]:
        return f"status is ok and wrong_elements is {row['wrong_elements']}"
    sound = (
        not len(samples_seconds)
        or 0 <= samples_seconds.min() <= samples_seconds.max() < math.inf
    )
    return "" if sound else "status is ok and a sample is negative or no number"


def check_schema(file: Path, schema: pa.Schema) -> None:
    """Raise RunFolderError unless the file states this schema's version and has its columns."""
    text = (schema.metadata or {}).get(VERSION_KEY)
    if text is None:
        raise RunFolderError(
            f"{file}: not a case of ccbench (its metadata has no schema version); remove it"
        )
    if text != str(SCHEMA_VERSION).encode():
        raise RunFolderError(
            f"{file}: schema version is {text.decode('utf-8', 'replace')[:40]}, expected {SCHEMA_VERSION}; "
            "use the ccbench that wrote it"
        )
    # A schema looks through all of its columns for each that it is asked for by name.
    if schema.equals(arrow_schema()):
        return
    types = dict(zip(schema.names, schema.types, strict=True))
    for column in arrow_schema():
        may_lack = (
            column.nullable or column.name in _DEFAULTS
        )  # where the column is younger than the file
        if types.get(column.name) != column.type and (column.name in types or not may_lack):
            raise RunFolderError(
                f"{file}: column {column.name} is not {column.type}; measure that case again"
            )


_DEFAULTS: Mapping[str, Any] = {axis.name: axis.default for axis in SETTINGS}


def completed(table: pa.Table) -> pa.Table:
    """``table`` with every column of SCHEMA that its file may lack.

    A setting is at its default, other columns are null: a further axis or column leaves files readable, as an
    axis leaves the ids of their cases.
    """
    import pyarrow as pa

    # A table makes the list of its names anew whenever it is asked for.
    there = frozenset(table.column_names)
    for column in arrow_schema():
        if column.name not in there:
            table = table.append_column(
                column, pa.array([_DEFAULTS.get(column.name)] * table.num_rows, column.type)
            )
    return table


def one_line(error: BaseException) -> str:
    """Return the message of ``error`` in one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__
