"""What the page says and how it is put together, without a browser."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ccbench.collectives import COLLECTIVES
from ccbench.findings import Finding
from ccbench.flags import Flag
from ccbench.report.baselines import comparable_points
from ccbench.report.case_table import case_page_table
from ccbench.report.figures import figures_of
from ccbench.report.page import (
    MOST_FIGURES,
    differences,
    environment_rows,
    formula_table,
    page_content,
    rates_table,
    topology_of,
)
from ccbench.report.wording import points_of, sentences, verdict_lines
from ccbench.report.writing import write_report
from ccbench.results import Manifest, Run
from ccbench.topology.files import to_plain
from ccbench.topology.graph import Device, DeviceKind, Topology
from tests.analysis.health.machines import collectives, run_of
from tests.report.page.conftest import page_of
from tests.report.synthetic import MANIFEST, sweep, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(
        tmp_path_factory.mktemp("runs") / "run", sweep("all_reduce", ("ring", "tree"))
    )


def test_the_page_runs_no_script_and_draws_every_figure(run: Run) -> None:
    page = page_of(run)
    figures = figures_of(points_of(run))
    assert "<script" not in page
    assert "script-src" not in page  # so that default-src forbids it
    assert page.count('class="figure"') == page.count('<svg viewBox="') == len(figures)


def test_points_say_what_they_are_and_figures_have_the_colours_of_the_page(run: Run) -> None:
    point = points_of(run)[0]
    page = page_of(run)
    text = f"all_reduce, ring: 1 KiB, {float(f'{point.busbw:.4g}'):g} GB/s ("
    (title,) = re.findall(f"<title>({re.escape(text)}.*?)</title>", page)
    low, high = re.findall(r"[\d.]+(?= GB/s)", title)[1:]
    assert float(low) <= (point.busbw or 0.0) * 1.001 <= float(high) * 1.002
    assert page.count("<title>") > 2 * len(points_of(run))
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert not {"#222222", "#000000", "#ffffff", "font-family"} & {*re.split("[:;]", svg)}
        assert {*re.findall(r"#([mp]\w+)\b", svg)} <= {*re.findall(r' id="(\w+)"', svg)}


def test_sections_take_turns_through_collectives_and_say_what_is_left_out(run: Run) -> None:
    first = points_of(run)[0]
    names = [*COLLECTIVES][:10]
    points = [
        replace(first, collective=name, dtype=f"float{bits}")
        for name in reversed(names)
        for bits in (16, 32, 64)
    ]
    sections = page_content([run], [points]).sections
    (times,) = (section for section in sections if section.topic == "time")
    titles = [figure.title.partition(":")[0] for _, figure in times.figures]
    assert times.more == 30 - MOST_FIGURES
    assert titles == [name for name in names for _ in range(2)]


def test_the_page_names_no_address_of_its_own(run: Run) -> None:
    page = page_of(run)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", page)
    assert "default-src 'none'" in html.unescape(page)
    assert "connect-src" not in page  # so that default-src forbids it


@pytest.mark.exhaustive
def test_a_thousand_points_stay_below_two_megabytes(tmp_path: Path) -> None:
    names = ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "all_to_all")
    cases = [
        measurement
        for name in names
        for channels in (0, 1, 2, 4)
        for measurement in sweep(
            name, ("ring", "tree", "direct", "default"), channels=channels, last=28
        )
    ]
    assert len(cases) >= 960
    assert len(page_of(write_run(tmp_path / "run", cases)).encode()) < 2e6


def test_the_table_has_every_case_and_its_numbers(run: Run) -> None:
    points = points_of(run)
    table = case_page_table(points)
    titles = [column.title for column in table.columns]
    assert len(table.rows) == len(points)
    assert [row[titles.index("algorithm")] for row in table.rows] == [
        point.algorithm for point in points
    ]
    assert "nodes" not in titles


def test_the_glossary_works_the_factor_out_for_the_ranks_of_the_run(run: Run) -> None:
    rows = {row[0]: row for row in formula_table(points_of(run)).rows}
    assert rows["all_reduce"][1] == "1.5 for 4 ranks"
    assert rows["broadcast"][1] == "1 for 4 ranks"


def test_the_glossary_explains_the_flags_that_the_run_has(run: Run) -> None:
    points = points_of(run)
    assert page_content([run], [points]).terms == ()
    doubted = (replace(points[0], flags=(Flag.STEAL, "of_tomorrow")), *points[1:])
    ((word, meaning),) = page_content([run], [doubted]).terms
    assert word == Flag.STEAL
    assert Flag.STEAL.advice in meaning


def test_the_environment_is_flat_and_differences_leave_out_what_always_differs() -> None:
    variables = {"NCCL_ALGO": "Ring"}
    here = Manifest(
        {"environment": {"host": {"name": "a", "load_1_minute": 1.0}, "variables": variables}}
    )
    gpus = [{"model": "H100"}]
    there = Manifest(
        {"environment": {"host": {"name": "a", "load_1_minute": 9.0}, "gpus": gpus}}
    )
    assert ("environment.host.name", "a") in environment_rows(here)
    assert differences(here, there) == (
        ("environment.variables.NCCL_ALGO", "Ring", ""),
        ("environment.gpus[0].model", "", "H100"),
    )
    assert differences(here, here) == ()


def test_a_machine_of_the_catalog_is_drawn_and_a_broken_manifest_is_not(run: Run) -> None:
    of_it = replace(run, manifest=Manifest({"machine": {"name": "hgx-h100"}}))
    (part,) = page_content([of_it], [points_of(of_it)]).runs
    assert part.picture is not None
    address, words = part.picture
    assert address.startswith("data:image/svg+xml;base64,")
    assert "8 GPUs" in words
    assert topology_of(Manifest({"topology": {"devices": 3}})) is None
    assert topology_of(Manifest({})) is None


@pytest.mark.parametrize(("processors", "drawn"), [(1, False), (2, True)])
def test_a_processor_alone_with_its_nic_is_not_drawn(
    run: Run, processors: int, drawn: bool
) -> None:
    devices = [Device(f"cpu{place}", DeviceKind.CPU) for place in range(processors)]
    topology = Topology("vm", (*devices, Device("nic0", DeviceKind.NIC)), ())
    of_it = replace(run, manifest=Manifest({"topology": to_plain(topology)}))
    (part,) = page_content([of_it], [points_of(of_it)]).runs
    assert (part.picture is not None) is drawn


def test_the_most_of_every_collective_stands_beside_its_machine(run: Run) -> None:
    (rate,) = rates_table(points_of(run)).rows
    best = max(point.busbw or 0.0 for point in points_of(run))
    assert rate[2] == f"{best:.4g} GB/s"


def test_the_verdict_is_a_few_sentences_the_worst_findings_last(run: Run) -> None:
    found = [
        Finding("problem", "x", (), "seen", "do", "The cable is loose"),
        Finding("note", "y", (), "", "", "z"),
    ]
    measured, predicted, bound, worst = sentences(points_of(run), found)
    assert measured.startswith("18 of 18 cases correct; all_reduce")
    assert "Median error of the prediction" in predicted
    assert "of the bound" in bound
    assert worst == "1 problem found, first: The cable is loose."
    assert sentences((), ()) == (
        "The run holds no case.",
        "Nothing was found that needs a look.",
    )
    unpriced = [
        replace(point, bound_seconds=None, predicted_seconds=None) for point in points_of(run)
    ]
    assert "name the machine with --machine" in sentences(unpriced, ())[1]


def test_who_is_to_blame_stands_first_on_screen_page_and_in_markdown(tmp_path: Path) -> None:
    late = run_of(collectives(np.random.default_rng(1), late=2))
    (part,) = page_content([late], [points_of(late)]).runs
    (written,) = write_report([late], tmp_path / "report.md", ("md",))
    first = written.read_text().split("\n\n")[1].splitlines()[0]
    for sentence in (verdict_lines(late)[0], part.sentences[0], first.removeprefix("* ")):
        assert sentence.startswith("NOT HEALTHY: slow rank: rank 2")
    assert part.findings[0].subject == "Slow rank: rank 2"
    assert "others wait for it" in part.findings[0].evidence
    assert part.findings[0].advice


def test_the_page_says_how_a_run_stands_to_its_baseline_and_what_differs(
    tmp_path: Path, run: Run
) -> None:
    other = write_run(
        tmp_path / "earlier",
        sweep("all_reduce", ("ring", "tree")),
        manifest={**MANIFEST, "versions": {"ccbench": "0.0.9"}},
        slowdown=1.25,
    )
    page = page_of(run, other)
    assert "1.25 times its speed" in page
    assert "<td>versions.ccbench</td><td>0.1.0</td><td>0.0.9</td>" in page


def test_a_note_on_the_baseline_keeps_the_letters_of_names(tmp_path: Path, run: Run) -> None:
    again = write_run(tmp_path / "README-A", sweep("all_reduce", ("ring", "tree")))
    points = points_of(run)
    (part,) = page_content([run], [points], comparable_points(points, again), again).runs
    assert part.beside[1].startswith("Note: README-A has this run")


def test_the_same_run_gives_the_same_page(run: Run) -> None:
    assert page_of(run) == page_of(run)
