"""Reading runs: everything that can be read is, and everything that cannot is named.

A file of one row costs milliseconds to open, whatever it holds. So the first reading of a run of thousands of
cases leaves all of them in one file beside theirs. The cases' own files stay what counts: the one file says
which of them it was made from (names, sizes and times of change), and is passed over as soon as one of them
differs. Who cannot write it does without. Nobody but this module knows of it.

Published results ship as one file per machine family; ``python -m benchmarks.publish`` makes them from a
folder of logs.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ccbench.cases import ALL_GROUPS, SETTINGS, UNEVEN, Status
from ccbench.collectives import read_traffic
from ccbench.errors import RunFolderError, UsageError
from ccbench.groups import parse_concurrent, parse_groups, parse_pair
from ccbench.results.folder import (
    CASES_NAME,
    MANIFEST_NAME,
    is_edited,
    is_whole,
    sealed,
    stored_row,
    write_atomically,
)
from ccbench.results.points import ORDER, Manifest, Point, Samples, points_of_table
from ccbench.results.schema import SCHEMA, SCHEMA_VERSION, VERSION_KEY, arrow_schema
from ccbench.suite.documents import open_file, shipped_folder
from ccbench.units import plural, shown

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


def _gathered(path: Path, files: Sequence[Path], columns: Sequence[str]) -> pa.Table | None:
    """The rows of ``files`` from the one file of the run folder ``path``; None where that does not stand."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

    try:
        with open_file(path / GATHERED_NAME) as file:
            content = file.read()
        if not is_whole(content):
            return None
        with pq.ParquetFile(pa.BufferReader(content)) as parquet:
            kept = parquet.schema_arrow.metadata or {}
            if kept.get(MADE_FROM_KEY) != made_from(files).encode():
                return None
            table = parquet.read(columns=list(columns))
    except (pa.ArrowException, OSError, ValueError, LookupError, MemoryError):
        return None  # it can be made again
    return table if table.num_rows == len(files) and table.column_names == list(columns) else None


DETAILS = ("rank_samples_seconds", "group_samples_seconds", "warmup_seconds", "skew_seconds")
"""Most of a run's bytes: samples beside those of the cases themselves."""

MOST_READERS = 2
"""Threads that read files: more of them wait for one another more than for the disk."""

BATCH = 512
"""Cases whose tables are put together at once: a table of one row takes many times the memory of its row."""


@dataclass(frozen=True)
class Run:
    """A run as it lies on disk.

    manifest: run.json, empty when that cannot be read.
    table: one row per case, columns as in ``ccbench.results.SCHEMA``, in the order of ``points``.
    problems: one line for every file that could not be read, or is of another schema version.
    """

    path: Path
    manifest: Manifest
    table: pa.Table = field(compare=False, repr=False)
    problems: tuple[str, ...] = ()

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every case, sorted by what was asked of it, whatever order they were measured in."""
        return points_of_table(self.table, self.manifest)

    @cached_property
    def cases(self) -> pd.DataFrame:
        """The table as a pandas frame; whole numbers stay whole where some are missing (Int64)."""
        import pandas as pd
        import pyarrow as pa

        # Otherwise pandas makes floats of whole numbers as soon as one is missing.
        frame: pd.DataFrame = self.table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        return frame

    @property
    def suite(self) -> str:
        """The suite's name, by the manifest or else by the cases."""
        return self.manifest.suite or next((point.suite for point in self.points), "")

    @property
    def devices(self) -> tuple[str, ...]:
        """Models of the devices that ran, of a measured or imported run; () where nobody says."""
        named = [str(gpu.get("model") or "") for gpu in self.manifest.gpus]
        named += [model for point in self.points for model in (point.device_model, point.gpu)]
        return tuple(dict.fromkeys(model for model in named if model))


def load_run(path: Path | str, details: bool = True) -> Run:
    """Load one run folder; needs no lock, so a run can be looked at while it goes on.

    details: False leaves out the columns DETAILS, for readers that do without, unless the run's suite asks
    for a verdict about the machine, which stands on every sample. Raises RunFolderError when ``path`` is no
    run folder at all.
    """
    path = Path(path)
    folder = path / CASES_NAME
    if not path.is_dir() or not (folder.is_dir() or (path / MANIFEST_NAME).is_file()):
        raise RunFolderError(
            f"{path}: not a run folder (no {MANIFEST_NAME} and no {CASES_NAME}/); "
            "name a folder that 'ccbench run' wrote"
        )
    problems: list[str] = []
    manifest = Manifest(_read_manifest(path / MANIFEST_NAME, problems))
    details = details or manifest.at("suite", "verdict") not in (None, "speed")
    try:
        files = sorted(folder.glob("*.parquet"))
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot be read ({error.strerror}); check its permissions"
        ) from None
    columns = [name for name in arrow_schema().names if details or name not in DETAILS]
    return Run(path, manifest, in_order(_rows(path, files, columns, problems)), tuple(problems))


def load_runs(paths: Iterable[Path | str], details: bool = True) -> list[Run]:
    """Load several run folders, in the order given."""
    return [load_run(path, details) for path in paths]


def newest_run(root: Path | str) -> Path:
    """The run folder directly below ``root`` that was created last.

    Raises RunFolderError when there is none.
    """
    root = Path(root)
    runs = [path.parent for path in root.glob(f"*/{MANIFEST_NAME}")]
    if not runs:
        raise RunFolderError(f"{root}: holds no run; run a suite first, or name a run folder")
    created = {
        path: str(_read_manifest(path / MANIFEST_NAME, []).get("created_at", "")) for path in runs
    }
    return max(runs, key=lambda path: (created[path], path.name))


def _read_manifest(file: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        with open_file(file) as stream:
            manifest = json.load(stream)
    except FileNotFoundError:
        problems.append(f"{file}: not found; the cases are shown without machine and environment")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(
            f"{file}: cannot be read ({_one_line(error)}); the cases are shown without it"
        )
        return {}
    if not isinstance(manifest, dict):
        problems.append(
            f"{file}: holds {type(manifest).__name__}, expected a mapping; shown without it"
        )
        return {}
    version = manifest.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        problems.append(
            f"{file}: schema version is {str(version)[:40]}, expected {SCHEMA_VERSION}; "
            "use the ccbench that wrote it"
        )
    elif is_edited(manifest):
        problems.append(f"{file}: was changed after it was written; what it says now is shown")
    return manifest


def _rows(
    path: Path, files: Sequence[Path], columns: Sequence[str], problems: list[str]
) -> pa.Table:
    """The rows of ``files``: from the one file of all where it stands, else from their own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    many = len(files) >= FEWEST_CASES
    if many and (found := _gathered(path, files, columns)) is not None:
        return found
    before = made_from(files) if many else ""
    told = len(problems)

    def attempt(file: Path) -> Mapping[str, Any] | pa.Table | str:
        try:
            return read_row(file)
        except RunFolderError as error:
            return str(error)

    schema = arrow_schema().remove_metadata()
    tables = [schema.empty_table()]
    with ThreadPoolExecutor(MOST_READERS) as pool:
        for start in range(0, len(files), BATCH):
            results = list(pool.map(attempt, files[start : start + BATCH]))
            problems.extend(result for result in results if isinstance(result, str))
            rows = [result for result in results if isinstance(result, Mapping)]
            pages = [
                result.replace_schema_metadata(None)
                for result in results
                if isinstance(result, pa.Table)
            ]
            tables += [
                pa.concat_tables([pa.Table.from_pylist(rows, schema), *pages]).combine_chunks()
            ]
    table = pa.concat_tables(tables)
    if many and len(problems) == told:
        with suppress(OSError, RunFolderError, MemoryError):
            # A run that goes on may have changed its files while they were read.
            if made_from(files) == before:
                stated = table.replace_schema_metadata({MADE_FROM_KEY: before.encode()})
                sink = pa.BufferOutputStream()
                pq.write_table(stated, sink, compression="zstd")
                write_atomically(path / GATHERED_NAME, sealed(sink.getvalue().to_pybytes()), False)
    return table.select(columns)


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
        row = (stored_row(content) if whole else None) or _from_pages(file, content, bool(whole))
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise RunFolderError(
            f"{file}: cannot be read ({_one_line(error)}); remove it and measure that case again"
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
    with pq.ParquetFile(source, page_checksum_verification=not whole, pre_buffer=False) as parquet:
        _check_schema(file, parquet.schema_arrow)
        if parquet.metadata.num_rows != 1:
            raise RunFolderError(
                f"{file}: holds {parquet.metadata.num_rows} rows, expected 1; remove it"
            )
        table = parquet.read(use_threads=False)
    # Names are slow to look up, so only a file of another version is looked through for them.
    if not table.schema.equals(arrow_schema()):
        table = _completed(table).select(arrow_schema().names)
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


def _misfit(row: Mapping[str, Any], samples_seconds: Samples) -> str:
    """Return what makes no sense in ``row``, its columns _JUDGED; '' where everything does.

    A name (of a backend, a dtype) may be newer than this version and is shown; what is parsed or computed
    with must be understood.
    """
    # Of an imported row nothing but what its source prints is known, and that may be anything.
    own = not row["source"]
    try:
        status = Status(row["status"])
        ranks = row["ranks"]
        other = parse_concurrent(row["concurrent"]).groups if row["concurrent"] else ""
        if ranks < 1 or (ranks > MOST_GROUPED and (row["groups"] or other)):
            return f"ranks is {ranks}"
        for name in (column.name for column in _FIGURES):
            value = row[name]
            if value is not None and (
                not math.isfinite(value) or (own and name in AMOUNTS and value < 0)
            ):
                return f"{name} is {value}"
        if row["pair"] and max(vars(parse_pair(row["pair"])).values()) >= ranks:
            return f"pair {row['pair']} is of more than {plural(ranks, 'rank')}"
        groups, _ = (parse_groups(text, ranks) if text else () for text in (row["groups"], other))
        if not ALL_GROUPS <= row["active_group"] < max(len(groups), 1):
            return f"active_group {row['active_group']} is none of {plural(len(groups), 'group')}"
        if row["collective"] == UNEVEN:
            read_traffic(row["traffic"])
    except (UsageError, ValueError) as error:
        return _one_line(error)
    if status is not Status.OK:
        return ""
    lacking = {
        "median_seconds": own and row["median_seconds"] is None,
        "samples_seconds": own and not len(samples_seconds),
    }
    if names := [name for name, lacks in lacking.items() if lacks]:
        return f"status is ok and {names[0]} is missing"
    if row["wrong_elements"]:
        return f"status is ok and wrong_elements is {row['wrong_elements']}"
    sound = (
        not len(samples_seconds) or 0 <= samples_seconds.min() <= samples_seconds.max() < math.inf
    )
    return "" if sound else "status is ok and a sample is negative or no number"


def _check_schema(file: Path, found: pa.Schema) -> None:
    """Raise RunFolderError unless the file states this schema's version and has its columns."""
    text = (found.metadata or {}).get(VERSION_KEY)
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
    if found.equals(arrow_schema()):
        return
    types = dict(zip(found.names, found.types, strict=True))
    for one in arrow_schema():
        may_lack = (
            one.nullable or one.name in _DEFAULTS
        )  # where the column is younger than the file
        if types.get(one.name) != one.type and (one.name in types or not may_lack):
            raise RunFolderError(
                f"{file}: column {one.name} is not {one.type}; measure that case again"
            )


_DEFAULTS: Mapping[str, Any] = {axis.name: axis.default for axis in SETTINGS}


def _completed(table: pa.Table) -> pa.Table:
    """``table`` with every column of SCHEMA that its file may lack.

    A setting is at its default, other columns are null: a further axis or column leaves files readable, as an
    axis leaves the ids of their cases.
    """
    import pyarrow as pa

    # A table makes the list of its names anew whenever it is asked for.
    there = frozenset(table.column_names)
    for one in arrow_schema():
        if one.name not in there:
            table = table.append_column(
                one, pa.array([_DEFAULTS.get(one.name)] * table.num_rows, one.type)
            )
    return table


def load_rows(file: Path) -> pa.Table:
    """Many cases in one parquet file, with its further columns after those of ``SCHEMA``, in order.

    Raises RunFolderError that names the file when it is truncated, foreign or of another schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(
            pa.BufferReader(file.read_bytes()), page_checksum_verification=True
        ) as parquet:
            _check_schema(file, parquet.schema_arrow)
            return in_order(_completed(parquet.read()).replace_schema_metadata(None))
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise RunFolderError(
            f"{file}: cannot be read ({_one_line(error)}); make or install it again"
        ) from None


def in_order(table: pa.Table) -> pa.Table:
    """The rows of ``table`` sorted by what was asked of the cases."""
    import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

    names = (*ORDER, "case_id")
    return table.take(pc.sort_indices(table.select(names), [(name, "ascending") for name in names]))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


PREFIX = "published:"
"""What tells the name of published results from the path of a run."""

FURTHER_COLUMNS = (
    "machine",
    "gpu",
    "gpus_per_node",
    "interconnect",
    "network",
    "library_version",
    "forced",
)
"""Text columns beside those of a run: the family, then the words of whoever collected the logs."""


def published_folder() -> Path:
    """The folder of the files; CcbenchError when the installation lacks it."""
    return shipped_folder("results") / "published"


def published_names(folder: Path | None = None) -> tuple[str, ...]:
    """Names of the families that ship."""
    return tuple(sorted(path.stem for path in (folder or published_folder()).glob("*.parquet")))


def load_published(name: str, folder: Path | None = None) -> Run:
    """The published results of the family ``name`` as a run. Raises UsageError, with near names."""
    folder = folder or published_folder()
    names = published_names(folder)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        cure = (
            f"did you mean {' or '.join(near)}"
            if near
            else f"there are {', '.join(names) or 'none'}"
        )
        raise UsageError(f"{PREFIX} {shown(name)} is not a machine with published results; {cure}")
    manifest = Manifest({"suite": {"name": f"{PREFIX}{name}"}, "machine": {"name": name}})
    return Run(Path(f"{PREFIX}{name}"), manifest, load_rows(folder / f"{name}.parquet"))


def open_run(name: Path | str, details: bool = True) -> Run:
    """The published results that ``published:NAME`` names, or else the run folder at that path.

    details: as of ``load_run``. Raises RunFolderError or UsageError where there is none.
    """
    text = str(name)
    return (
        load_published(text.removeprefix(PREFIX))
        if text.startswith(PREFIX)
        else load_run(name, details)
    )


def contents(name: str, folder: Path | None = None) -> dict[str, Any]:
    """A summary of one family's file. teams: (ranks, nodes), 0 nodes where not known."""
    points = load_published(name, folder).points
    return {
        "name": name,
        "rows": len(points),
        "sources": len({point.source for point in points}),
        "collectives": sorted({point.collective for point in points}),
        "teams": sorted({(point.ranks, point.nodes) for point in points}),
    }
