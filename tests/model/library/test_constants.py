from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.score.shipping import write_constants
from ccbench.errors import MachineError
from ccbench.model.library.constants import (
    CONSTANTS,
    LEVELS,
    LibraryConstants,
    constants_of,
    shipped,
)
from tests.model.library.systems import STARTS


def test_every_level_moves_constants_that_exist() -> None:
    for level in LEVELS.values():
        assert set(level.moves) <= set(CONSTANTS), level.name


def test_no_level_lifts_a_share_of_a_rate_above_the_rate() -> None:
    table = constants_of(dict.fromkeys(LEVELS, 20.0)).table
    shares = {name: value for name, value in table.items() if "efficiency." in name}
    assert {"pcie.efficiency.host_both", "efficiency.host_both"} <= set(shares)
    assert max(shares.values()) <= 1.0


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
def test_constants_that_cannot_be_are_refused(
    values: tuple[tuple[str, float], ...], complaint: str
) -> None:
    with pytest.raises(MachineError, match=complaint):
        LibraryConstants(values)


def test_a_name_that_is_not_known_is_refused() -> None:
    with pytest.raises(
        MachineError, match="'haste' is not one of the model's levels: overhead, "
    ):
        constants_of({"haste": 1.0})


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be written"):
        write_constants(STARTS, tmp_path / "absent" / "constants.yaml", "nothing")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "levels: {fill: 1}",
        "learned_on: x\nlevels: [1, 2]",
        "learned_on: x\nlevels: {fill: fast}",
        "learned_on: x\nlevels: {fill: 1}\ndomain: {most_nodes: [3]}",
        "learned_on: x\nlevels: {fill: -1}",
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "constants.yaml"
    file.write_text(f"{text}\n...\n")
    with pytest.raises(
        MachineError, match=r"missing or damaged .*; reinstall ccbench"
    ) as caught:
        shipped(file)
    assert "\n" not in str(caught.value)
