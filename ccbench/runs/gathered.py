"""All cases of a run in one file beside them, so that a run of thousands of cases loads in a second.

A file of one row costs milliseconds to open, whatever it holds. The cases' own files stay what counts: the
one file says which of them it was made from (names, sizes and times of change), and is passed over as soon
as one of them differs. Who cannot write it does without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ccbench.errors import RunFolderError
from ccbench.runs.folder import write_atomically
from ccbench.runs.schema import SCHEMA_VERSION, VERSION_KEY, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

GATHERED_NAME = "gathered.parquet"

MADE_FROM_KEY = b"ccbench_made_from"

FEWEST_CASES = 200
"""Fewer files are read as quickly as one."""


def made_from(files: Sequence[Path]) -> str:
    """A digest of what these files are; it changes when one is written anew, comes or goes."""
    digest = hashlib.sha256(str(SCHEMA_VERSION).encode())
    for file in files:
        found = file.stat()
        digest.update(f"\0{file.name}\0{found.st_size}\0{found.st_mtime_ns}".encode())
    return digest.hexdigest()


def load_gathered(path: Path, files: Sequence[Path], columns: Sequence[str] | None = None) -> pa.Table | None:
    """The rows of ``files``, all columns or the named ones, from the one file of the run folder ``path``.

    None where that does not stand.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

    if len(files) < FEWEST_CASES:
        return None
    try:
        source = pa.BufferReader((path / GATHERED_NAME).read_bytes())
        with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
            kept = parquet.schema_arrow.metadata or {}
            if kept.get(MADE_FROM_KEY) != made_from(files).encode():
                return None
            complete = parquet.schema_arrow.names == arrow_schema().names
            table = parquet.read(columns=None if columns is None else list(columns))
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        return None  # it can be made again
    whole = complete and table.num_rows == len(files)
    return table.replace_schema_metadata(None) if whole else None


def gather(path: Path, files: Sequence[Path], tables: Sequence[pa.Table], before: str) -> None:
    """Write the one file of ``tables``, the rows of ``files``; ``before``: made_from when reading began."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, RunFolderError, MemoryError):
        if len(files) < FEWEST_CASES or made_from(files) != before:
            return
        table = pa.concat_tables(tables)
        stated = {VERSION_KEY: str(SCHEMA_VERSION).encode(), MADE_FROM_KEY: before.encode()}
        sink = pa.BufferOutputStream()
        pq.write_table(
            table.replace_schema_metadata(stated), sink, compression="zstd", write_page_checksum=True
        )
        write_atomically(path / GATHERED_NAME, sink.getvalue().to_pybytes(), False)
