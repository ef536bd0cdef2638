"""Markdown pages with tables of figures, as people publish them: several tables, columns in any order.

Columns are told apart by their headings (payload, busbw, algbw, time, GPUs, nodes, algorithm, collective) and
by the units in their cells. A column of rates becomes a table of its own: its heading may name ranks, nodes
or a variant ("4 nodes", "busbw, NVLS off"). A rate whose heading does not say which one it is stays beside
the row and is not taken for busbw. Nothing that the page does not say is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ccbench.importing.checks import SIZE_NOT_STATED
from ccbench.importing.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.importing.readers.figures import half_unit_of, value_of, whole
from ccbench.importing.readers.markdown_cells import (
    collective_in,
    payload_in,
    ranks_in,
    rate,
    seconds,
    settings_in,
    size,
    without_markup,
)
from ccbench.importing.readers.markdown_pipes import PipeTable, pipe_tables
from ccbench.importing.readers.words import dtype_name, op_of

RATE_KIND_UNKNOWN = "rate_kind_unknown"
"""Flag of a row with a rate that may be algbw or busbw; it is in extra as rate_gb_per_second."""

_ROLES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (role, re.compile(words, re.IGNORECASE))
    for role, words in (
        ("ratio", r"%|speed-?up|slow-?down|\bgain\b|\bratio\b|efficiency"),
        ("busbw", r"bus ?-?bw|bus ?bandwidth"),
        ("algbw", r"alg(?:o|orithm)? ?-?bw|alg(?:o|orithm)? ?bandwidth"),
        ("size", r"payload|\bsize|\bbytes\b"),
        ("seconds", r"\btime\b|latency|duration"),
        ("ranks", r"^#? ?(?:gpus?|ranks?|nranks|processes|world ?size)$"),
        ("nodes", r"^#? ?(?:nodes?|hosts?)$"),
        ("algorithm", r"\balgo(?:rithm)?\b"),
        ("protocol", r"\bproto(?:col)?\b"),
        ("collective", r"collective|operation|^op$|^test$"),
        ("dtype", r"\bd?type\b|datatype"),
    )
)
_KNOWN_WORDS = re.compile(
    r"bus ?-?bw|alg(?:o|orithm)? ?-?bw|(?:bus|alg(?:o|orithm)?) ?bandwidth|bandwidth|time|latency|"
    r"\d+ ?(?:nodes?|gpus?|ranks?)|out[- ]of[- ]place|in[- ]place|\([^)]{0,20}\)|[GM]i?B/s|[GM]Bps|Gbps",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Column:
    """A column of figures. variant: what its heading says besides kind, unit, ranks and nodes."""

    index: int
    kind: str
    heading: str
    ranks: int | None
    nodes: int | None
    variant: str

    @property
    def group(self) -> tuple[int | None, int | None, str, bool]:
        """Columns that agree in this stand for one measurement."""
        return (
            self.ranks,
            self.nodes,
            self.variant,
            "in-place" in self.heading.lower().replace(" ", "-").replace("out-of-place", ""),
        )


def recognises(text: str) -> bool:
    """Whether ``text`` has a Markdown table with rates or times in it."""
    return "|" in text and any(True for _ in figure_tables(text))


def read(text: str) -> ImportedLog:
    """Every table of figures on the page; other tables are passed over."""
    return ImportedLog(tool="markdown-table", tables=tuple(figure_tables(text)), outcome=Outcome.UNKNOWN)


def figure_tables(text: str) -> Iterator[ImportedTable]:
    """One table for each group of columns and each collective, ranks, nodes and algorithm in it."""
    for table in pipe_tables(text):
        roles = [_role(table, index) for index in range(len(table.headings))]
        groups: dict[tuple[int | None, int | None, str, bool], list[_Column]] = {}
        for column in _figure_columns(table, roles):
            groups.setdefault(column.group, []).append(column)
        for columns in groups.values():
            yield from _split(table, roles, columns)


def _role(table: PipeTable, index: int) -> str:
    """What the column holds: by its heading, else by its cells, which may be rates; "" for the rest.

    Which rates they are, the text above may say; it does not where it speaks of both kinds.
    """
    heading = without_markup(table.headings[index])
    for role, words in _ROLES:
        if words.search(heading):
            return role
    cells = [row.cells[index] for row in table.rows]
    rates = sum(rate(cell, "") is not None for cell in cells)
    if not rates or 2 * rates < len(cells):
        return ""
    named = [role for role, words in _ROLES[1:3] if words.search(without_markup(table.context))]
    return named[0] if len(named) == 1 else "rate"


def _figure_columns(table: PipeTable, roles: list[str]) -> Iterator[_Column]:
    for index, role in enumerate(roles):
        if role in ("busbw", "algbw", "rate", "seconds"):
            heading = without_markup(table.headings[index])
            ranks, nodes = ranks_in(heading)
            variant = _KNOWN_WORDS.sub(" ", heading).strip(" ,;:-")
            yield _Column(index, role, heading, ranks, nodes, re.sub(r"\s+", " ", variant))


def _split(table: PipeTable, roles: list[str], columns: list[_Column]) -> Iterator[ImportedTable]:
    """The rows of one group of columns, a table for each set of facts that rows state."""
    found: dict[
        tuple[str, int | None, int | None, str, str, tuple[tuple[str, str], ...]], list[ImportedRow]
    ] = {}
    for row in table.rows:
        said = {role: row.cells[i] for i, role in reversed(list(enumerate(roles))) if role}
        facts = _facts(table, said, columns[0])
        made = _row(table, roles, columns, row.cells, said, row.line, facts[0])
        if made is not None:
            found.setdefault(facts, []).append(made)
    for (collective, ranks, nodes, algorithm, protocol, settings), rows in found.items():
        variant = columns[0].variant
        yield ImportedTable(
            collective=collective,
            rows=tuple(rows),
            ranks=ranks,
            nodes=nodes,
            algorithm=algorithm,
            protocol=protocol,
            line=table.line,
            facts={
                **({"variant": variant} if variant else {}),
                **({"environment": dict(settings)} if settings else {}),
            },
        )


def _facts(
    table: PipeTable, said: dict[str, str], column: _Column
) -> tuple[str, int | None, int | None, str, str, tuple[tuple[str, str], ...]]:
    """(collective, ranks, nodes, algorithm, protocol, settings) of a row: its cells, else the text above."""
    context_ranks, context_nodes = ranks_in(table.context, only="over")
    settings = settings_in(" ".join((column.heading, *said.values())))
    # What the library picked is of the plain column; another variant may have picked something else.
    algorithm = without_markup(said.get("algorithm", "")).lower() if not column.variant else ""
    forced = dict(settings)
    return (
        collective_in(said.get("collective", ""))
        or collective_in(column.heading)
        or collective_in(table.context),
        whole(without_markup(said.get("ranks", ""))) or column.ranks or context_ranks,
        whole(without_markup(said.get("nodes", ""))) or column.nodes or context_nodes,
        algorithm or forced.get("NCCL_ALGO", "").lower() or "default",
        without_markup(said.get("protocol", "")).lower() or forced.get("NCCL_PROTO", "").lower() or "default",
        settings,
    )


def _row(
    table: PipeTable,
    roles: list[str],
    columns: list[_Column],
    cells: tuple[str, ...],
    said: dict[str, str],
    line: int,
    collective: str,
) -> ImportedRow | None:
    figures = {}
    for column in columns:
        reader = seconds if column.kind == "seconds" else rate
        figures[column.kind] = reader(cells[column.index], column.heading)
    if not any(figures.values()):
        return None
    at = roles.index("size") if "size" in roles else None
    size_bytes = size(cells[at], table.headings[at]) if at is not None else payload_in(table.context)
    if at is not None and size_bytes is None:
        return None
    time, algbw, busbw = (figures.get(kind) for kind in ("seconds", "algbw", "busbw"))
    unlabelled = figures.get("rate")
    flags = (
        *((SIZE_NOT_STATED,) if size_bytes is None else ()),
        *((RATE_KIND_UNKNOWN,) if unlabelled else ()),
    )
    return ImportedRow(
        size_bytes=size_bytes or 0,
        count=None,
        dtype=dtype_name(without_markup(said.get("dtype", ""))),
        op=op_of(collective, ""),
        root=-1,
        in_place=columns[0].group[3],
        seconds=value_of(time),
        algbw=value_of(algbw),
        busbw=value_of(busbw),
        half_units=(half_unit_of(time), half_unit_of(algbw), half_unit_of(busbw)),
        flags=flags,
        line=line,
        extra={
            **({"rate_gb_per_second": unlabelled.value} if unlabelled else {}),
            **{
                without_markup(table.headings[i]): without_markup(cells[i])
                for i, role in enumerate(roles)
                if role == "ratio"
            },
        },
    )
