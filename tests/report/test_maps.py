from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from ccbench.analysis.pair_matrix import PairMatrix, pair_matrices
from ccbench.cases.measurement import Measurement
from ccbench.groups import Pair
from ccbench.report.case_table import screen_table
from ccbench.report.drawing import draw_map
from ccbench.report.figure import Figure
from ccbench.report.maps import (
    class_lines,
    matrices_csv,
    matrix_table,
    notes,
    pair_figures,
    pair_lines,
    short,
)
from ccbench.report.present import markdown_table
from ccbench.report.writing import write_report
from ccbench.results import Run, RunFolder, load_run
from tests.analysis.health import machines
from tests.report.synthetic import grid_of


def made(machine: str = "hgx-h100", ranks: int = 8, slow: float = 1.0) -> list[PairMatrix]:
    """Latency and bandwidth of a machine whose pair 2, 5 may be slow, one way then both ways."""
    random = np.random.default_rng(5)
    measurements = machines.pairs(
        random, ranks, lambda pair: slow if {pair.source, pair.target} == {2, 5} else 1.0
    )
    matrices = pair_matrices(machines.run_of(measurements, machines.manifest(machine)))
    return sorted(matrices, key=lambda one: (one.size_bytes, one.both))


def stored(path: Path, measurements: list[Measurement], machine: str = "hgx-h100") -> Run:
    manifest = {**machines.manifest(machine), "environment": {"host": {"name": "node7"}}}
    with RunFolder.create(path, manifest) as folder:
        for measurement in measurements:
            folder.write(measurement, None)
    return load_run(path)


def test_every_matrix_has_a_figure_with_its_own_file() -> None:
    figures = pair_figures(made(), "host node7")
    assert len({figure.key for figure in figures}) == 4
    assert figures[0].title == "nccl send_recv: latency of every pair, 8 B"
    assert figures[-1].title == "nccl send_recv: bandwidth of every pair, 64 MiB"
    assert all(figure.footnote[0] == "host node7" for figure in figures)


def test_cells_have_numbers_and_their_links_where_links_differ() -> None:
    mesh, switch = (
        grid_of(pair_figures(made(machine))[-1]) for machine in ("dgx-1v", "hgx-h100")
    )
    assert mesh.texts[0][1].endswith("\nNV1")
    assert "\n" not in switch.texts[0][1]
    assert switch.texts[0][0] == ""


def test_cells_are_microseconds_or_bytes_of_a_nanosecond() -> None:
    matrices = made()
    figures = pair_figures(matrices)
    for matrix, figure in ((matrices[0], figures[0]), (matrices[-1], figures[-1])):
        seconds = matrix.time(0, 1)
        assert seconds
        expected = seconds * 1e6 if matrix.is_latency else matrix.size_bytes / seconds / 1e9
        assert grid_of(figure).values[0][1] == pytest.approx(expected)


def test_beyond_sixteen_ranks_cells_have_no_numbers() -> None:
    random = np.random.default_rng(5)
    many = machines.pairs(random, 17, sizes=(8,))
    for figure in pair_figures(pair_matrices(machines.run_of(many, {}))):
        assert grid_of(figure).texts == ()
        assert len(grid_of(figure).values) == 17


def test_slow_pairs_are_framed_in_both_cells_and_named_below() -> None:
    one_way, both = pair_figures(made(slow=2.0))[2:]
    for figure in (one_way, both):
        assert grid_of(figure).marked == ((2, 5), (5, 2))
        assert any("Framed, more than 15 % worse" in note for note in figure.footnote)
    assert any("2<>5" in note for note in both.footnote)


def test_the_links_rate_stands_beside_the_measured_one() -> None:
    (line,) = class_lines(made()[-1])
    assert line.startswith("NV18: 28 pairs, median 3")
    assert "of 450 GB/s the link has (8" in line
    assert "GB/s" not in class_lines(made()[0])[0]


def test_what_is_not_known_and_not_judged_is_said() -> None:
    assert "What joins the ranks is not known: all pairs are one class" in notes(made("")[0])
    assert "No pair is more than 15 % worse than the median of its class" in notes(made()[0])
    (two,) = (one for one in made("", ranks=2) if one.both and one.is_latency)
    assert any("fewer than 3 pairs" in note for note in notes(two))
    assert not any("No pair" in note for note in notes(two))


def test_a_screen_shows_the_matrix_where_it_has_room_else_its_classes() -> None:
    wide, narrow = (pair_lines(made()[:1], width) for width in (100, 40))
    assert wide[0] == "latency of every pair in us, 8 B, nccl, float32, one way:"
    assert len(wide) == 1 + 9 + 2
    assert [line for line in narrow if "from \\ to" in line] == []
    assert wide[-2:] == narrow[-2:]


def test_markdown_has_a_table_of_every_matrix() -> None:
    header, _, *rows = markdown_table(matrix_table(made(slow=2.0)[0])).splitlines()
    assert "to | 0 | 1 |" in header
    assert len(rows) == 8


def test_the_csv_file_has_a_row_for_every_pair_in_full_precision() -> None:
    matrices = made(slow=2.0)
    rows = list(csv.DictReader(io.StringIO(matrices_csv(matrices))))
    assert len(rows) == 2 * (56 + 28)
    slow = [row for row in rows if row["finding"]]
    assert {(row["source"], row["target"]) for row in slow} == {("2", "5"), ("5", "2")}
    first = rows[0]
    assert float(first["median_seconds"]) == matrices[0].time(0, 1)
    assert float(first["link_GB_s"]) == 450.0
    assert first["link_class"] == "NV18"


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, ""), (0.12345, "0.123"), (4.0, "4"), (99.96, "100"), (412.6, "413")],
)
def test_cells_have_three_digits(number: float | None, text: str) -> None:
    assert short(number) == text


def lightness(figure: Figure, *cells: tuple[int, int]) -> list[float]:
    """Mean of red, green and blue of cells of the map as it is drawn."""
    from matplotlib.figure import Figure as Canvas

    axes = Canvas().add_axes((0.1, 0.1, 0.6, 0.8))
    draw_map(figure, grid_of(figure), axes)
    (image,) = axes.images
    values = np.array(
        [grid_of(figure).values[row][column] for row, column in cells], dtype=float
    )
    colours = np.asarray(image.cmap(image.norm(values)))
    return [float(one) for one in colours[:, :3].mean(axis=1)]


@pytest.mark.parametrize("place", [0, 2])
def test_bad_cells_are_the_dark_ones_for_times_and_for_rates(place: int) -> None:
    bad, good = lightness(pair_figures(made(slow=2.0))[place], (2, 5), (0, 1))
    assert bad < good - 0.15


def test_a_report_has_maps_tables_and_csv_and_no_pair_among_the_lines(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    run = stored(
        tmp_path / "run",
        [*machines.pairs(random, 3), *machines.collectives(random, 3)[:3]],
        "hgx-h100",
    )
    files = {
        path.name: path for path in write_report([run], tmp_path / "out", ("svg", "md", "csv"))
    }
    assert sum(name.startswith("pairs-") for name in files) == 4
    assert "pairs.csv" in files
    assert not any("send_recv" in name for name in files)
    page = files["report.md"].read_text()
    assert "## Every pair of ranks" in page
    assert "HEALTHY" in page
    table = screen_table(run, 100)
    assert "pair 0" not in table
    assert table.count("from \\ to") == 4


def test_a_run_of_nothing_but_pairs_is_shown_and_drawn(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", machines.pairs(np.random.default_rng(5), 2, sizes=(8,)))
    assert "from \\ to" in screen_table(run, 60)
    assert all(len(line) <= 60 for line in screen_table(run, 60).splitlines())
    names = [path.name for path in write_report([run], tmp_path / "out", ("svg",))]
    assert len(names) == 2
    assert not any("nothing" in name for name in names)


def test_the_small_number_of_a_pair_names_its_two_ranks() -> None:
    assert str(Pair(0, 3, True)) == "0<>3"
