"""PARAM's comms.py: the lines that begin with COMMS-RES, under a header that begins so too.

The size is nccl-tests' size (the bytes of all blocks for all-gather, reduce-scatter and all-to-all); the time
is the median over ranks of each rank's mean over iterations; rates are in 1e9 bytes per second. Old lines
have tabs and name no collective; new ones are COMMS-RES-<collective>-<dtype>. Source: comms.py and
pytorch_dist_backend.py (get_mem_size) of https://github.com/facebookresearch/param.
"""

from __future__ import annotations

import re

from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers.lines import (
    Figure,
    Line,
    bad_ending,
    capped,
    figure,
    microseconds,
    no_row,
    printed_row,
    source_lines,
    whole,
)
from ccbench.results.importers.readers.words import (
    Launch,
    collective_name,
    dtype_name,
    launch_of,
    op_of,
    program_of,
    root_of,
)
from ccbench.topology.graph import Notice

_LINE = re.compile(
    r"[ \t]*COMMS-(?:QUANT-)?RES(?:-(?P<name>[A-Za-z]\w{0,40}))?(?:-(?P<dtype>[a-z]\w{0,20}))?"
    r"(?P<tag>[^ \t]{0,60})"
)
_COLUMN = re.compile(
    r"(?:total-pair-|total-)?size \(B\)|num-elements-pair|num-elements|nElementsPairPerRank|nElementsPerRank|"
    r"(?:ping|pingPong|Total|Comp)?Latency\(us\):p50|p75|p95|min|max|algbw\(GB/s\)|busbw\(GB/s\)|"
    r"(?:avg|total)(?:Uni|Bi)BW\(GB/s\)|TFlops|op\[0\]|P95 Latency\(us\): Quant|Comms|De-Quant|Overall",
    re.IGNORECASE,
)
_WORLD = re.compile(r"world_size:[ \t]*(\d{1,7})")
_COMMAND = re.compile(r"--collectives?[ =]([a-z_]{3,40})")
_DIRECT = {"algbw(gb/s)", "busbw(gb/s)", "latency(us):p50"}


def recognises(text: str) -> bool:
    """Whether a result line of this tool is in ``text``."""
    return "COMMS-RES" in text or "COMMS-QUANT-RES" in text


def read(text: str) -> ImportedLog:
    """One table for each collective and element type, in the order they first appear."""
    rows: dict[tuple[str, str, int | None, int | None], list[ImportedRow]] = {}
    notices: list[Notice] = []
    columns: tuple[str, ...] = ()
    launch, stated, world = Launch(), "", None
    lines = list(source_lines(text))
    for line in lines:
        launch = launch_of(line.text) or launch
        if found := _WORLD.search(line.text):
            world = int(found[1])
        if found := _COMMAND.search(line.text):
            stated = found[1]
        stated = program_of(line.text) or stated
        match = _LINE.match(line.text)
        if match is None:
            continue
        header = tuple(column.lower() for column in _COLUMN.findall(line.text[match.end() :]))
        if "size (B)" in line.text:
            columns = header
            continue
        name = collective_name(match["name"] or stated)
        row = _row(match, line, name, columns)
        if row is None:
            notices.append(no_row(line))
            continue
        key = (name, match["tag"].strip("-"), world or launch.ranks, launch.nodes)
        rows.setdefault(key, []).append(row)
    ending = bad_ending(lines)
    return ImportedLog(
        tool="param",
        tables=tuple(_table(*key, tuple(found)) for key, found in rows.items()),
        notices=capped(notices),
        outcome=ending[0] if ending else Outcome.UNKNOWN,
        detail=ending[1] if ending else "",
    )


def _row(match: re.Match[str], line: Line, collective: str, columns: tuple[str, ...]) -> ImportedRow | None:
    cells = line.text[match.end() :].split()
    if len(cells) == 3 and len(columns) != 3:  # as people quote a line: size and both rates
        columns = ("size (b)", "algbw(gb/s)", "busbw(gb/s)")
    # A header may name columns that its mode leaves empty; they are the last ones.
    if not columns or not 3 <= len(cells) <= len(columns):
        return None
    by_column = dict(zip(columns, cells, strict=False))
    size_bytes = whole(cells[0])
    seconds = microseconds(by_column.get("latency(us):p50", by_column.get("pinglatency(us):p50", "")))
    algbw, busbw = figure(by_column.get("algbw(gb/s)", "")), figure(by_column.get("busbw(gb/s)", ""))
    if size_bytes is None or not columns[0].endswith("size (b)") or (seconds is None and algbw is None):
        return None
    elements = by_column.get("nelementsperrank", by_column.get("num-elements", ""))
    return printed_row(
        line.number,
        size_bytes,
        seconds,
        algbw,
        busbw,
        count=whole(elements),
        dtype=dtype_name(match["dtype"] or ""),
        op=op_of(collective, ""),
        root=root_of(collective),
        extra=_extra(by_column),
    )


def _extra(by_column: dict[str, str]) -> dict[str, float]:
    """Percentiles over ranks in seconds, other rates in 1e9 bytes per second."""
    extra: dict[str, float] = {}
    for column, cell in by_column.items():
        found: Figure | None = figure(cell)
        if found is None or column in _DIRECT or "size" in column or "elements" in column:
            continue
        name = re.sub(r"\W+", "_", column.replace("(us):", "_").replace("(gb/s)", "_gb_per_second")).strip(
            "_"
        )
        name = {"min": "minimum", "max": "maximum"}.get(name, name)
        is_time = "latency" in column or column in ("p75", "p95", "min", "max")
        extra[f"{name}_seconds" if is_time else name] = found.value / 1e6 if is_time else found.value
    return extra


def _table(
    collective: str, tag: str, ranks: int | None, nodes: int | None, rows: tuple[ImportedRow, ...]
) -> ImportedTable:
    return ImportedTable(
        collective=collective,
        rows=rows,
        ranks=ranks,
        nodes=nodes,
        line=rows[0].line,
        facts={
            "seconds_are": "median over ranks of means over iterations",
            **({"tag": tag} if tag else {}),
        },
    )
