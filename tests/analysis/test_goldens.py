"""What is said of whole runs and texts: inputs recorded from other tests, and a file of answers for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest

from ccbench.analysis.bits import bit_rows, bits_sentence
from ccbench.analysis.comparison import compare, compare_by
from ccbench.analysis.diagnose import answer_of
from ccbench.analysis.findings import run_findings
from ccbench.analysis.fleet_rounds import further_cases
from ccbench.analysis.health import health_of
from ccbench.analysis.machine_verdict import machine_verdict
from ccbench.analysis.pair_matrix import pair_matrices
from ccbench.analysis.speed_verdict import speed_verdicts
from ccbench.analysis.tuning import advise, everywhere, timings_of
from ccbench.analysis.verdicts import Compared
from ccbench.analysis.winner import winner_sentence
from ccbench.cases.axes import IDENTITY
from ccbench.errors import CcbenchError
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.readers.evidence import read_evidence
from ccbench.report.wording import points_of
from ccbench.results import Manifest, Run, arrow_schema
from tests.goldens import check, text_of

GOLDENS = Path(__file__).parent / "goldens"
RUNS, TEXTS = (
    sorted(path.name for path in (GOLDENS / kind).iterdir()) for kind in ("runs", "texts")
)

MISS = ["source", "target", "name", "link_class", "ratio"]


def run_in(document: dict[str, Any]) -> Run:
    """The run of a document: what its rows have in common stands once."""
    rows = [document["common"] | row for row in document["rows"]]
    table = pa.Table.from_pylist(rows, schema=arrow_schema())
    return Run(Path(document["name"]), Manifest(document["manifest"]), table)


def compared(made: Callable[[], Compared]) -> Any:
    try:
        result = made()
    except CcbenchError as error:
        return str(error)
    points = [
        (each.point.label, each.verdict, each.reason, each.ratio) for each in result.points
    ]
    return result.sentence, result.notes, result.left_out, points


def said_of(runs: list[Run], base: str) -> dict[str, Any]:
    """Everything that ccbench says of the last of ``runs``, by what says it."""
    run, timings = runs[-1], timings_of(runs)
    said = {
        "findings": run_findings(run, points_of(run)),
        "machine": (machine_verdict(run) or health_of(run)).lines(),
        "speed": [(verdict.word, verdict.sentence) for verdict in speed_verdicts(run)],
        "bits": bits_sentence(bit_rows(run.points)),
        "winner": winner_sentence(run),
        "pairs": [matrix.misses[MISS] for matrix in pair_matrices(run)],
        "further": [case.label for case in further_cases((), run)],
        "advice": (advise(timings), everywhere(timings)),
    }
    if base or len(runs) > 1:
        said["compared"] = compared(lambda: compare(base or runs[0], run))
    for axis in IDENTITY:
        if len({getattr(point, axis.name) for point in run.points}) > 1:
            said[axis.key] = compared(partial(compare_by, run, axis))
    return said


@pytest.mark.parametrize("name", RUNS)
def test_of_a_run_the_same_is_said(name: str) -> None:
    document = json.loads((GOLDENS / "runs" / name).read_text(encoding="utf-8"))
    runs = [run_in(each) for each in document["runs"]]
    check(GOLDENS / "said" / name, text_of(said_of(runs, document["base"])))


@pytest.mark.parametrize("name", TEXTS)
def test_of_a_text_the_same_is_said(name: str) -> None:
    path = GOLDENS / "texts" / name
    evidence = read_evidence([path] if path.is_file() else sorted(path.iterdir()))
    answer = answer_of(evidence, StatedSystem("", None, None, ""))
    told = [answer.outcome, answer.exit_code, answer.sentence, answer.diagnoses, answer.remarks]
    seen = text_of(told).replace(f"{GOLDENS / 'texts'}/", "")
    check(GOLDENS / "said" / f"{Path(name).stem}.json", seen)


def test_every_answer_has_an_input() -> None:
    answers = {path.stem for path in (GOLDENS / "said").iterdir()}
    assert answers == {Path(name).stem for name in (*RUNS, *TEXTS)}
