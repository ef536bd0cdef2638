"""Reading runs: everything that can be read is, and everything that cannot is named.

All cases of a run in one file beside them, so that a run of thousands of cases loads in a second.

A file of one row costs milliseconds to open, whatever it holds. The cases' own files stay what counts: the
one file says which of them it was made from (names, sizes and times of change), and is passed over as soon
as one of them differs. Who cannot write it does without.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.cases import IDENTITY
from ccbench.errors import RunFolderError
from ccbench.runs.folder import CASES_NAME, MANIFEST_NAME, write_atomically
from ccbench.runs.schema import SCHEMA, SCHEMA_VERSION, VERSION_KEY, arrow_schema

if TYPE_CHECKING:
    import pandas as pd
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


_FIRST = ("collective", "ranks", "nodes", "dtype", "op", "backend", "algorithm", "protocol", "mode")
_LAST = ("size_bytes", "case_id")
ORDER = (*_FIRST, *(axis.name for axis in IDENTITY if axis.name not in (*_FIRST, *_LAST)), *_LAST)
"""Rows of ``Run.cases`` are sorted by these columns, whatever order they were measured in."""

MOST_READERS = 2
"""Threads that read files: more of them wait for one another more than for the disk."""

BATCH = 512
"""Cases whose tables are put together at once: a table of one row takes many times the memory of its row."""


@dataclass(frozen=True)
class Run:
    """A run as it lies on disk.

    manifest: run.json, empty when that cannot be read.
    cases: one row per case, columns as in ``ccbench.runs.SCHEMA``, sorted by ORDER. A missing float or
        text is NaN, a missing whole number is pandas.NA.
    problems: one line for every file that could not be read, or is of another schema version.
    """

    path: Path
    manifest: Mapping[str, Any]
    cases: pd.DataFrame = field(compare=False)
    problems: tuple[str, ...] = ()

    @property
    def network(self) -> str:
        """What --network said when it was made or imported, such as ``ib-ndr-400x8``; "" where nothing."""
        options = self.manifest.get("options")
        told = (options if isinstance(options, Mapping) else self.manifest).get("network")
        return told if isinstance(told, str) else ""


def load_run(path: Path | str) -> Run:
    """Load one run folder; needs no lock, so a run can be looked at while it goes on.

    Raises RunFolderError when ``path`` is no run folder at all.
    """
    path = Path(path)
    folder = path / CASES_NAME
    if not path.is_dir() or not (folder.is_dir() or (path / MANIFEST_NAME).is_file()):
        raise RunFolderError(
            f"{path}: not a run folder (no {MANIFEST_NAME} and no {CASES_NAME}/); "
            "name a folder that 'ccbench run' wrote"
        )
    problems: list[str] = []
    manifest = _read_manifest(path / MANIFEST_NAME, problems)
    try:
        files = sorted(folder.glob("*.parquet"))
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be read ({error.strerror}); check its permissions") from None
    return Run(path, manifest, _frame(cases_of(path, files, problems)), tuple(problems))


def load_runs(paths: Iterable[Path | str]) -> list[Run]:
    """Load several run folders, in the order given."""
    return [load_run(path) for path in paths]


def newest_run(root: Path | str) -> Path:
    """The run folder directly below ``root`` that was created last.

    Raises RunFolderError when there is none.
    """
    root = Path(root)
    runs = [path.parent for path in root.glob(f"*/{MANIFEST_NAME}")]
    if not runs:
        raise RunFolderError(f"{root}: holds no run; run a suite first, or name a run folder")
    return max(runs, key=lambda path: (_created_at(path), path.name))


def _created_at(path: Path) -> str:
    return str(_read_manifest(path / MANIFEST_NAME, []).get("created_at", ""))


def _read_manifest(file: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{file}: not found; the cases are shown without machine and environment")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{file}: cannot be read ({_one_line(error)}); the cases are shown without it")
        return {}
    if not isinstance(manifest, dict):
        problems.append(f"{file}: holds {type(manifest).__name__}, expected a mapping; shown without it")
        return {}
    version = manifest.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        problems.append(
            f"{file}: schema version is {str(version)[:40]}, expected {SCHEMA_VERSION}; "
            "use the ccbench that wrote it"
        )
    return manifest


def cases_of(
    path: Path, files: Sequence[Path], problems: list[str], columns: Sequence[str] | None = None
) -> list[pa.Table]:
    """The cases' rows, from the one file of all where it stands; else from their own, and then it is made.

    columns: the only ones that are needed; where the one file has to be made there are all.
    """
    found = load_gathered(path, files, columns)
    if found is not None:
        return [found]
    before = made_from(files)
    told = len(problems)
    tables = _read_cases(files, problems)
    if len(problems) == told:
        gather(path, files, tables, before)
    return tables


def _read_cases(files: Sequence[Path], problems: list[str]) -> list[pa.Table]:
    def attempt(file: Path) -> pa.Table | str:
        try:
            return read_case(file)
        except RunFolderError as error:
            return str(error)

    import pyarrow as pa

    tables: list[pa.Table] = []
    with ThreadPoolExecutor(MOST_READERS) as pool:
        for start in range(0, len(files), BATCH):
            results = list(pool.map(attempt, files[start : start + BATCH]))
            problems.extend(result for result in results if isinstance(result, str))
            rows = [_in_order(result) for result in results if not isinstance(result, str)]
            tables += [pa.concat_tables(rows).combine_chunks()] if rows else []
    return tables


def _in_order(table: pa.Table) -> pa.Table:
    """The columns of the schema alone, as all tables have them."""
    return table.select(arrow_schema().names).replace_schema_metadata(None)


def read_case(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The one row of a case's file, all columns or the named ones.

    Raises RunFolderError that names the file when it is truncated, foreign or of another schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.is_file():
        raise RunFolderError(f"{file}: not a regular file; remove it")
    try:
        # The memory copy keeps a file that shrinks meanwhile from taking the process down.
        content = file.read_bytes()
        # One row is read faster without Arrow's own threads and read-ahead; files are read side by side.
        source = pa.BufferReader(content)
        with pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as parquet:
            _check_schema(file, parquet.schema_arrow)
            if parquet.metadata.num_rows != 1:
                raise RunFolderError(f"{file}: holds {parquet.metadata.num_rows} rows, expected 1; remove it")
            table = parquet.read(columns=None if columns is None else list(columns), use_threads=False)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise RunFolderError(
            f"{file}: cannot be read ({_one_line(error)}); remove it and measure that case again"
        ) from None
    if "case_id" in table.column_names and table["case_id"][0].as_py() != file.stem:
        raise RunFolderError(f"{file}: holds case {table['case_id'][0].as_py()}; give it that name back")
    return table


def _check_schema(file: Path, found: pa.Schema) -> None:
    """Raise RunFolderError unless the file states this schema's version and has its columns."""
    text = (found.metadata or {}).get(VERSION_KEY)
    if text is None:
        raise RunFolderError(f"{file}: not a case of ccbench (its metadata has no schema version); remove it")
    if text != str(SCHEMA_VERSION).encode():
        raise RunFolderError(
            f"{file}: schema version is {text.decode('utf-8', 'replace')[:40]}, expected {SCHEMA_VERSION}; "
            "use the ccbench that wrote it"
        )
    for one in arrow_schema():
        if one.name not in found.names or found.field(one.name).type != one.type:
            raise RunFolderError(f"{file}: column {one.name} is not {one.type}; measure that case again")


def load_rows(file: Path) -> pd.DataFrame:
    """Many cases in one parquet file, with its further columns after those of ``SCHEMA``, sorted by ORDER.

    Raises RunFolderError that names the file when it is truncated, foreign or of another schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(pa.BufferReader(file.read_bytes()), page_checksum_verification=True) as parquet:
            _check_schema(file, parquet.schema_arrow)
            table = parquet.read()
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise RunFolderError(
            f"{file}: cannot be read ({_one_line(error)}); make or install it again"
        ) from None
    known = {column.name for column in SCHEMA}
    return _frame([table], [name for name in table.column_names if name not in known])


def _frame(tables: Sequence[pa.Table], further: Sequence[str] = ()) -> pd.DataFrame:
    """All rows; ``further`` names columns to keep beside those of the schema."""
    import pandas as pd
    import pyarrow as pa

    schema = arrow_schema()
    names = [*schema.names, *further]
    parts = [one.select(names).replace_schema_metadata(None) for one in tables]
    table = pa.concat_tables(parts) if tables else schema.empty_table()
    nullable = {column.name for column in SCHEMA if column.kind == "int64" and column.null_when}
    # Otherwise pandas makes floats of whole numbers as soon as one is missing.
    frame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    plain = {column.name: "int64" for column in SCHEMA if column.kind == "int64"}
    frame = frame.astype({name: kind for name, kind in plain.items() if name not in nullable})
    ordered: pd.DataFrame = frame.sort_values(list(ORDER), ignore_index=True)
    return ordered


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
