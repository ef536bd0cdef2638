"""A run on a screen: the answer first, three sizes a collective, nothing that vanishes unnamed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ccbench.analysis.speed_verdict import SpeedVerdict, SpeedWord
from ccbench.cli.output import wants_colours, with_colours
from ccbench.model import PredictionInterval
from ccbench.report.page_card import CardRow, headline
from ccbench.report.run_screen import CARD, LAYOUTS, NCCL_TESTS, run_screen, verdict_rows
from ccbench.results import Run, RunFolder, load_run
from tests.analysis import test_speed_verdict as of_gpus

from . import synthetic


class Terminal:
    """A stream that is a terminal or none."""

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        """Return what it was made as."""
        return self._is_terminal


@pytest.fixture
def measured(tmp_path: Path) -> Run:
    """Two algorithms at nine sizes on processors."""
    return synthetic.write_run(
        tmp_path / "run", synthetic.sweep(algorithms=["ring", "tree"], last=24)
    )


def test_the_headline_counts_collectives_and_not_their_curves() -> None:
    names = ("nccl all_reduce, 2 ranks", "nccl all_reduce, 8 ranks")
    rows = [CardRow(name, SpeedWord.SLOW, (), collective="all_reduce") for name in names]
    assert headline(rows, ()) == "SLOW: 1 of 1 collective: nccl all_reduce, 2 ranks, ..."


def test_the_verdict_on_a_gpu_library_is_the_first_line_with_its_expectation(
    tmp_path: Path,
) -> None:
    first, stands_on, *_ = run_screen(
        of_gpus.write_run(tmp_path / "run", of_gpus.sweep()), 100, folds=False
    )
    assert first.startswith("NORMAL: nccl all_reduce, 16 ranks on 2 nodes: ")
    assert ", expected " in first
    assert stands_on.startswith("Expected: the range of 80 % of healthy systems")


@pytest.mark.thinned(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_line_is_wider_than_the_screen_and_no_word_is_broken(
    measured: Run, layout: str, width: int
) -> None:
    lines = "\n".join(run_screen(measured, width, layout)).splitlines()
    assert max(map(len, lines)) <= width
    words = set(" ".join(run_screen(measured, 10_000, layout, folds=False)).split())
    sentences = " ".join(line for line in lines if line.startswith(("CANNOT", "Median")))
    assert set(sentences.split()) <= words


def test_a_sweep_has_the_columns_and_closing_lines_of_nccl_tests(measured: Run) -> None:
    lines = run_screen(measured, 200, NCCL_TESTS)
    (header,) = [line for line in lines if "redop" in line]
    for title in ("size B", "count", "type", "root", "time us", "algbw", "busbw", "#wrong"):
        assert title in header
    assert "predicted us" in header
    assert "Out of bounds values : 0 OK" in lines
    assert any(line.startswith("Avg bus bandwidth    : ") for line in lines)


def test_words_of_verdicts_are_coloured_and_other_words_are_not() -> None:
    assert with_colours("NORMAL: nccl") == "\x1b[1;32mNORMAL\x1b[0m: nccl"
    assert with_colours("SLOW: x\nCANNOT SAY: y").count("\x1b[1;3") == 2
    assert with_colours("a  ~2 GB/s  (1 to 3)") == "a  \x1b[2m~2 GB/s  (1 to 3)\x1b[0m"
    for text in ("ABNORMAL: x", "SLOWLY", "the NORMALISED", "~/run", "a~2 us"):
        assert with_colours(text) == text


@pytest.mark.parametrize(
    ("variables", "is_terminal", "coloured"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colours_are_for_terminals_and_as_the_variables_say(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    is_terminal: bool,
    coloured: bool,
) -> None:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wants_colours(Terminal(is_terminal)) is coloured  # type: ignore[arg-type]  # no other method is asked


def test_eighty_columns_have_the_range_that_is_expected_and_all_reduce_first(
    tmp_path: Path,
) -> None:
    cases = [*synthetic.sweep("all_gather", last=24), *synthetic.sweep(last=20)]
    with RunFolder.create(tmp_path / "run", synthetic.MANIFEST) as folder:
        for case in cases:
            price = synthetic.prediction(case)
            seconds = price.predicted_seconds
            interval = PredictionInterval(0.85 * seconds, 1.35 * seconds)
            measured = synthetic.measurement(case, np.random.default_rng(1))
            measured = synthetic.flagged(measured, "cpu_contention")
            folder.write(measured, replace(price, interval=interval))
    lines = run_screen(load_run(tmp_path / "run"), 80, CARD)
    blank = lines.index("")
    first, (header, *rows) = " ".join(lines[:blank]), lines[blank + 1 :]
    assert first.endswith("other programs were running (14 of 14 cases).")
    assert re.fullmatch(r"cpu, 4 ranks +1 KiB +16 KiB +1 MiB  \(expected\)", header)
    assert re.fullmatch(r"all_reduce ring .* ~[\d.]+ GB/s  \([\d.]+ to [\d.]+\)", rows[0])
    assert re.match(r"all_gather ring .* 16 MiB ~[\d.]+ GB/s  \(", rows[1])


@pytest.mark.parametrize("width", [60, 100, 300])
def test_many_verdicts_are_folded_and_never_cut(width: int) -> None:
    reason = "the output does not say which GPUs were measured; give --machine"
    names = tuple(f"nccl all_reduce, 16 ranks ({place}.log)" for place in range(9))
    verdicts = [SpeedVerdict(name, reason="2 of 4 cases", wrong=True) for name in names[:2]]
    verdicts.append(SpeedVerdict(f"{names[0]} and 8 more", reason=reason, subjects=names))
    lines = verdict_rows(verdicts, width)
    assert lines[0] == "2 WRONG, 1 CANNOT SAY"
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "…" not in text
    assert all(name in text for name in names[:2])
    assert f"CANNOT SAY: {reason}: {names[0]}" in text
    assert "3 more" in text
