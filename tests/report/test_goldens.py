"""Reports of whole runs: their figures as data, what is written beside them, and the words of the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ccbench.report.drawing import canvas_of
from ccbench.report.figures import every_figure
from ccbench.report.junit import verdict_junit
from ccbench.report.page import page_text
from ccbench.report.run_screen import run_screen
from ccbench.report.sharing import sharing_table
from ccbench.report.wording import points_of
from ccbench.report.writing import write_report
from ccbench.results import Run, load_run
from tests.analysis.test_goldens import run_in
from tests.cli.test_goldens import steady
from tests.goldens import check, text_of

from .synthetic import case, emulated, sweep, write_run

GOLDENS = Path(__file__).parent / "goldens"
RECORDED = Path(__file__).parents[1] / "analysis" / "goldens" / "runs"
REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "nvidia-h100-80gb-hbm3"
RUNS: list[str] = (GOLDENS / "runs.txt").read_text(encoding="utf-8").split()


def run_of(name: str, folder: Path) -> Run:
    """A run that was recorded, lies in the repository, or is made."""
    if name == "race":
        return write_run(folder / name, sweep(algorithms=("ring", "tree", "halving_doubling")))
    if name == "emulated":
        return write_run(folder / name, sweep(last=16), dict.fromkeys(range(3), emulated))
    if name == "many":
        names = ("all_gather", "broadcast", "barrier", "all_to_all")
        return write_run(folder / name, [case(each, "ring", 1 << 16) for each in names])
    if (REFERENCE / name).is_dir():
        return load_run(REFERENCE / name)
    return run_in(
        json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))["runs"][-1]
    )


@pytest.mark.parametrize("name", RUNS)
def test_the_report_of_a_run_is_the_same(name: str, tmp_path: Path) -> None:
    run = run_of(name, tmp_path)
    points = points_of(run)
    figures = every_figure([run], [points], [], None)
    check(GOLDENS / f"{name}-figures.json", text_of([figures, sharing_table(points)]))
    texts = run_screen(run, 100)
    for file in sorted(write_report([run], tmp_path / "out", ["md", "csv", "nccl-tests"])):
        texts.append(f"== {file.name}\n{file.read_text(encoding='utf-8')}")
    texts.append(f"== junit\n{verdict_junit(run)}")
    check(GOLDENS / f"{name}-texts.txt", "\n".join(texts))
    drawn = page_text([run], [points], figures)
    words = re.sub(r"<(style|script|svg)\b.*?</\1>|<[^>]*>", "\n", drawn, flags=re.DOTALL)
    page = steady(re.sub(r"\s*\n\s*", "\n", words), tmp_path)
    check(GOLDENS / f"{name}-page.txt", page)
    assert canvas_of(figures[0]).axes or figures[0].message
