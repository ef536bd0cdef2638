"""Makes the published results that ship, results/published/<machine family>.parquet, from a folder of logs.

    python -m benchmarks.publish MANIFEST.yaml results/published
    python -m benchmarks.publish results/published/servers/manifest.yaml results/published/servers all_reduce

The manifest is a list of mappings with ``file`` (beside it), ``gpu``, ``gpus_per_node``, ``nodes``,
``interconnect``, ``network``, ``nccl_version``, ``forced``, ``source`` and ``healthy``; only logs whose
``healthy`` is true are taken, and of those only rows that have a speed. ``family`` names the file where the words
do not, ``ranks`` lists those that are taken, and ``flags`` are put on every row: one that ccbench does not know keeps
rows from every comparison.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.cases.measurement import Status
from ccbench.collectives import COLLECTIVES
from ccbench.errors import CcbenchError
from ccbench.readers.benchmarks import read_log
from ccbench.readers.benchmarks.log import ImportedLog, StatedSystem
from ccbench.results import arrow_schema
from ccbench.results.imported_runs import imported
from ccbench.results.loading import FURTHER_COLUMNS
from ccbench.results.schema import row_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

SUITE = "published"

_UNKNOWN_WORDS = ("", "none", "none known", "unknown")
_UNCITED = re.compile(r"\s*\([^()]*\bfile id\b[^()]*\)")
_NAMELESS = "public repository, name not recorded"
_FORCED = re.compile(r"\bNCCL_(ALGO|PROTO)=([A-Za-z0-9]+)\b")

_COLLECTIVES = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
"""nccl-tests' words for collectives, where they are not ours."""

_RULES: tuple[tuple[str, str, str], ...] = (
    ("gb200-nvl72", r"\bGB200\b", r""),
    ("gh200x4", r"\bGH200\b", r""),
    ("hgx-b200", r"\bB200\b", r""),
    ("hgx-h200", r"\bH200\b", r""),
    ("h800", r"\bH800\b", r""),
    ("hgx-h100", r"\bH100\b", r"nvswitch"),
    ("h100-pcie-bridge", r"\bH100\b.*PCIe", r"bridge"),
    ("dgx-a100", r"\bA100\b", r"nvswitch"),
    ("a100-pcie-bridge", r"\bA100\b.*PCIe", r"bridge"),
    ("dgx-2", r"\bV100\b", r"nvswitch"),
    ("dgx-1v", r"\bV100\b", r"cube-mesh"),
    ("mi300x", r"\bMI300X\b", r""),
    ("l40s", r"\bL40S\b", r""),
    ("rtx-pcie", r"\bRTX\b", r"pcie"),
)
"""Family (a name of the machine catalog), what the GPU's words and the interconnect's must hold."""

Row = dict[str, Any]


def family_of(gpu: str, interconnect: str) -> str:
    """``hgx-h100`` for ``H100 SXM`` joined by ``nvswitch3``; a name made of the GPU's words where none fits.

    Where the words name two kinds of GPU, or leave open which, no family of the catalog fits.
    """
    model = gpu.partition("(")[0].strip()
    if not re.search(r"\bor\b|\+|\band\b", model):
        for family, wanted, joined in _RULES:
            if re.search(wanted, model) and re.search(joined, interconnect):
                return family
    return re.sub(r"[^a-z0-9]+", "-", (model or gpu).lower()).strip("-") or "unknown"


def source_text(text: str) -> str:
    """Where a log was published, in words that mean something to everybody.

    Numbers of a collector's own index are taken out; what then names no repository says so.
    """
    named = _UNCITED.sub("", text).strip(" ;,")
    if "repository not named" in named:
        named = named.partition("repository not named")[0].strip(" (;,")
    if not named:
        return _NAMELESS
    cited = re.match(r"[\w.-]+/[\w.-]+(?:[:#]\S|$)|https?://", named) is not None
    return named if cited or not _UNCITED.search(text) else f"{named}; {_NAMELESS}"


def rows_of(
    entry: Mapping[str, Any], log: ImportedLog, first_table: int = 1
) -> tuple[list[Row], list[str]]:
    """The rows of one log of a manifest, and a line for everything that was left out.

    first_table: number of the log's first table among those of its source.
    """
    source = source_text(str(entry.get("source", "")))
    devices, nodes = entry.get("gpus_per_node"), entry.get("nodes")
    counted = isinstance(nodes, int) or (
        bool(log.tables) and all(table.nodes for table in log.tables)
    )
    known = isinstance(devices, int) and devices > 0 and counted
    system = StatedSystem(
        "", devices if known else None, nodes if isinstance(nodes, int) else None
    )
    told = _with_collective(replace(log, source=source), str(entry.get("collective", "")))
    found = imported(_with_forced(told, str(entry.get("forced", ""))), system)
    further = _further(entry)
    rows, lost = [], 0
    for case in found.cases:
        measurement = replace(
            case.measurement, case=replace(case.measurement.case, suite=SUITE)
        )
        if further["library_version"] and not measurement.backend_version:
            measurement = replace(measurement, backend_version=further["library_version"])
        origin = replace(case.origin, table=case.origin.table + first_table - 1)
        row = row_of(measurement, None, 0.95, origin)
        if measurement.status == Status.OK and row["median_seconds"] is not None:
            # The line is one of the collected file, which nobody else has.
            flags = [*row["flags"], *entry.get("flags", ())]
            rows.append({**row, **further, "source_line": None, "flags": flags})
        else:
            lost += 1
    return rows, [*found.refused, *([f"{lost} rows without a speed left out"] if lost else [])]


def _with_collective(log: ImportedLog, word: str) -> ImportedLog:
    """``log`` with the collective that its collector names, on tables that name none."""
    name = _COLLECTIVES.get(word, word)
    if name not in COLLECTIVES:
        return log
    return replace(
        log,
        tables=tuple(
            replace(table, collective=table.collective or name) for table in log.tables
        ),
    )


def _with_forced(log: ImportedLog, forced: str) -> ImportedLog:
    """``log`` with the algorithm and protocol that its collector saw being forced, where it says nothing."""
    words = {name: value.lower() for name, value in _FORCED.findall(forced)}
    tables = []
    for table in log.tables:
        algorithm = (
            words.get("ALGO", "default") if table.algorithm == "default" else table.algorithm
        )
        protocol = (
            words.get("PROTO", "default") if table.protocol == "default" else table.protocol
        )
        tables.append(replace(table, algorithm=algorithm, protocol=protocol))
    return replace(log, tables=tuple(tables))


def _further(entry: Mapping[str, Any]) -> dict[str, str]:
    words = {
        name: _said(entry.get(name)) for name in ("gpu", "interconnect", "network", "forced")
    }
    return {
        **words,
        "machine": _said(entry.get("family")) or family_of(words["gpu"], words["interconnect"]),
        "gpus_per_node": _said(entry.get("gpus_per_node")),
        "library_version": _said(entry.get("nccl_version")),
    }


def _said(value: Any) -> str:
    text = "" if value is None else str(value).strip()
    return "" if text.lower() in _UNKNOWN_WORDS or text.lower().startswith("unknown") else text


def collect(manifest: Path) -> tuple[dict[str, list[Row]], list[str]]:
    """Family -> rows of every healthy log of ``manifest``, and a line for everything that was left out.

    Raises CcbenchError when the manifest cannot be read.
    """
    rows: dict[str, list[Row]] = defaultdict(list)
    left_out: list[str] = []
    tables: dict[str, int] = defaultdict(int)
    for entry in _entries(manifest):
        file = str(entry.get("file", ""))
        if entry.get("healthy") is not True:
            left_out.append(f"{file}: not known to be healthy")
            continue
        try:
            log = read_log(manifest.parent / file)
        except CcbenchError as error:
            left_out.append(str(error))
            continue
        source = source_text(str(entry.get("source", "")))
        found, lost = rows_of(entry, log, tables[source] + 1)
        tables[source] += len(log.tables)
        left_out += [f"{file}: {line}" for line in lost]
        taken = entry.get("ranks")
        for row in found:
            if taken is None or row["ranks"] in taken:
                rows[row["machine"]].append(row)
    return dict(rows), left_out


def _entries(manifest: Path) -> Sequence[Mapping[str, Any]]:
    import yaml

    try:
        plain = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CcbenchError(
            f"{manifest}: cannot be read ({' '.join(str(error).split())[:200]})"
        ) from None
    entries = plain.get("entries", plain.get("logs")) if isinstance(plain, Mapping) else plain
    if not isinstance(entries, list) or not all(
        isinstance(entry, Mapping) for entry in entries
    ):
        raise CcbenchError(
            f"{manifest}: not a list of logs; write one mapping per log with file and source"
        )
    return entries


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as an Arrow table of the run schema and FURTHER_COLUMNS, in one order whatever theirs."""
    import pyarrow as pa

    schema = arrow_schema()
    for name in FURTHER_COLUMNS:
        schema = schema.append(pa.field(name, pa.string(), nullable=False))
    order = (
        "collective",
        "ranks",
        "nodes",
        "dtype",
        "op",
        "source",
        "source_table",
        "size_bytes",
        "in_place",
    )
    ordered = sorted(rows, key=lambda row: tuple(row[name] for name in (*order, "case_id")))
    return pa.Table.from_pylist(ordered, schema=schema)


def write_published(rows: Mapping[str, Sequence[Row]], folder: Path) -> tuple[Path, ...]:
    """One parquet file per family in ``folder``; files of families that are no longer there stay."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for family, members in sorted(rows.items()):
        file = folder / f"{family}.parquet"
        pq.write_table(table_of(members), file, compression="zstd", write_page_checksum=True)
        files.append(file)
    return tuple(files)


def main(arguments: Sequence[str]) -> int:
    """``MANIFEST FOLDER [NAME]``: make the files, or the one NAME, and say what is in them. Returns the exit code."""
    if len(arguments) not in (2, 3):
        print(
            "usage: python -m benchmarks.publish MANIFEST.yaml FOLDER [NAME]", file=sys.stderr
        )
        return 2
    try:
        rows, left_out = collect(Path(arguments[0]))
    except CcbenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if arguments[2:]:
        rows = {arguments[2]: [row for members in rows.values() for row in members]}
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    for file in write_published(rows, Path(arguments[1])):
        print(f"{file}: {len(rows[file.stem])} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
