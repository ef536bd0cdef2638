"""The commands that measure nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccbench.backends.kernels.sources import kernel_algorithms
from ccbench.cases.capabilities import backend_names
from ccbench.collectives import COLLECTIVES
from ccbench.machine.doctor import Check
from ccbench.topology.files import catalog_names
from ccbench.topology.node_nics import KINDS, parse_network
from ccbench.units import format_seconds
from tests.cli.conftest import Command

POINT_KEYS = [
    "collective",
    "algorithm",
    "protocol",
    "ranks",
    "size_bytes",
    "bound_seconds",
    "predicted_seconds",
    "algbw_GB_s",
    "busbw_GB_s",
    "bottleneck",
]
MACHINE = "hgx-h100"
ALL_REDUCE = ("--collective", "all_reduce")


def price(ccbench: Command, *arguments: str, machine: str = "") -> list[dict[str, Any]]:
    """Points on ``machine``, else those of ccbench's own schedules."""
    where = (machine,) if machine else (MACHINE, "--model", "schedule")
    ended = ccbench("predict", "--machine", *where, "--json", *arguments).done
    points: list[dict[str, Any]] = ended.json
    return points


def test_predict_prints_the_promised_keys(ccbench: Command) -> None:
    (point,) = price(
        ccbench, *ALL_REDUCE, "--algorithm", "ring", "--ranks", "4", "--sizes", "1MiB"
    )
    assert list(point) == POINT_KEYS
    assert point["size_bytes"] == 1 << 20
    assert 0 < point["bound_seconds"] <= point["predicted_seconds"]
    assert point["algbw_GB_s"] == pytest.approx((1 << 20) / point["predicted_seconds"] / 1e9)
    assert point["busbw_GB_s"] == pytest.approx(point["algbw_GB_s"] * 2 * 3 / 4)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_predict_prices_every_algorithm_when_none_is_named(
    ccbench: Command, collective: str
) -> None:
    points = price(
        ccbench, "--collective", collective, "--ranks", "3", "--sizes", "1KiB:1MiB:32"
    )
    assert points
    assert all(point["bound_seconds"] <= point["predicted_seconds"] for point in points)
    names = {point["algorithm"] for point in points}
    sizes = [point["size_bytes"] for point in points if point["algorithm"] == min(names)]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    "sizes", ["8:4", "0:8:2", "8:16:1", "8:16:0.5", "8:1:2:3", "lots", "8:16:x", "8:9:nan"]
)
def test_predict_refuses_sizes_that_never_end(ccbench: Command, sizes: str) -> None:
    ended = ccbench(
        *(
            "predict",
            "--machine",
            MACHINE,
            "--collective",
            "all_reduce",
            "--ranks",
            "2",
            "--sizes",
            sizes,
        )
    ).refused
    assert "--sizes" in ended.err
    assert "8:1GiB:2" in ended.err


def test_predict_shows_a_library_changing_its_mind_as_sizes_grow(ccbench: Command) -> None:
    points = price(ccbench, *ALL_REDUCE, "--sizes", "8:16GiB:2", machine="hgx-h100")
    assert list(points[0])[: len(POINT_KEYS)] == POINT_KEYS
    assert len({(point["algorithm"], point["protocol"]) for point in points}) > 1
    assert points[-1]["algorithm"] == "nvls"
    assert points[-1]["busbw_GB_s"] == pytest.approx(480, rel=0.05)


def test_predict_joins_machines_with_a_network(ccbench: Command) -> None:
    network = ("--nodes", "4", "--network", "ib-hdr-200x8")
    (point,) = price(ccbench, *ALL_REDUCE, *network, "--sizes", "4GiB", machine="dgx-a100")
    assert point["ranks"] == 32
    assert point["busbw_GB_s"] == pytest.approx(191, rel=0.08)


def test_predict_prices_own_schedules_on_the_links(ccbench: Command) -> None:
    points = price(
        ccbench, *ALL_REDUCE, "--model", "schedule", "--sizes", "64MiB", machine="hgx-h100"
    )
    assert {"ring", "two_shot"} <= {point["algorithm"] for point in points}
    assert all(
        "nvswitch" in point["bottleneck"] for point in points if point["algorithm"] == "ring"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--machine", "cpu-shared-memory"), "the CPU has predictions only within a run"),
        (
            ("--machine", "hgx-h100", "--model", "schedule", "--protocol", "ll"),
            "schedules have none",
        ),
        (("--machine", "hgx-h100", "--ranks", "16"), "--network"),
        (("--machine", "hgx-h100", "--algorithm", "nvlstree"), "there are"),
        (("--machine", "hgx-h1000"), "hgx-h100"),
        (("--machine", "hgx-h100", "--algorithm", "foo"), "--algorithm 'foo': nvlstree"),
        (("--machine", "hgx-h100", "--protocol", "LL256"), "--protocol 'LL256': ll128"),
    ],
)
def test_predict_refuses_what_cannot_be(
    ccbench: Command, arguments: tuple[str, ...], sentence: str
) -> None:
    ended = ccbench(
        "predict", "--collective", "all_reduce", "--sizes", "1MiB", *arguments
    ).refused
    for words in sentence.split(": "):
        assert words in ended.err


def test_schedule_draws(ccbench: Command, tmp_path: Path) -> None:
    assert ccbench(
        "schedule", "broadcast", "binomial", "--ranks", "5", "--root", "2", "--draw", "b.svg"
    ).done
    assert "<svg" in (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize(
    ("drawing", "sentence"),
    [
        ("nodir/x.png", "no folder nodir"),
        ("x.gif", "'.gif' is not a picture format"),
        ("folder.svg", "it is a folder"),
    ],
)
def test_a_drawing_that_cannot_be_is_refused_before_anything_is_printed(
    ccbench: Command, tmp_path: Path, drawing: str, sentence: str
) -> None:
    (tmp_path / "folder.svg").mkdir()
    ended = ccbench("schedule", "all_reduce", "ring", "--ranks", "4", "--draw", drawing).refused
    (line,) = ended.err.splitlines()
    assert sentence in line


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "proven"),
    [
        (
            "all_reduce",
            "ring",
            "1",
            "every output of 1 rank holds every contribution exactly once",
        ),
        (
            "all_reduce",
            "ring",
            "4",
            "every output of 4 ranks holds every contribution exactly once",
        ),
        (
            "all_gather",
            "ring",
            "4",
            "every output of 4 ranks holds the piece it should, and nothing else",
        ),
        ("barrier", "dissemination", "4", "every one of 4 ranks has a signal from every other"),
    ],
)
def test_a_proof_says_what_the_collective_promises(
    ccbench: Command, collective: str, algorithm: str, ranks: str, proven: str
) -> None:
    ended = ccbench("schedule", collective, algorithm, "--ranks", ranks, "--prove").done
    assert ended.out.splitlines()[-1] == f"proven: {proven}"


@pytest.mark.parametrize("root", ["0", "9"])
def test_a_root_is_refused_where_the_collective_has_none(ccbench: Command, root: str) -> None:
    ended = ccbench("schedule", "all_reduce", "ring", "--ranks", "4", "--root", root).refused
    assert (
        f"--root {root}: all_reduce has no root (broadcast, reduce, gather, scatter have)"
        in ended.err
    )


def test_what_has_no_speed_or_limit_is_a_dash(ccbench: Command) -> None:
    words = ("--collective", "barrier", "--ranks", "4", "--sizes", "8", "--model", "schedule")
    rows = ccbench("predict", "--machine", MACHINE, *words).out.splitlines()[2:]
    assert rows
    for row in rows:
        assert row.split().count("-") >= 2
        assert " 0.000 " not in row
        assert " 0 us " not in row


def test_schedule_of_an_unknown_algorithm_lists_the_known_ones(ccbench: Command) -> None:
    assert "dissemination" in ccbench("schedule", "barrier", "ring", "--ranks", "4").refused.err


@pytest.mark.parametrize(
    ("output", "sentence"),
    [("no/mine.yaml", "no folder no"), ("d.yaml", "it is a folder"), ("mine.txt", ".yaml")],
)
def test_predict_checks_the_file_of_a_fit_first(
    ccbench: Command, tmp_path: Path, output: str, sentence: str
) -> None:
    (tmp_path / "d.yaml").mkdir()
    ended = ccbench("predict", "--from", "run", "-o", output).refused
    assert sentence in ended.err


def test_a_collectives_algorithms_are_a_list_in_json_and_a_line_for_people(
    ccbench: Command,
) -> None:
    listed = ccbench("list", "collectives", "--json").json["collectives"]
    assert listed["barrier"] == ["dissemination"]
    assert "all_gather" in listed
    line = next(
        splitline
        for splitline in ccbench("list", "collectives").out.splitlines()
        if splitline.startswith("all_gather")
    )
    assert line.split(maxsplit=1)[1] == ", ".join(listed["all_gather"])


def test_list_shows_which_kernels_there_are_and_for_which_collectives(ccbench: Command) -> None:
    kernels = ccbench("list", "kernels", "--json").json["kernels"]
    assert set(kernels) >= {
        "ring",
        "tree",
        "mesh_one_shot",
        "mesh_two_shot",
        "ll",
        "schedule:NAME",
    }
    assert kernels["mesh_two_shot"] == ["all_reduce"]
    assert kernels["barrier"] == ["barrier"]
    for name in COLLECTIVES:
        runnable = {algorithm.partition(":")[0] for algorithm in kernel_algorithms(name)}
        assert runnable == {
            kernel.partition(":")[0] for kernel, of in kernels.items() if name in of
        }
    lines = ccbench("list", "kernels").out.splitlines()
    assert [line.split()[0] for line in lines] == list(kernels)
    assert next(line for line in lines if line.startswith("ring")).endswith(
        ", ".join(kernels["ring"])
    )


def test_list_knows_everything_there_is(ccbench: Command) -> None:
    listed = ccbench("list", "--json").json
    assert list(listed["collectives"]) == list(COLLECTIVES)
    assert tuple(listed["backends"]) == backend_names()
    assert set(listed["machines"]) == {*catalog_names()}
    assert {"quick", "allreduce"} <= set(listed["suites"])
    assert "all_reduce ring" in listed["algorithms"]


def test_list_of_one_kind_starts_each_line_with_the_name(ccbench: Command) -> None:
    ended = ccbench("list", "suites")
    assert any(line.startswith("quick ") for line in ended.out.splitlines())
    assert "collectives\n" not in ended.out


def test_doctor_ends_with_2_only_when_there_is_a_problem(
    ccbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [Check("clock", "ok", "ticks"), Check("load", "note", "busy", "wait")]
    monkeypatch.setattr("ccbench.machine.doctor.examine", lambda *_: tuple(checks))
    monkeypatch.setattr("ccbench.machine.doctor.backend_checks", lambda *_: ())
    monkeypatch.setattr(
        "ccbench.machine.doctor.results_folder", lambda _: Check("folder", "ok", "there")
    )
    ended = ccbench("doctor").done
    lines = [
        "ok       clock: ticks",
        "note     load: busy",
        "         -> wait",
        "ok       folder: there",
    ]
    assert ended.out.splitlines() == lines
    checks.append(Check("/dev/shm", "problem", "64 MiB", "more"))
    ended = ccbench("doctor", "--json")
    assert ended.code == 2
    assert ended.json[-2] == {
        "name": "/dev/shm",
        "status": "problem",
        "seen": "64 MiB",
        "advice": "more",
    }


def test_suite_schema_is_a_json_schema(ccbench: Command) -> None:
    schema = ccbench("list", "suite-schema").json
    assert schema["type"] == "object"
    assert {"suite", "question", "sweep"} <= set(schema["properties"])


def test_a_report_draws_runs_together_and_one_behind(
    ccbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        words = ("--backend", "simulated", "--only", "broadcast", "--no-report", "-q")
        assert ccbench("run", "quick", *words, "-o", name).done
    ended = ccbench(
        "report", "a", "b", "--baseline", "c", "-o", "drawn", "--format", "md,csv", "--json"
    ).done
    files = [Path(file) for file in ended.json["files"]]
    assert {file.suffix for file in files} == {".md", ".csv"}
    assert all((tmp_path / file).is_file() and file.parts[0] == "drawn" for file in files)
    assert list(ended.json["verdicts"]) == ["a", "b"]


def test_networks_are_listed_as_the_option_takes_them(ccbench: Command) -> None:
    listed = ccbench("list", "networks", "--json").json["networks"]
    assert set(listed) == set(KINDS)
    for word, description in listed.items():
        example = description.split("such as ")[1].split(":")[0]
        assert str(parse_network(example)) == example
        assert example.startswith(word)


ASKED = ("predict", "--machine", "hgx-h100", "--collective", "all_reduce", "--sizes", "1MiB")


@pytest.mark.parametrize("more", [(), ("--nodes", "1"), ("--ranks", "8")])
def test_a_network_of_one_machine_is_refused(ccbench: Command, more: tuple[str, ...]) -> None:
    ended = ccbench(*ASKED, "--network", "ib-ndr-400x8", *more).refused
    assert "--network ib-ndr-400x8: 8 ranks are one hgx-h100" in ended.err
    assert "give --nodes" in ended.err


def test_a_network_of_several_machines_is_taken(ccbench: Command) -> None:
    assert ccbench(*ASKED, "--network", "ib-ndr-400x8", "--nodes", "2").code == 0
    assert ccbench(*ASKED, "--network", "ib-ndr-400x8", "--ranks", "16").code == 0


def test_algorithms_and_protocols_may_be_spelt_as_nccl_does(ccbench: Command) -> None:
    theirs = ccbench(*ASKED, "--algorithm", "Ring", "--protocol", "LL128", "--json")
    ours = ccbench(*ASKED, "--algorithm", "ring", "--protocol", "ll128", "--json")
    assert theirs.code == 0, theirs.err
    assert theirs.json == ours.json


def test_the_table_says_what_was_priced_and_in_which_units(ccbench: Command) -> None:
    title, head, row, origin = ccbench(*ASKED, "--dtype", "bfloat16").out.splitlines()
    assert title == (
        "all_reduce bfloat16 on hgx-h100, 8 ranks, as NCCL would run it "
        "(times of one launch; 1 GB/s is 1e9 B/s)"
    )
    assert "algbw GB/s  busbw GB/s" in head
    (point,) = ccbench(*ASKED, "--dtype", "bfloat16", "--json").json
    assert f" {point['algbw_GB_s']:.3f} " in row
    edges = [point[f"predicted_{edge}_80_seconds"] for edge in ("low", "high")]
    assert "80 % from  " in head
    assert "  ".join(format_seconds(edge) for edge in edges) in row
    assert origin.endswith(point["predicted_origin"])
    assert point["bound_seconds"] <= point["predicted_low_95_seconds"] <= edges[0]
    assert edges[1] <= point["predicted_high_95_seconds"]
    own = ccbench(*ASKED, "--model", "schedule", "--algorithm", "ring").out
    assert "8 ranks, as ccbench's own schedules would run it" in own
    assert "80 %" not in own
