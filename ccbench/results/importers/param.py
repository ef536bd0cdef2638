"""PARAM's comms.py: the lines that begin with COMMS-RES, under a header that begins so too.

The size is nccl-tests' size (the bytes of all blocks for all-gather, reduce-scatter and all-to-all); the time
is the median over ranks of each rank's mean over iterations; rates are in 1e9 bytes per second. Old lines
have tabs and name no collective; new ones are COMMS-RES-<collective>-<dtype>. Source: comms.py and
pytorch_dist_backend.py (get_mem_size) of https://github.com/facebookresearch/param.
"""

from __future__ import annotations

import re

from ccbench.results.importers.columns import Column, Columns, cells_of, log_of, row_of
from ccbench.results.importers.lines import no_row, source_lines
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable
from ccbench.results.importers.words import (
    Launch,
    collective_name,
    dtype_name,
    launch_of,
    op_of,
    program_collective,
    root_of,
)
from ccbench.topology.graph import Notice

_LINE = re.compile(
    r"[ \t]*COMMS-(?:QUANT-)?RES(?:-(?P<name>[A-Za-z]\w{0,40}))?(?:-(?P<dtype>[a-z]\w{0,20}))?"
    r"(?P<tag>[^ \t]{0,60})"
)
_PAIR_RATES = ("avgunibw", "avgbibw", "totalunibw", "totalbibw")
_COLUMNS = Columns(
    Column(r"(?:total-pair-|total-)?size \(B\)", "size_bytes"),
    Column("num-elements-pair|nElementsPairPerRank", ""),
    Column("num-elements|nElementsPerRank", "count"),
    Column(r"(?:ping)?Latency\(us\):p50", "seconds", 1e6),
    Column(r"pingPongLatency\(us\):p50", "pingponglatency_p50_seconds", 1e6),
    Column(r"TotalLatency\(us\):p50", "totallatency_p50_seconds", 1e6),
    Column(r"CompLatency\(us\):p50", "complatency_p50_seconds", 1e6),
    Column("p75|p95", "{}_seconds", 1e6),
    Column("min", "minimum_seconds", 1e6),
    Column("max", "maximum_seconds", 1e6),
    Column(r"algbw\(GB/s\)", "algbw"),
    Column(r"busbw\(GB/s\)", "busbw"),
    *(Column(rf"{rate}\(GB/s\)", f"{rate}_gb_per_second") for rate in _PAIR_RATES),
    Column("TFlops", "tflops"),
    Column(r"op\[0\]", "op_0"),
    Column(r"P95 Latency\(us\): Quant", "p95_quant_seconds", 1e6),
    Column("Comms|De-Quant|Overall", "p95_{}_seconds", 1e6),
)
_QUOTED = _COLUMNS.only("size (B) algbw(GB/s) busbw(GB/s)")
_WORLD = re.compile(r"world_size:[ \t]*(\d{1,7})")
_COMMAND = re.compile(r"--collectives?[ =]([a-z_]{3,40})")


def recognises(text: str) -> bool:
    """Return whether a result line of this tool is in ``text``."""
    return "COMMS-RES" in text or "COMMS-QUANT-RES" in text


def read(text: str) -> ImportedLog:
    """One table for each collective and element type, in the order they first appear."""
    rows: dict[tuple[str, str, int | None, int | None], list[ImportedRow]] = {}
    notices: list[Notice] = []
    columns: tuple[Column, ...] = ()
    launch, stated, world = Launch(), "", None
    lines = list(source_lines(text))
    for line in lines:
        launch = launch_of(line.text) or launch
        if found := _WORLD.search(line.text):
            world = int(found[1])
        if found := _COMMAND.search(line.text):
            stated = found[1]
        stated = program_collective(line.text) or stated
        match = _LINE.match(line.text)
        if match is None:
            continue
        if "size (B)" in line.text:
            columns = _COLUMNS.of(line.text[match.end() :])
            continue
        name = collective_name(match["name"] or stated)
        texts = line.text[match.end() :].split()
        # As people quote a line: size and both rates. A header may name columns that its mode leaves empty;
        # they are the last ones.
        shown = _QUOTED if len(texts) == 3 and len(columns) != 3 else columns[: len(texts)]
        cells = cells_of(shown, texts) if len(texts) >= 3 else None
        if cells is None or shown[0].name != "size_bytes":
            notices.append(no_row(line))
            continue
        dtype, op = dtype_name(match["dtype"] or ""), op_of(name, "")
        key = (name, match["tag"].strip("-"), world or launch.ranks, launch.nodes)
        row = row_of(line.number, cells, dtype=dtype, op=op, root=root_of(name))
        rows.setdefault(key, []).append(row)
    return log_of("param", lines, [_table(*key, found) for key, found in rows.items()], notices)


def _table(
    collective: str, tag: str, ranks: int | None, nodes: int | None, rows: list[ImportedRow]
) -> ImportedTable:
    facts = {"seconds_are": "median over ranks of means over iterations", **({"tag": tag} if tag else {})}
    return ImportedTable(collective, tuple(rows), ranks, nodes, line=rows[0].line, facts=facts)
