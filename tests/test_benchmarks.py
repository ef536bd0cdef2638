"""The benchmark's arithmetic and command line on written-down visits; no peer library is needed."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.figures import Figures, exit_code, targets
from benchmarks.options import parse
from benchmarks.peer_teams import PeerTeam, command_line, install_line, launch_command
from benchmarks.points import (
    CCBENCH,
    COPY_BYTES,
    COPY_POINT,
    GLOO,
    MEMCPY,
    MIB,
    MPICH,
    OPENMPI,
    PEERS,
    PRIVATE,
    SHARED,
    Point,
    Visit,
    case_for,
    copy_case,
    points,
)
from benchmarks.session import from_json, from_reports, stops, to_json
from benchmarks.tables import BEGIN, END, Header, inserted, markdown, verdicts
from ccbench.cases.measurement import Sampling
from ccbench.errors import BackendUnavailable

ONE_MIB = Point("all_reduce", MIB)
LARGEST = Point("all_reduce", COPY_BYTES)
HEADER = Header("2026-01-02", "2 x processor", {CCBENCH: "0.1.0"}, {CCBENCH: "pinned"}, 2)
TEAMS = [(name, ranks) for ranks in (2, 4) for name in (CCBENCH, *PEERS)] + [(MEMCPY, 2)]


def visit(
    contender: str, point: Point, seconds: float, round_number: int = 0, memory: str = ""
) -> Visit:
    """Three samples around a median, two ranks."""
    samples = (seconds * 0.9, seconds, seconds * 1.5)
    return Visit(contender, 2, point, round_number, "ok", samples, 1, memory=memory)


def recorded() -> list[Visit]:
    """Two rounds in which the machine was half as fast the second time."""
    found = []
    for number, slowness in enumerate((1.0, 2.0)):
        found += [
            visit(CCBENCH, ONE_MIB, 25e-6 * slowness, number),
            visit(OPENMPI, ONE_MIB, 125e-6 * slowness, number),
            visit(MPICH, ONE_MIB, 150e-6 * slowness, number),
            visit(GLOO, ONE_MIB, 750e-6 * slowness, number),
            visit(CCBENCH, LARGEST, 20e-3 * slowness, number),
            visit(MEMCPY, COPY_POINT, COPY_BYTES / 16e9 * slowness, number, PRIVATE),
            visit(MEMCPY, COPY_POINT, COPY_BYTES / 10e9 * slowness, number, SHARED),
        ]
    return found


# -- figures ----------------------------------------------------------------------------------------------


def test_targets_pass_fail_or_stay_open_and_wrong_results_outrank_all() -> None:
    figures = Figures(recorded())
    found = {target.text: target.verdict for target in targets(figures)}
    assert found["all_reduce 1 MiB, 2 ranks, against the best of all, Open MPI"] == "PASS"
    assert found["all_reduce 1 MiB, 2 ranks, against Gloo"] == "PASS"
    assert found["all_reduce 256 MiB, 2 ranks, against Gloo"] == "NO VERDICT"
    assert exit_code(figures) == 3
    slow = Figures([visit(CCBENCH, ONE_MIB, 1.0), *recorded()[1:7]])
    line = "FAIL: all_reduce 1 MiB, 2 ranks, against Gloo: 0.00 x (wanted: at least 3.00 x)"
    assert line in verdicts(slow)
    assert exit_code(slow) == 1
    wrong = Visit(GLOO, 2, ONE_MIB, 0, "wrong", detail="rank 0: 1 wrong")
    assert exit_code(Figures([*recorded(), wrong])) == 1


# -- tables -----------------------------------------------------------------------------------------------


def test_a_table_has_as_many_cells_in_every_row_and_names_what_was_not_measured() -> None:
    bad = Visit(MPICH, 4, ONE_MIB, 0, "timed_out", detail="no answer from ranks [3]")
    text = markdown(HEADER, Figures([*recorded(), bad]))
    assert "timed_out: MPICH, all_reduce 1 MiB, 4 ranks: no answer from ranks [3]" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    one_mib = next(row for row in rows if "1 MiB" in row and "37.5" in row)
    assert "**37.5 us** (25.0 to 50.0)" in one_mib
    assert "**5.00** | 5.00 / 5.00 / 5.00 | **30.0**" in one_mib
    largest = next(row for row in rows if "256 MiB" in row)
    assert "| - | - | - |" in largest


def test_a_busy_machine_is_named_under_the_tables() -> None:
    def text(share: float) -> str:
        visits = [replace(one, other_cpu_share=share) for one in recorded()]
        return markdown(HEADER, Figures(visits))

    assert "not quiet" in text(0.2)
    assert "not quiet" not in text(0.01)
    assert "foreign CPU %, over visits: 20.0 / 20.0 / 20.0" in text(0.2)


def test_what_was_recorded_reads_back_as_it_was() -> None:
    assert from_json(to_json(HEADER, recorded())) == (HEADER, recorded())


def test_only_what_is_between_the_markers_is_replaced() -> None:
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert inserted(document, "new") == f"before\n{BEGIN}\n\nnew\n{END}\nafter\n"
    assert inserted(inserted(document, "a"), "b") == inserted(document, "b")
    with pytest.raises(ValueError, match="expected the lines"):
        inserted("no markers", "new")


# -- plan -------------------------------------------------------------------------------------------------


def test_contenders_of_one_point_follow_each_other_and_copies_are_beside_what_they_bound() -> (
    None
):
    order = stops(parse([]), TEAMS, 3)
    blocks = [
        (2, LARGEST) if stop.contender == MEMCPY else (stop.ranks, stop.point) for stop in order
    ]
    changes = sum(before != after for before, after in pairwise(blocks))
    assert changes == len(set(blocks)) - 1


def test_all_contenders_get_the_same_case_but_gloo_whose_all_reduce_is_in_place() -> None:
    for point in points(quick=False):
        cases = {name: case_for(name, point, 4) for name in (CCBENCH, OPENMPI, MPICH)}
        assert len(set(cases.values())) == 1
        assert cases[CCBENCH].size_bytes == point.size_bytes
    assert case_for(GLOO, ONE_MIB, 2).in_place
    assert not case_for(GLOO, Point("all_gather", MIB), 2).in_place


# -- command line and start -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--ranks two", "write 2,4"),
        ("--ranks 1,2", "fewer than 2"),
        ("--rounds 0", "write 1 or more"),
        ("--peers gloo,ucc", "ucc not known; choose of openmpi, mpich, intelmpi, gloo"),
        ("--pin ccbench", "--pin: ccbench not known"),
    ],
)
def test_mistakes_end_with_two_and_say_what_to_write(
    given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(given.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_without_mpiexec_the_error_has_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailable, match="pip install numpy mpi4py mpich"):
        launch_command(MPICH, str(tmp_path / "python"), 2, 2)
    assert "--python-gloo" in install_line(GLOO)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="ranks are pinned and find files in /proc"
)
def test_a_team_measures_with_the_code_that_ccbench_measures_with(tmp_path: Path) -> None:
    case = replace(copy_case(PRIVATE), size_bytes=4096, count=1024)
    sampling = Sampling(
        minimum_samples=7, maximum_samples=7, warmup_seconds=0, minimum_sample_seconds=0
    )
    team = PeerTeam(MEMCPY, sys.executable, 2, True, tmp_path)
    try:
        reports = [team.run(one, sampling) for one in (case, replace(case, algorithm=SHARED))]
        assert all(len(processors) == 1 for processors in team.bindings)
        failed = team.run(replace(case, dtype="complex64"), sampling)
    finally:
        team.close()
    stop = Visit(MEMCPY, 2, COPY_POINT, 0, "skipped")
    for pair in reports:
        found = from_reports(stop, pair)
        assert (found.status, found.detail, len(found.samples_seconds)) == ("ok", "", 7)
    assert from_reports(stop, failed).status == "failed"
    assert "complex64" in from_reports(stop, failed).detail
    assert not team.usable()
    assert [command_line(pid) for pid in team.pids] == [[], []]
