"""Writing of a report: every asked-for format of one or several runs, each file whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path

from ccbench.analysis.box import box_lines
from ccbench.analysis.findings import provenance, run_findings
from ccbench.analysis.pair_matrix import pair_matrices
from ccbench.analysis.winner import winner_sentence
from ccbench.errors import CcbenchError, RunFolderError, UsageError
from ccbench.report import drawing
from ccbench.report.baselines import (
    PAIRS_FILE,
    beside,
    comparable_points,
    pairs_csv,
    pairs_table,
)
from ccbench.report.bits_table import bits_table
from ccbench.report.case_table import case_table, csv_table
from ccbench.report.figure import Figure
from ccbench.report.figures import every_figure, made
from ccbench.report.maps import MATRIX_FILE, class_lines, matrices_csv, matrix_table, notes
from ccbench.report.nccl_tests import nccl_tests_tables
from ccbench.report.page import page_text
from ccbench.report.present import markdown, markdown_table
from ccbench.report.sharing import sharing_table
from ccbench.report.wording import footnote, points_of, summary_lines
from ccbench.results import Point, Run
from ccbench.results.files import write_atomically
from ccbench.units import plural

FORMATS = ("html", "png", "svg", "pdf", "md", "csv", "nccl-tests")
DEFAULT_FORMATS = ("html", "png", "md", "csv")

ONE_FILE = {"html": "report.html", "pdf": "report.pdf", "md": "report.md", "csv": "cases.csv"}
"""Formats that are a single file, and its name in a report's folder."""

Files = dict[str, bytes]


class ReportIncomplete(CcbenchError):
    """Some figures could not be drawn; ``files`` are those of the report that were written all the same."""

    def __init__(self, problems: Sequence[str], files: tuple[Path, ...]) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        where = files[0].parent if files else "no folder"
        super().__init__(
            f"report: {plural(len(problems), 'part')} could not be drawn, first: {problems[0]}{more}; "
            f"{plural(len(files), 'other file')} written to {where}; report this with the run folder"
        )
        self.files = files


def write_report(
    runs: Sequence[Run],
    output: Path | None = None,
    formats: Sequence[str] = DEFAULT_FORMATS,
    *,
    baseline: Run | None = None,
) -> tuple[Path, ...]:
    """Write the report of ``runs``, drawn together, and return its files.

    output: the folder of the report, made when it is not there; a file (``x.html``, ``x.pdf``,
        ``x.md``, ``x.csv``, which is the cases without further tables) when that format alone is asked
        for; None for ``report/`` in the first run's folder.
    baseline: an earlier run, or published results, drawn in grey behind the others where both measured alike.

    Raises UsageError for an unknown format or no run, RunFolderError when a file cannot be written, and
    ReportIncomplete, after everything else was written, when a figure could not be drawn.
    """
    if not runs:
        raise UsageError("report: no run was given; name a run folder")
    if output == Path("-"):
        raise UsageError("-o -: stdout takes --format junit; name a folder or a file")
    unknown = [one for one in formats if one not in FORMATS]
    if unknown or not formats:
        seen = repr(unknown[0]) if unknown else "nothing"
        raise UsageError(
            f"report: format is {seen}, expected one of {', '.join(FORMATS)}, or junit alone"
        )
    suffix = output.suffix.lstrip(".") if output is not None and not output.is_dir() else ""
    if suffix in ("png", "svg"):
        raise UsageError(
            f"report: {suffix} makes one file per figure; name a folder instead of {output}"
        )
    if suffix in (*FORMATS, "txt", "json") and list(formats) != [suffix]:
        asked = ",".join(formats)
        single = len(formats) == 1 and formats[0] in ONE_FILE
        cure = f"a file ending in .{formats[0]}" if single else "a folder"
        raise UsageError(
            f"report: {output} ends in .{suffix}, but the format asked for is {asked}; name {cure}, or ask "
            f"for one of {', '.join(ONE_FILE)} alone"
        )
    named = len(runs) > 1
    own = [points_of(run, name=run.path.name if named else "") for run in runs]
    points = [point for each in own for point in each]
    behind = comparable_points(points, baseline) if baseline is not None else ()
    problems: list[str] = []
    drawn = {"html", "png", "svg", "pdf"} & {*formats}
    figures = every_figure(runs, own, behind, problems) if drawn else []
    files = _pictures(figures, formats, problems) | _tables(runs, points, behind, formats)
    if "md" in formats:
        # The images are written beside it.
        images = [name for name in files if name.endswith(".png")]
        images = images or [name for name in files if name.endswith(".svg")]
        files[ONE_FILE["md"]] = markdown_report(runs, points, behind, images).encode()
        if card := [line for run in runs for line in box_lines(run)]:
            card += map(winner_sentence, runs)
            files["box.md"] = f"# This box\n\n{_listed(filter(None, card))}\n".encode()
    if "html" in formats:
        files[ONE_FILE["html"]] = page_text(runs, own, figures, behind, baseline).encode()
    if output is not None and output.suffix and len(formats) == 1 and formats[0] in ONE_FILE:
        # Tables of pairs are further files: one name is for one, and that is the cases.
        content = files.get(ONE_FILE[formats[0]])
        targets = {} if content is None else {output: content}
    else:
        folder = output if output is not None else runs[0].path / "report"
        targets = {folder / name: content for name, content in files.items()}
    for target, content in targets.items():
        write_file(target, content)
    if problems:
        raise ReportIncomplete(problems, tuple(targets))
    return tuple(targets)


def write_file(target: Path, content: bytes) -> None:
    """Write one file of a report, whole; RunFolderError where that cannot be."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise RunFolderError(
            f"{target}: cannot be written ({error.strerror or error}); name another place with -o"
        ) from error


def _pictures(figures: Sequence[Figure], formats: Sequence[str], problems: list[str]) -> Files:
    """Files of figures; those that cannot be drawn are left out and named in ``problems``."""
    names = unique_names([figure.key for figure in figures])
    drawings: dict[str, Callable[[], bytes]] = {
        f"{name}.{form}": partial(drawing.render, figure, form)
        for form in ("png", "svg")
        if form in formats
        for name, figure in zip(names, figures, strict=True)
    }
    if "pdf" in formats:
        drawings[ONE_FILE["pdf"]] = partial(drawing.render_pages, figures)
    files: Files = {}
    for name, draw in drawings.items():
        content = made(name, draw, problems)
        files |= {} if content is None else {name: content}
    return files


def _tables(
    runs: Sequence[Run],
    points: Sequence[Point],
    behind: Sequence[Point],
    formats: Sequence[str],
) -> Files:
    """Files of tables for other programs: nccl-tests' text and CSV."""
    files: Files = {}
    if "nccl-tests" in formats:
        tables = nccl_tests_tables(points)
        names = unique_names([name for name, _ in tables])
        files = {
            f"{name}.nccl-tests.txt": text.encode()
            for name, (_, text) in zip(names, tables, strict=True)
        }
    if "csv" in formats:
        # Elsewhere a single run goes without its name; rows that are put together later need it.
        name = runs[0].path.resolve().name
        named = [replace(point, run=point.run or name) for point in (*points, *behind)]
        matrices = [matrix for run in runs for matrix in pair_matrices(run)]
        texts = {
            ONE_FILE["csv"]: csv_table(named),
            MATRIX_FILE: matrices_csv(matrices) if matrices else "",
            PAIRS_FILE: pairs_csv(beside(points, behind)) if behind else "",
        }
        files |= {name: text.encode() for name, text in texts.items() if text}
    return files


def _listed(lines: Iterable[str], longest: int = 1000) -> str:
    return "\n".join(f"* {markdown(line, longest)}" for line in lines)


def markdown_report(
    runs: Sequence[Run],
    points: Sequence[Point],
    behind: Sequence[Point],
    images: Sequence[str] = (),
) -> str:
    """A page: verdict, findings, figures, tables, small print. images: file names beside the page."""
    label = provenance(points)
    title = ", ".join(dict.fromkeys(run.suite or run.path.name for run in runs))
    parts = [f"# {markdown(' '.join(part for part in (label, title) if part))}"]
    # Where there are several runs, each line says of which it is.
    named = [(run, f"{run.path.name}: " if len(runs) > 1 else "") for run in runs]
    parts.append(_listed(name + line for run, name in named for line in summary_lines(run)))
    findings = [
        f"{name}{finding}"
        for run, name in named
        for finding in run_findings(run, points_of(run))
    ]
    parts += ["## Findings", _listed(findings)] if findings else []
    parts += [f"![{name.rsplit('.', 1)[0]}]({name})" for name in images]
    if points:
        text = "Bandwidths in GB/s (1e9 bytes/s); of bound: the bound's time over the measured one."
        cases = markdown_table(case_table(points))
        parts += ["## Cases", text, cases, "## Small print", _listed(footnote(points), 2000)]
    problems = [problem for run in runs for problem in run.problems]
    parts += ["## Files that could not be read", _listed(problems)] if problems else []
    matrices = [matrix for run in runs for matrix in pair_matrices(run)]
    parts += ["## Every pair of ranks"] if matrices else []
    for matrix in matrices:
        table = matrix_table(matrix)
        remarks = _listed([*class_lines(matrix), *notes(matrix)])
        parts += [markdown(table.title), markdown_table(table), remarks]
    for heading, table in (
        ("Bits", bits_table(points)),
        ("Sharing", sharing_table(points)),
        ("Compared with the baseline", pairs_table(beside(points, behind))),
    ):
        parts += [f"## {heading}", table.text, markdown_table(table)] if table.rows else []
    return "\n\n".join(filter(None, parts)) + "\n"


def unique_names(keys: Sequence[str]) -> list[str]:
    """File names of ``keys``, of lower-case letters, digits, dashes and underscores, at most 80.

    Where two keys give the same name, the later one is numbered.
    """
    names: list[str] = []
    for key in keys:
        stem = re.sub(r"[^a-z0-9_]+", "-", key.lower()).strip("-")[:80] or "figure"
        numbered = (f"{stem}-{number}" for number in count(2))
        names.append(next(name for name in chain([stem], numbered) if name not in names))
    return names
