"""An axis is one row of ``ccbench.cases.axes.AXES``, a backend one row of ``ccbench.backends`` and its own module.

The proof adds two axes and a backend to a copy of the package, each in its place, and uses the commands.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest

from ccbench.cases.axes import Case

ROOT = Path(__file__).resolve().parents[1]

END_OF_AXES = "    started_with: Variant"
ROW = """
    flavour: str = field(default="plain", metadata=axis(
        "what a made-up axis is about", "flavour {}", "unflavoured",
        values=("plain", "sweet", "sour"), all_values=("plain", "sweet", "sour")))
    texture: int = field(default=0, metadata=axis(
        "what a library can be told", "texture {}", "no texture", choice=True, bounds=(0, 3)))
"""
BEFORE_CONDITIONS = "    conditions: Conditions = field("
COLUMN = """    weather: str = column("dry", "what a made-up column is about", rounds="first")
"""

BACKEND_ROW = '"pair": EVERY, **SHARED, **BESIDE},\n        not_in_place=("all_to_all_v",),\n        most_ranks=1024,'
BACKEND_HAS_IT = '"flavour": EVERY, "texture": (2,), '

BEFORE_A_BACKEND = '    Capabilities(\n        "nccl",'
BACKEND = """\
    Capabilities(
        "invented",
        entry_point="ccbench.backends.invented:BACKEND",
        values={**ON_HOSTS, "flavour": ("sweet",)},
        device=Device.MODEL,
        own_schedules=True,
    ),
"""
MODULE = """\
from ccbench.backends.simulated import SimulatedBackend

class Invented(SimulatedBackend):
    name = "invented"

BACKEND = Invented()
"""

SUITE = """\
suite: {name}
backends: [simulated]
sweep: {{collective: all_reduce, ranks: 4, size: [1 KiB, 4 KiB], flavour: {flavour}, texture: [0, 2]}}
"""

# Each argument list of stdin is a command; its exit code and output go to stdout as JSON.
DRIVER = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from ccbench.cli import main

ended = []
for command in json.load(sys.stdin):
    out, err, code = io.StringIO(), io.StringIO(), None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(command)
        except SystemExit as leaving:
            code = leaving.code
    ended.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(ended))
"""

COMMANDS = {
    "list": "list axes",
    "plan": "run all.yaml --plan --json",
    "plan of another": "run all.yaml --plan --json --backend cpu",
    "refused": "run wrong.yaml --plan",
    "refused number": "run beyond.yaml --plan",
    "run": "run all.yaml -o runs/all --no-report --quiet",
    "backends": "list backends",
    "run of a new backend": "run all.yaml --backend invented -o other --no-report --quiet",
    "plan of a new backend": "run all.yaml --backend invented --plan",
    "report of a new backend": "report other -o other/report --format md",
    "plain run": "run plain.yaml -o runs/plain --no-report --quiet",
    "report": "report runs/all -o report --format csv,md,nccl-tests",
    "compare": "compare runs/plain runs/all --format json",
    "compare several": "compare runs/plain runs/all runs/all",
    "tune": "tune runs/all --json",
}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def inserted(file: Path, before: str, text: str) -> None:
    """Put ``text`` before the only place where ``before`` stands in ``file``."""
    old = file.read_text()
    assert old.count(before) == 1
    file.write_text(old.replace(before, text + before))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose cases have one axis more, and suites that ask for it."""
    folder = tmp_path_factory.mktemp("wider")
    shutil.copytree(
        ROOT / "ccbench", folder / "ccbench", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("kernels", "suites", "results", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    inserted(folder / "ccbench" / "cases" / "axes.py", END_OF_AXES, ROW)
    inserted(folder / "ccbench" / "cases" / "measurement.py", BEFORE_CONDITIONS, COLUMN)
    inserted(folder / "ccbench" / "backends" / "__init__.py", BACKEND_ROW, BACKEND_HAS_IT)
    inserted(folder / "ccbench" / "backends" / "__init__.py", BEFORE_A_BACKEND, BACKEND)
    (folder / "ccbench" / "backends" / "invented.py").write_text(MODULE)
    (folder / "all.yaml").write_text(SUITE.format(name="all", flavour="all"))
    (folder / "plain.yaml").write_text(SUITE.format(name="plain", flavour="plain"))
    (folder / "wrong.yaml").write_text(SUITE.format(name="wrong", flavour="bitter"))
    (folder / "beyond.yaml").write_text(
        SUITE.format(name="beyond", flavour="plain").replace("2]", "4]")
    )
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, Ended]:
    """How each of COMMANDS ended there."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps([command.split() for command in COMMANDS.values()]),
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
    )
    return {
        name: Ended(*one) for name, one in zip(COMMANDS, json.loads(done.stdout), strict=True)
    }


@pytest.mark.exhaustive
def test_a_new_axis_is_listed_with_its_values(ended: dict[str, Ended]) -> None:
    assert (
        "flavour       what a made-up axis is about (plain, sweet, sour)" in ended["list"].out
    )
    assert "texture       what a library can be told (0 to 3)" in ended["list"].out


@pytest.mark.exhaustive
def test_a_new_axis_is_expanded_from_yaml_and_its_default_leaves_ids_and_labels_alone(
    ended: dict[str, Ended],
) -> None:
    cases = json.loads(ended["plan"].out)["cases"]
    assert len(cases) == len({case["case_id"] for case in cases}) == 12
    known = Case("all", "simulated", "all_reduce", "default", "float32", "sum", 1024, 256, 4)
    labels = {case["case_id"]: case["label"] for case in cases}
    assert labels[known.case_id] == known.label
    assert f"{known.label}, flavour sweet, texture 2" in labels.values()


@pytest.mark.exhaustive
def test_a_new_axis_is_refused_where_a_backend_does_not_have_it(
    ended: dict[str, Ended],
) -> None:
    assert len(json.loads(ended["plan of another"].out)["cases"]) == 2
    said = ended["plan of another"].err + ended["plan of another"].out
    assert "cpu has no flavour" in said
    assert "cpu has no texture" in said


@pytest.mark.exhaustive
def test_a_value_that_a_new_axis_does_not_have_is_refused_in_one_line(
    ended: dict[str, Ended],
) -> None:
    assert ended["refused"].code == ended["refused number"].code == 2
    assert "wrong.yaml:3: sweep.flavour: 'bitter' is not a flavour; " in ended["refused"].err
    assert (
        "beyond.yaml:3: sweep.texture[1]: 4 is not a texture; write 0 to 3"
        in ended["refused number"].err
    )


@pytest.mark.exhaustive
def test_a_new_axis_is_a_column(ended: dict[str, Ended], folder: Path) -> None:
    assert (ended["run"].code, ended["plain run"].code) == (0, 0), ended["run"].err
    table = pq.read_table(folder / "runs" / "all" / "cases.parquet")
    assert sorted(table["flavour"].to_pylist()) == ["plain"] * 4 + ["sour"] * 4 + ["sweet"] * 4
    assert sorted(table["texture"].to_pylist()) == [0] * 6 + [2] * 6


@pytest.mark.exhaustive
def test_a_column_that_one_field_declares_is_written_and_read(
    ended: dict[str, Ended], folder: Path
) -> None:
    assert ended["run"].code == 0
    table = pq.read_table(folder / "runs" / "all" / "cases.parquet")
    assert set(table["weather"].to_pylist()) == {"dry"}
    assert min(map(len, table["round_samples"].to_pylist())) >= 2
    # What the readers of results do with a run goes on with it.
    assert ended["report"].code == 0


@pytest.mark.exhaustive
def test_a_new_axis_is_in_tables_and_tells_lines_apart(
    ended: dict[str, Ended], folder: Path
) -> None:
    assert ended["report"].code == 0, ended["report"].err
    written = {
        file.suffix: file.read_text()
        for file in (folder / "report").rglob("*")
        if file.is_file()
    }
    assert "flavour" in written[".csv"].splitlines()[0].split(",")
    assert "flavour sweet" in written[".md"]
    assert "flavour sour" in "".join(written.values())


@pytest.mark.exhaustive
def test_points_that_differ_in_a_new_axis_are_not_compared_and_make_series_of_their_own(
    ended: dict[str, Ended],
) -> None:
    points = json.loads(ended["compare"].out)["points"]
    causes = {(point["flavour"], point["cause"]) for point in points}
    assert causes == {
        ("plain", None),
        ("sweet", "missing in base"),
        ("sour", "missing in base"),
    }
    assert ended["compare several"].out.count("flavour sweet") == 4


@pytest.mark.exhaustive
def test_advice_says_a_new_axis(ended: dict[str, Ended]) -> None:
    advice = json.loads(ended["tune"].out)["situations"]
    assert {one["work"] for one in advice} == {"", "flavour sweet", "flavour sour"}
    rivals = [band["instead_of"] for situation in advice for band in situation["bands"]]
    assert any("texture" in rival for rival in rivals if rival)


@pytest.mark.exhaustive
def test_a_new_backend_is_listed_measured_reported_and_refuses_what_its_row_does_not_have(
    ended: dict[str, Ended], folder: Path
) -> None:
    assert "invented" in ended["backends"].out
    assert ended["run of a new backend"].code == 0, ended["run of a new backend"].err
    rows = pq.read_table(folder / "other" / "cases.parquet").to_pylist()
    assert sorted((row["backend"], row["flavour"], row["texture"]) for row in rows) == [
        *[("invented", "plain", 0)] * 2,
        *[("invented", "sweet", 0)] * 2,
    ]
    said = ended["plan of a new backend"].out + ended["plan of a new backend"].err
    assert "invented has no flavour" in said
    assert "invented has no texture" in said
    assert "invented" in (folder / "other" / "report" / "report.md").read_text()
