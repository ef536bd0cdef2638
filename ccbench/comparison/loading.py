"""The columns that a comparison needs, of a run folder with thousands of cases.

A large run is read from the file that holds all its cases (``ccbench.runs.loading``), and that is made where
it does not stand: the next reading takes a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.importing.published import PREFIX, load_published
from ccbench.runs import SCHEMA, SCHEMA_VERSION, Run, arrow_schema, load_run
from ccbench.runs.folder import CASES_NAME, MANIFEST_NAME
from ccbench.runs.loading import FEWEST_CASES, MOST_READERS, ORDER, cases_of
from ccbench.runs.schema import VERSION_KEY

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

COLUMNS = (
    *ORDER, "backend_version", "simulated", "status", "detail", "samples_seconds", "visit_samples",
    "median_seconds", "bound_seconds", "predicted_seconds", "bottleneck", "oversubscribed", "flags", "source",
    "device_model",
)  # fmt: skip
"""What is read; the samples of each rank, most of a file, are not."""


def load_compared(name: Path | str) -> Run:
    """A run folder, or ``published:NAME``, with at least COLUMNS, else as ``load_run`` gives it.

    Raises RunFolderError or UsageError where there is none.
    """
    if str(name).startswith(PREFIX):
        return load_published(str(name).removeprefix(PREFIX))
    path = Path(name)
    manifest, frame = _manifest(path), _frame(path)
    if manifest is None or frame is None:
        return load_run(path)  # names every file that cannot be read, and reads earlier versions
    return Run(path, manifest, frame)


def _manifest(path: Path) -> Mapping[str, Any] | None:
    """run.json; None where it is not what this version writes."""
    try:
        found = json.loads((path / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    current = isinstance(found, dict) and found.get("schema_version") == SCHEMA_VERSION
    return found if current else None


def _frame(path: Path) -> pd.DataFrame | None:
    """COLUMNS of every case; None where there is none, or any file is not a whole case of this version."""
    import pandas as pd
    import pyarrow as pa

    types = arrow_schema()
    wanted = pa.schema([types.field(name) for name in COLUMNS])
    try:
        files = sorted((path / CASES_NAME).glob("*.parquet"))
        table = _few(files, wanted) if len(files) < FEWEST_CASES else _many(path, files, wanted)
    except (pa.ArrowException, OSError, ValueError, LookupError, MemoryError):
        return None
    nullable = {column.name for column in SCHEMA if column.kind == "int64" and column.null_when}
    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    plain = [field.name for field in wanted if pa.types.is_int64(field.type) and field.name not in nullable]
    ordered: pd.DataFrame = frame.astype(dict.fromkeys(plain, "int64")).sort_values(
        list(ORDER), ignore_index=True
    )
    return ordered


def _many(path: Path, files: Sequence[Path], wanted: pa.Schema) -> pa.Table:
    """The rows of a large run; ValueError where any file cannot be read."""
    import pyarrow as pa

    problems: list[str] = []
    tables = cases_of(path, files, problems, wanted.names)
    if problems:
        raise ValueError(problems[0])
    return pa.concat_tables([table.select(wanted.names) for table in tables])


def _few(files: Sequence[Path], wanted: pa.Schema) -> pa.Table:
    """The rows of so few files that no other is made of them."""
    import pyarrow as pa

    with ThreadPoolExecutor(MOST_READERS) as pool:
        return pa.concat_tables(pool.map(lambda file: _case(file, wanted), files))


def _case(file: Path, wanted: pa.Schema) -> pa.Table:
    """The row of one file; ValueError where it is not one of this version."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

    # The memory copy keeps a file that shrinks meanwhile from taking the process down.
    with pq.ParquetFile(pa.BufferReader(file.read_bytes()), page_checksum_verification=True) as parquet:
        version = (parquet.schema_arrow.metadata or {}).get(VERSION_KEY)
        if version != str(SCHEMA_VERSION).encode() or parquet.metadata.num_rows != 1:
            raise ValueError(f"{file}: not a case of this version")
        table = parquet.read(columns=wanted.names, use_threads=False).select(wanted.names)
    table = table.replace_schema_metadata(None)
    if table.schema != wanted or table["case_id"][0].as_py() != file.stem:
        raise ValueError(f"{file}: not a case of this version")
    return table
