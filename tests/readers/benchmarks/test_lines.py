from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.benchmarks.words import (
    GIBI,
    Launch,
    LibraryLines,
    LogLine,
    launch_of,
    rate_factor,
)
from ccbench.readers.lines import PrintedFigure, figure


@given(st.floats(min_value=0, max_value=1e12), st.integers(min_value=0, max_value=9))
def test_a_printed_figure_is_within_half_a_unit_of_what_was_printed(
    value: float, decimals: int
) -> None:
    read = figure(f"{value:.{decimals}f}")
    assert read is not None
    assert abs(read.value - value) <= read.half_unit * (1 + 1e-9) + value * 1e-15


@given(
    st.integers(min_value=10**7, max_value=10**11),
    st.floats(min_value=1e-4, max_value=10),
    st.booleans(),
)
def test_the_unit_of_rates_shows_in_the_rows(
    size_bytes: int, seconds: float, binary: bool
) -> None:
    factor = GIBI if binary else 1.0
    printed = size_bytes / seconds / 1e9 / factor
    points = [
        (size_bytes, PrintedFigure(seconds, 1e-9), PrintedFigure(printed, printed * 1e-3))
    ]
    assert rate_factor(points, 2.0) == factor


@pytest.mark.parametrize(
    ("line", "launch"),
    [
        ("mpirun -np 8 ./osu_allreduce", Launch(8, None)),
        ("$ mpirun -np 8 --map-by ppr:4:node ./x", Launch(8, 2)),
        ("mpiexec.hydra -n 16 -ppn 8 IMB-MPI1", Launch(16, 2)),
        ("/opt/bin/mpirun -n 144 -N 36 ./IMB-MPI1", Launch(144, 4)),
        ("srun -N 4 -n 32 ./x", Launch(32, 4)),
        ("srun --nodes=4 --ntasks-per-node=8 ./x", Launch(32, 4)),
        ("flux run -N2 -n 192 ./x", Launch(192, 2)),
        ("mpirun ./x -n", Launch()),
        ("the mpi library runs", None),
    ],
)
def test_a_launchers_line_says_ranks_and_nodes(line: str, launch: Launch | None) -> None:
    assert launch_of(line) == launch


def test_a_channel_through_host_memory_counts_behind_many_others() -> None:
    lines = LibraryLines()
    ways = [f"{channel:02d}/0 : 0[0] -> {channel}[1] via P2P/IPC" for channel in range(900)]
    for way in (*ways, "00/0 : 3[3] -> 4[4] via SHM/direct/direct"):
        lines.take(LogLine(1, f"h:1:2 [0] NCCL INFO Channel {way}", message=True))
    assert [hint for hint in lines.shown["hints"] if "SHM" in hint] == [
        "NCCL INFO Channel 00/0 : 3[3] -> 4[4] via SHM/direct/direct"
    ]
