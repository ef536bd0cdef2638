"""Figures of plans: everything that a step is made of is in its bar, and drawings are files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccbench.errors import RunFolderError
from ccbench.plan.document import read_plan
from ccbench.plan.planner import Planned, PlanOptions, plan_out
from ccbench.report.plan_figures import (
    Bars,
    PlanFigure,
    by_kind,
    plan_figures,
    write_plan,
)

START = (
    "model: {layers: 8, hidden: 2048, heads: 16, vocabulary: 32000}\nmachine: hgx-h100\nnodes: 2\n"
    "network: ib-ndr-400x8\nglobal_batch: 64\nsequence: 1024\n"
)


@pytest.fixture(scope="module")
def planned() -> Planned:
    return plan_out(
        read_plan(START + "layouts: [tp2-dp4-pp2, tp8-dp2, dp16]\n"), PlanOptions(scale=True)
    )


@pytest.fixture(scope="module")
def figures(planned: Planned) -> dict[str, PlanFigure]:
    return {figure.figure.key: figure for figure in plan_figures(planned)}


def test_a_plan_with_several_layouts_and_sizes_has_three_figures(
    figures: dict[str, PlanFigure],
) -> None:
    assert set(figures) == {"layouts", "scale", "timeline"}


def test_the_layers_of_a_bar_add_up_to_the_step(
    planned: Planned, figures: dict[str, PlanFigure]
) -> None:
    bars = figures["layouts"].body
    assert isinstance(bars, Bars)
    for place, outcome in enumerate(planned.outcomes):
        height = sum(layer.values[place] for layer in bars.layers)
        assert height == pytest.approx(outcome.step.seconds)
        hidden = sum(layer.values[place] for layer in bars.beside)
        assert hidden == pytest.approx(outcome.step.hidden_seconds)


def test_exposed_and_hidden_by_kind_are_those_of_the_lines(planned: Planned) -> None:
    for outcome in planned.outcomes:
        kinds = by_kind(outcome.step)
        assert sum(exposed for exposed, _ in kinds.values()) == pytest.approx(
            outcome.step.exposed_seconds
        )
        assert set(kinds) <= {"tp", "cp", "ep", "pp", "dp"}


def test_a_bar_for_every_number_of_devices_that_holds_the_model(
    figures: dict[str, PlanFigure],
) -> None:
    bars = figures["scale"].body
    assert isinstance(bars, Bars)
    assert bars.names[0] == "8"
    assert bars.names[-1] == "131,072"
    assert len(bars.tops) == len(bars.names)


def test_gradients_of_stated_times_are_text_alone() -> None:
    text = "gradients: {layers: 96, per_layer: 12, compute: 1 ms, communicate: 500 ms}"
    assert plan_figures(plan_out(read_plan(text), PlanOptions())) == ()


def test_a_folder_has_figures_text_and_json(planned: Planned, tmp_path: Path) -> None:
    written = write_plan(planned, tmp_path / "plan")
    names = {path.name for path in written}
    assert names == {
        "plan.txt",
        "plan.json",
        "layouts.svg",
        "layouts.png",
        "scale.svg",
        "scale.png",
        "timeline.svg",
        "timeline.png",
    }
    document = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert len(document["layouts"]) == 3
    assert "not modelled" in (tmp_path / "plan" / "plan.txt").read_text()


def test_a_folder_that_cannot_be_made_is_told(planned: Planned, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_plan(planned, tmp_path / "file")
