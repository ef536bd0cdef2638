"""What the page says and how it is put together, without a browser."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ccbench.report.figures import figures_of
from ccbench.report.page import run_part, topology_of
from ccbench.report.wording import points_of, verdict_lines
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


def test_a_machine_of_the_catalog_is_drawn_and_a_broken_manifest_is_not(run: Run) -> None:
    of_it = replace(run, manifest=Manifest({"machine": {"name": "hgx-h100"}}))
    part = run_part(of_it, points_of(of_it))
    assert part["picture"] is not None
    address, words = part["picture"]
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
    part = run_part(of_it, points_of(of_it))
    assert (part["picture"] is not None) is drawn


def test_who_is_to_blame_stands_first_on_screen_page_and_in_markdown(tmp_path: Path) -> None:
    late = run_of(collectives(np.random.default_rng(1), late=2))
    part = run_part(late, points_of(late))
    (written,) = write_report([late], tmp_path / "report.md", ("md",))
    first = written.read_text().split("\n\n")[1].splitlines()[0]
    for sentence in (verdict_lines(late)[0], part["sentences"][0], first.removeprefix("* ")):
        assert sentence.startswith("NOT HEALTHY: slow rank: rank 2")
    assert part["findings"][0].subject == "Slow rank: rank 2"
    assert "others wait for it" in part["findings"][0].evidence
    assert part["findings"][0].advice


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
