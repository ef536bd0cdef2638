from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.score.learning import write_constants
from ccbench.errors import MachineError
from ccbench.model.library.constants import (
    CONSTANTS,
    Domain,
    LibraryConstants,
    constants_of,
    read_constants,
    shipped,
)
from tests.model.library.systems import STARTS

NAMES = [constant.name for constant in CONSTANTS]


def test_names_are_unique_and_every_constant_has_an_origin() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(constant.origin for constant in CONSTANTS)


def test_shares_are_at_most_one() -> None:
    for name, value in [*STARTS.values, *shipped().values]:
        if name.startswith(("efficiency.", "payload.")) or name == "tree_rate":
            assert value <= 1, name


def test_what_is_shipped_says_what_it_was_learned_on() -> None:
    for word in ("logs", "systems", "points"):
        assert word in shipped().learned_on
    assert shipped().domain.most_nodes


def test_what_is_shipped_stays_near_the_published_starts() -> None:
    spread = {constant.name: constant.spread for constant in CONSTANTS}
    starts = STARTS.table
    for name, value in shipped().values:
        assert value == pytest.approx(starts[name], rel=4 * spread[name] + 1e-3), name


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (STARTS.values[1:], "'base' is missing"),
        ((*STARTS.values, ("haste", 1.0)), "'haste' is missing or not one"),
        ((*STARTS.values, STARTS.values[0]), "given twice"),
        ((("base", 0.0), *STARTS.values[1:]), "base: 0.0 is not a positive number"),
        ((("base", float("nan")), *STARTS.values[1:]), "not a positive number"),
        ((("base", float("inf")), *STARTS.values[1:]), "not a positive number"),
    ],
)
def test_constants_that_cannot_be_are_refused(values: tuple[tuple[str, float], ...], complaint: str) -> None:
    with pytest.raises(MachineError, match=complaint):
        LibraryConstants(values)


def test_a_name_that_is_not_known_is_refused() -> None:
    with pytest.raises(MachineError, match="'haste' is not one of the model's"):
        constants_of({"haste": 1.0})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    domain = Domain(((("network", "ib"), 4), (("network", "tcp"), 2)), (("nvswitch", 8),), 1 << 34)
    file = tmp_path / "constants.yaml"
    write_constants(constants_of({"base": 1.23456}, domain=domain), file, "3 logs of 2 systems, 40 points")
    found = read_constants(file)
    assert found.table["base"] == 1.235
    assert found.table["proxy"] == STARTS.table["proxy"]
    assert (found.domain, found.learned_on) == (domain, "3 logs of 2 systems, 40 points")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be written"):
        write_constants(STARTS, tmp_path / "absent" / "constants.yaml", "nothing")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "values: {base: 1}",
        "learned_on: x\nvalues: [1, 2]",
        "learned_on: x\nvalues: {base: fast}",
        "learned_on: x\nvalues: {base: 1}\ndomain: {most_nodes: [3]}",
        "learned_on: x\nvalues: {base: -1}",
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "constants.yaml"
    file.write_text(text)
    with pytest.raises(MachineError, match="constants") as caught:
        read_constants(file)
    assert "\n" not in str(caught.value)


DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "model-library.md"


def test_every_constant_is_documented_with_its_start_and_origin_and_none_that_is_gone() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").split("| constant | start | spread |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `.*", text, re.MULTILINE) == [
        f"| `{one.name}` | {one.start:g} | {one.spread:g} | {one.origin} |" for one in CONSTANTS
    ]
