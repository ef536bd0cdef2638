"""What benchmarks/mpi_fidelity.py makes of its rounds, and that both of its halves run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mpi_fidelity import (
    LAUNCHES,
    Round,
    compiled,
    exit_code,
    lines_of,
    seconds_of_c,
    shown,
)
from ccbench.backends.mpi.library import MpiLibrary, installed
from ccbench.errors import BackendUnavailable


def rounds(ratio: float, spread: float = 0.001, count: int = 9) -> list[Round]:
    return [
        Round(size, 1e-5, 1e-5 * ratio * (1 + spread * (number % 3 - 1)))
        for size in LAUNCHES
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("ratio", "spread", "code", "verdict"),
    [
        (1.02, 0.001, 0, "holds"),
        (1.5, 0.001, 1, "fails"),
        (0.9, 0.001, 1, "fails"),
        (1.12, 0.1, 3, "cannot tell"),
    ],
)
def test_the_verdict_follows_from_the_ratio_and_its_interval(
    ratio: float, spread: float, code: int, verdict: str
) -> None:
    lines = lines_of(rounds(ratio, spread))
    assert exit_code(lines) == code
    assert [line.verdict for line in lines] == ["-", *[verdict] * (len(LAUNCHES) - 1)]


def test_the_table_says_what_a_call_costs_more() -> None:
    text = shown(lines_of(rounds(1.05)), "title")
    assert text.startswith("title\n")
    assert "| 8 B | 10 us | 10.5 us | 1.050 [1.049, 1.051] | +500 ns | - |" in text


@pytest.fixture(scope="module")
def library() -> MpiLibrary:
    found = installed()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def test_the_c_program_checks_its_sums_and_times_them(
    library: MpiLibrary, tmp_path: Path
) -> None:
    program = compiled(tmp_path, library)
    assert 0 < seconds_of_c(program, library, 2, 1 << 10) < 60


def test_a_compiler_that_fails_is_named(
    library: MpiLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.mpi_fidelity.SOURCE", tmp_path / "absent.c")
    with pytest.raises(BackendUnavailable, match="mpicc"):
        compiled(tmp_path, library)
