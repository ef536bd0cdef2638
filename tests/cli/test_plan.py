"""``ccbench plan``: the whole way from a file to a table, JSON and figures."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.cases.measurement import Measurement
from ccbench.cli.output import PacedLines
from ccbench.documents import shipped_folder
from ccbench.results import RunFolder
from tests.cli.conftest import Command
from tests.results.samples import measured

PLANS = shipped_folder("suites") / "plans"
PLAN = """model: {layers: 8, hidden: 2048, heads: 16, vocabulary: 32000}
machine: hgx-h100
nodes: 2
network: ib-ndr-400x8
global_batch: 64
sequence: 1024
layout: {tp: 8}
"""


@pytest.fixture
def plan(tmp_path: Path) -> str:
    """A plan's file."""
    path = tmp_path / "small.yaml"
    path.write_text(PLAN)
    return str(path)


def test_the_textbook_example_is_a_command(ccbench: Command) -> None:
    ended = ccbench("plan", str(PLANS / "gradients.yaml")).done
    assert "577,152 ms" in ended.out
    assert "576,001 ms" in ended.out
    assert "48,012 ms" in ended.out
    document = ccbench("plan", str(PLANS / "gradients.yaml"), "--json").json
    assert document["gradients"][0]["seconds"] == pytest.approx(577.152)


def test_each_communication_is_told_with_what_shows_and_what_limits_it(
    ccbench: Command, plan: str
) -> None:
    ended = ccbench("plan", plan, "--json").done
    (layout,) = ended.json["layouts"]
    parts = ("computing_seconds", "bubble_seconds", "exposed_seconds")
    assert layout["step_seconds"] == pytest.approx(sum(layout[name] for name in parts))
    for line in layout["communication"]:
        assert line["total_seconds"] == pytest.approx(line["times"] * line["seconds"])
        assert line["hidden_seconds"] + line["exposed_seconds"] == pytest.approx(
            line["total_seconds"]
        )
        assert line["source"] == "predicted"
        assert line["bottleneck"]
    assert {line["axis"] for line in layout["communication"]} == {"tp", "dp"}
    assert ended.json["not_modelled"]
    by_bottleneck = layout["exposed_by_bottleneck_seconds"]
    assert sum(by_bottleneck.values()) == pytest.approx(layout["exposed_seconds"])
    assert "latency" in by_bottleneck


def test_the_table_says_what_is_not_modelled(ccbench: Command, plan: str) -> None:
    out = ccbench("plan", plan).out
    assert "16 devices: 2 x hgx-h100 on ib-ndr-400x8" in out
    assert "gradients" in out
    assert out.endswith("\nnot modelled: docs/parallelism.md#what-is-not-modelled\n")
    assert "does NOT fit" not in out


def test_a_layout_that_no_device_can_hold_says_so_first(
    ccbench: Command, tmp_path: Path
) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(PLAN.replace("layers: 8, hidden: 2048", "layers: 96, hidden: 8192"))
    first = ccbench("plan", str(path)).done.out.splitlines()[0]
    found = re.fullmatch(r"does NOT fit: needs ([\d.]+) GB of 80 GB a device", first)
    assert found, first
    assert float(found[1]) > 80


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--search",), (" combinations, ", " layouts priced")),
        (("--scale",), ("1,024 devices: layout ",)),
    ],
)
def test_a_long_search_says_on_stderr_how_far_it_is(
    ccbench: Command,
    plan: str,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    typed = ("plan", plan, *options)
    monkeypatch.setattr(PacedLines, "SECONDS", 0.0)
    ended = ccbench(*typed).done
    assert all(word in ended.err for word in words)
    assert "layouts priced" not in ended.out
    assert ccbench(*typed, "-q").done.err == ccbench(*typed, "--json").done.err == ""


def test_on_a_terminal_progress_takes_one_line_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(PacedLines, "TERMINAL_SECONDS", 0.0)
    lines = PacedLines(quiet=False)
    lines.show("99 layouts")
    lines.show("1 layout")
    lines.end()
    assert terminal.getvalue() == "\r99 layouts\r1 layout  \r        \r"


def test_options_go_before_what_the_plan_says(ccbench: Command, plan: str) -> None:
    options = ("--machine", "dgx-a100", "--nodes", "4", "--network", "ib-hdr-200x8")
    document = ccbench("plan", plan, *options, "--json").json
    assert document["machine"] == "4 x dgx-a100 on ib-hdr-200x8"
    assert document["devices"] == 32
    assert document["device"] == "a100"


def test_a_search_tells_how_many_it_went_through(ccbench: Command, plan: str) -> None:
    document = ccbench("plan", plan, "--search", "--top", "3", "--json").json
    seconds = [layout["step_seconds"] for layout in document["layouts"]]
    assert seconds == sorted(seconds)
    assert len(seconds) == 3
    assert (
        document["search"]["candidates"]
        >= document["search"]["fitting"]
        >= document["search"]["priced"]
    )
    assert "searched" in ccbench("plan", plan, "--search").out


def test_a_search_keeps_to_what_the_plan_states_and_the_option_to_nothing(
    ccbench: Command, plan: str
) -> None:
    Path(plan).write_text(
        PLAN.replace("layout: {tp: 8}", "layout: search\nzero: 2\nsearch: {recompute: full}")
    )
    kept = ccbench("plan", plan, "--json").json["layouts"]
    assert {layout["zero"] for layout in kept} == {2}
    assert {layout["recompute"] for layout in kept} == {"full"}
    free = ccbench("plan", plan, "--search", "--json").json["layouts"]
    assert len({layout["zero"] for layout in free}) > 1
    assert {layout["recompute"] for layout in free} == {"full"}


def test_devices_without_bfloat16_train_in_float16_unless_something_else_is_said(
    ccbench: Command, plan: str
) -> None:
    Path(plan).write_text(PLAN.replace("layout: {tp: 8}", "layout: {dp: 16}"))
    ended = ccbench("plan", plan, "--machine", "dgx-1v").done
    assert "125 TFLOP/s float16 peak" in ended.out
    Path(plan).write_text(PLAN + "dtype: bfloat16\n")
    ended = ccbench("plan", plan, "--machine", "dgx-1v").refused
    assert (
        "small.yaml:8: dtype: device v100: no rate for dtype 'bfloat16'; one of float16"
        in ended.err
    )


def test_a_plan_goes_up_to_131072_devices(ccbench: Command, plan: str) -> None:
    document = ccbench("plan", plan, "--scale", "--json").json
    assert [entry["devices"] for entry in document["scale"]][0::14] == [8, 131072]
    assert document["scale"][-1]["layout"]["dp"] == 131072 // 8
    assert "131072" in ccbench("plan", plan, "--scale").out


def write_measured(folder: Path, *all_measured: Measurement) -> str:
    with RunFolder.create(folder / "run", {"suite": "plan"}) as made:
        for measurement in all_measured:
            made.write(measurement, None, 0.95)
    return str(folder / "run")


def test_measured_points_take_the_place_of_predictions(
    ccbench: Command, plan: str, tmp_path: Path
) -> None:
    points = [measured(size, size * 1e-9, rank_samples_seconds=()) for size in (2**10, 2**30)]
    run = write_measured(
        tmp_path, *(replace(point, case=replace(point.case, ranks=8)) for point in points)
    )
    before = ccbench("plan", plan, "--json").json["layouts"][0]
    after = ccbench("plan", plan, "--measured", run, "--json").json["layouts"][0]
    sources = {
        line["purpose"]: line["source"]
        for line in after["communication"]
        if line["axis"] == "tp"
    }
    assert set(sources.values()) == {"measured"}
    assert {entry["source"] for entry in after["communication"] if entry["axis"] == "dp"} == {
        "predicted"
    }
    assert after["step_seconds"] > before["step_seconds"]
    printed = ccbench("plan", plan, "--measured", run).out
    assert "communications; the others are predicted" in printed


def test_measured_points_of_something_else_are_told_to_be_of_no_use(
    ccbench: Command, plan: str, tmp_path: Path
) -> None:
    ended = ccbench(
        "plan", plan, "--measured", write_measured(tmp_path, measured(2**20, 1e-3))
    ).done
    assert "measured: none of" in ended.out
    assert "measured:" not in ccbench("plan", plan).out


def test_simulated_times_are_not_taken_for_measured_ones(
    ccbench: Command, plan: str, tmp_path: Path
) -> None:
    measurement = measured(2**20, 1e-3)
    measurement = replace(
        measurement, case=replace(measurement.case, backend="simulated"), simulated=True
    )
    ended = ccbench("plan", plan, "--measured", write_measured(tmp_path, measurement)).refused
    assert "its times come from a model (backend simulated)" in ended.err


def test_figures_are_left_in_a_folder(ccbench: Command, plan: str, tmp_path: Path) -> None:
    assert ccbench("plan", plan, "-o", "out").done
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "plan.txt",
        "plan.json",
        "layouts.svg",
        "layouts.png",
        "timeline.svg",
        "timeline.png",
    }


LAYOUT = "layout: {tp: 8}"
MOE = "vocabulary: 32000, experts: 8, top_k: 2, expert_ffn_hidden: 1024}"
MISTAKES = [
    (LAYOUT, "layout: {tp: 3}", (), ":7: layout: "),
    (
        LAYOUT,
        "layout: {tp: 16}\nvirtual_stages: 2",
        (),
        ":7: layout: an interleaved pipeline of one",
    ),
    (LAYOUT, "layuot: {tp: 3}", (), ":7: layuot: unknown key; did you mean 'layout'?"),
    ("", "", ("--machine", "rtx-9090"), "rtx-9090"),
    ("", "", ("--machine", "pcie4-x16"), "device: how fast any PCIe 4 x16 card computes"),
    (LAYOUT, "layouts: [{tp: 3}, {tp: 5}]", (), "layouts: none can be"),
    (LAYOUT, f"{LAYOUT}\ndtype: int8", (), ":8: dtype: device h100: no rate for dtype 'int8'"),
    (
        LAYOUT,
        f"{LAYOUT}\ndevice: a1000",
        (),
        ":8: device: how fast a1000 computes is not known",
    ),
    ("", "", ("--network", "foo"), "network: 'foo' is not <kind>"),
    ("hgx-h100", "hgx-h1000", (), ":2: machine: 'hgx-h1000' is neither a file"),
    ("ib-ndr-400x8", "foo", (), ":4: network: 'foo' is not <kind>"),
    (
        "network: ib-ndr-400x8\n",
        "",
        (),
        ":2: machine: hgx-h100: 16 ranks are 2 nodes and need a",
    ),
    (
        LAYOUT,
        "search: {tp: 3}",
        (),
        ":7: search: no layout of 16 devices divides model and batch",
    ),
    (LAYOUT, "device: {memory: 1 MB}", (), ":1: search: none of "),
    (
        "vocabulary: 32000}",
        f"{MOE}\ncapacity: 1.0e+300",
        (),
        ":2: capacity: 1e+300 is out of range; write 1e-06",
    ),
]


@pytest.mark.parametrize(("stated", "instead", "arguments", "complaint"), MISTAKES)
def test_mistakes_end_in_one_line_and_exit_code_2(
    ccbench: Command,
    plan: str,
    stated: str,
    instead: str,
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    Path(plan).write_text(PLAN.replace(stated, instead) if stated else PLAN)
    ended = ccbench("plan", plan, *arguments).refused
    assert ("small.yaml" if complaint.startswith(":") else "") + complaint in ended.err


@pytest.mark.parametrize(
    ("shipped", "arguments", "complaint"),
    [
        (
            "gradients",
            ("--scale", "--machine", "hgx-h100"),
            "need no machine; leave out --machine, --scale",
        ),
        (
            "llama-3-405b",
            ("--search",),
            "global_batch: stands in single layouts only; a search needs one",
        ),
    ],
)
def test_options_that_a_plan_has_no_use_for_are_refused(
    ccbench: Command, shipped: str, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in ccbench("plan", str(PLANS / f"{shipped}.yaml"), *arguments).refused.err


def test_a_plan_without_a_machine_asks_for_one(ccbench: Command, tmp_path: Path) -> None:
    (tmp_path / "bare.yaml").write_text(
        "model: gpt2-xl\nglobal_batch: 8\nsequence: 1024\nlayout: dp8\n"
    )
    assert "machine: is missing" in ccbench("plan", "bare.yaml").refused.err
    assert ccbench("plan", "bare.yaml", "--machine", "hgx-h100").code == 0


def test_a_layout_that_does_not_go_is_left_out_and_told(ccbench: Command, plan: str) -> None:
    Path(plan).write_text(PLAN.replace("layout: {tp: 8}", "layouts: [{tp: 3}, {tp: 8}]"))
    assert "left out: tp3:" in ccbench("plan", plan).done.out


def test_lists_that_the_help_names_exist(ccbench: Command) -> None:
    named = re.findall(r"ccbench list\s+(\w+)", ccbench("plan", "--help").out)
    assert named
    assert all(ccbench("list", name).code == 0 for name in named)


@pytest.mark.exhaustive
def test_a_search_that_keeps_to_nothing_tells_the_same_step_at_every_size(
    ccbench: Command, plan: str
) -> None:
    # With --search nothing of the plan is kept to; the same number of devices in --scale is the same search.
    path = Path(plan)
    path.write_text(PLAN.replace("layout: {tp: 8}\n", "zero: 3\nrecompute: full\n"))
    document = ccbench("plan", plan, "--search", "--top", "1", "--scale", "--json").json
    (best,) = document["layouts"]
    (same,) = [entry["layout"] for entry in document["scale"] if entry["devices"] == 16]
    assert same["step_seconds"] == pytest.approx(best["step_seconds"])
    assert best["recompute"] == "none"
