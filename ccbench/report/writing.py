"""Write a report: every asked-for format of one or several runs, each file whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ccbench.analysis.health import pair_matrices
from ccbench.errors import CcbenchError, RunFolderError, UsageError
from ccbench.report.baselines import (
    PAIRS_FILE,
    beside,
    comparable_points,
    pairs_csv,
    pairs_markdown,
)
from ccbench.report.figure import Figure
from ccbench.report.figures import figures_of
from ccbench.report.misses import miss_lines
from ccbench.report.nccl_tests_format import nccl_tests_tables
from ccbench.report.page import page_content, render_page
from ccbench.report.pair_figures import MATRIX_FILE, matrices_csv, matrices_markdown, pair_figures
from ccbench.report.points import points_of
from ccbench.report.sample_figures import sample_figures
from ccbench.report.sharing import sharing_of
from ccbench.report.sharing_figures import sharing_figures
from ccbench.report.sharing_tables import SHARING_FILE, sharing_csv, sharing_markdown
from ccbench.report.tables import csv_table, markdown_report
from ccbench.report.text import file_name, plural
from ccbench.report.verdict import verdict_lines
from ccbench.results import Point, Run
from ccbench.results.folder import write_atomically
from ccbench.units import plain

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
        self.problems = tuple(problems)
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
    _check(runs, output, formats)
    named = len(runs) > 1
    own = [points_of(run, name=run.path.name if named else "") for run in runs]
    points = [point for each in own for point in each]
    behind = comparable_points(points, baseline) if baseline is not None else ()
    problems: list[str] = []
    files = _files(runs, own, behind, formats, problems)
    if "html" in formats:
        page = page_content(runs, own, behind, baseline, problems)
        files[ONE_FILE["html"]] = render_page(page).encode()
    if output is not None and output.suffix and len(formats) == 1 and formats[0] in ONE_FILE:
        # Tables of pairs and of sharing are further files: one name is for one, and that is the cases.
        targets = [(output, content) for name, content in files.items() if name == ONE_FILE[formats[0]]]
    else:
        folder = output if output is not None else runs[0].path / "report"
        targets = [(folder / name, content) for name, content in files.items()]
    for target, content in targets:
        _write(target, content)
    written = tuple(target for target, _ in targets)
    if problems:
        raise ReportIncomplete(problems, written)
    return written


def _write(target: Path, content: bytes) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise RunFolderError(
            f"{target}: cannot be written ({error.strerror or error}); name another place with -o"
        ) from error


def _check(runs: Sequence[Run], output: Path | None, formats: Sequence[str]) -> None:
    if not runs:
        raise UsageError("report: no run was given; name a run folder")
    unknown = [one for one in formats if one not in FORMATS]
    if unknown or not formats:
        seen = repr(unknown[0]) if unknown else "nothing"
        raise UsageError(f"report: format is {seen}, expected one of {', '.join(FORMATS)}")
    suffix = output.suffix.lstrip(".") if output is not None and not output.is_dir() else ""
    if suffix in (*FORMATS, "txt") and list(formats) != [suffix]:
        raise UsageError(
            f"report: {output} is a file name, but {', '.join(formats)} make several files; name a folder, "
            f"or ask for one of {', '.join(ONE_FILE)} alone"
        )
    if suffix in ("png", "svg"):
        raise UsageError(f"report: {suffix} makes one file per figure; name a folder instead of {output}")


def _files(
    runs: Sequence[Run],
    own: Sequence[Sequence[Point]],
    behind: Sequence[Point],
    formats: Sequence[str],
    problems: list[str],
) -> Files:
    """The content of every file; figures that cannot be drawn are left out and named in ``problems``."""
    files: Files = {}
    points = [point for each in own for point in each]
    figures: tuple[Figure, ...] = ()
    matrices = [(run, pair_matrices(run)) for run in runs]
    if {"png", "svg", "pdf"} & set(formats):
        maps = tuple(
            figure for run, found in matrices for figure in pair_figures(found, _where(run, len(runs) > 1))
        )
        maps += tuple(figure for each in own for figure in sample_figures(each))
        maps += tuple(sharing_figures(sharing_of(points)))
        figures = figures_of([*points, *behind], problems)
        figures = (
            (*figures, *maps) if any(figure.topic != "nothing" for figure in figures) else maps or figures
        )
    for form in dict.fromkeys(formats):
        if form in ("png", "svg"):
            files.update(_images(figures, form, problems))
        elif form == "pdf":
            files.update(_document(figures, problems))
        elif form == "csv":
            # Elsewhere a single run goes without its name; rows that are put together later need it.
            name = runs[0].path.resolve().name
            named = [replace(point, run=point.run or name) for point in (*points, *behind)]
            files[ONE_FILE[form]] = csv_table(named).encode()
        elif form == "nccl-tests":
            files.update(_text_tables(points))
    if "csv" in formats and any(found for _, found in matrices):
        files[MATRIX_FILE] = matrices_csv([one for _, found in matrices for one in found]).encode()
    sharing = sharing_of(points)
    if "csv" in formats and sharing:
        files[SHARING_FILE] = sharing_csv(sharing).encode()
    if "csv" in formats and behind:
        files[PAIRS_FILE] = pairs_csv(beside(points, behind)).encode()
    if "md" in formats:
        # Last, because it shows the images written beside it.
        images = [name for name in files if name.endswith(".png")] or [
            name for name in files if name.endswith(".svg")
        ]
        files[ONE_FILE["md"]] = _page(runs, own, behind, images).encode()
    return files


def _where(run: Run, named: bool) -> str:
    """Host and machine of a run, for the small print of maps."""
    host, machine = run.manifest.host, run.manifest.machine
    words = (run.path.name if named else "", host and f"host {host}", machine and f"machine {machine}")
    return " · ".join(word for word in words if word)


def _images(figures: Sequence[Figure], form: str, problems: list[str]) -> Files:
    names = _unique([figure.key for figure in figures])
    drawn = {
        f"{name}.{form}": _drawn(figure, form, problems) for name, figure in zip(names, figures, strict=True)
    }
    return {name: content for name, content in drawn.items() if content is not None}


def _document(figures: Sequence[Figure], problems: list[str]) -> Files:
    """All figures as one file; when that fails, without those that cannot be drawn alone either."""
    from ccbench.report.matplotlib_renderer import render_pages

    try:
        return {ONE_FILE["pdf"]: render_pages(figures)}
    except Exception:  # whatever it was, drawing them one by one finds out whose fault it is
        whole = [figure for figure in figures if _drawn(figure, "pdf", problems) is not None]
        return {ONE_FILE["pdf"]: render_pages(whole)} if whole else {}


def _drawn(figure: Figure, form: str, problems: list[str]) -> bytes | None:
    """The figure as a file; None, and a line in ``problems``, when it cannot be drawn."""
    from ccbench.report.matplotlib_renderer import render

    try:
        return render(figure, form)
    except Exception as error:
        problems.append(f"{figure.key}.{form}: {type(error).__name__}: {plain(error, 200)}")
        return None


def _text_tables(points: Sequence[Point]) -> Files:
    tables = nccl_tests_tables(points)
    names = _unique([table.name for table in tables])
    return {f"{name}.nccl-tests.txt": table.text.encode() for name, table in zip(names, tables, strict=True)}


def _page(
    runs: Sequence[Run], own: Sequence[Sequence[Point]], behind: Sequence[Point], images: Sequence[str]
) -> str:
    points = [point for each in own for point in each]
    title = ", ".join(dict.fromkeys(run.suite or run.path.name for run in runs))
    verdict: list[str] = []
    for run in runs:
        start = f"{run.path.name}: " if len(runs) > 1 else ""
        verdict += [start + line for line in verdict_lines(run)]
    problems = [problem for run in runs for problem in run.problems]
    page = markdown_report(title, points, verdict, problems, images, miss_lines(points, most=None))
    matrices = [one for run in runs for one in pair_matrices(run)]
    if matrices:
        page += f"\n## Every pair of ranks\n\n{matrices_markdown(matrices)}\n"
    sharing = sharing_of(points)
    if sharing:
        page += f"\n## Sharing\n\n{sharing_markdown(sharing)}\n"
    pairs = beside(points, behind)
    return f"{page}\n## Beside the baseline\n\n{pairs_markdown(pairs)}\n" if pairs else page


def _unique(keys: Sequence[str]) -> list[str]:
    """File names of ``keys``; where two keys give the same name, the later one is numbered."""
    names: list[str] = []
    for key in keys:
        name, number = file_name(key), 1
        while name in names:
            number += 1
            name = f"{file_name(key)}-{number}"
        names.append(name)
    return names
