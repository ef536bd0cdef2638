from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.score.shipping import write_constants
from ccbench.errors import MachineError
from ccbench.model.library.constants import (
    CONSTANTS,
    LEVELS,
    Domain,
    LibraryConstants,
    constants_of,
    scaled,
    shipped,
)
from tests.model.library.systems import STARTS


def test_every_level_moves_constants_that_exist() -> None:
    for level in LEVELS.values():
        assert set(level.moves) <= set(CONSTANTS), level.name


def test_scales_of_levels_multiply_and_shares_of_a_rate_stay_at_most_one() -> None:
    constants = scaled(
        STARTS.table, {"latency": 2.0, "latency of Simple": 1.5, "rate across": 10.0}
    )
    assert constants["hop.simple"] == 3.0 * STARTS.table["hop.simple"]
    assert constants["proxy"] == 2.0 * STARTS.table["proxy"]
    assert constants["base"] == STARTS.table["base"]
    assert constants["efficiency.fabric"] == 1.0
    assert constants["socket_gbytes"] == 10.0 * STARTS.table["socket_gbytes"]


def test_shares_are_at_most_one() -> None:
    for name, value in [*STARTS.values, *shipped().values]:
        if name.startswith(("efficiency.", "payload.")) or name == "tree_rate":
            assert value <= 1, name


def test_what_is_shipped_says_what_it_was_learned_on() -> None:
    for word in ("logs", "systems", "points"):
        assert word in shipped().learned_on
    assert shipped().domain.most_nodes


def test_what_is_shipped_stays_near_the_published_figures() -> None:
    for name, scale in shipped().levels:
        assert abs(math.log(scale)) < 3 * LEVELS[name].learned_spread, name


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


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    domain = Domain(
        ((("network", "ib"), 4), (("network", "tcp"), 2)), (("nvswitch", 8),), 1 << 34
    )
    file = tmp_path / "constants.yaml"
    write_constants(
        constants_of({"rate inside": 1.23456}, domain=domain),
        file,
        "3 logs of 2 systems, 40 points",
    )
    constants = shipped(file)
    assert constants.levels == (("rate inside", 1.235),)
    assert constants.table["proxy"] == STARTS.table["proxy"]
    assert (constants.domain, constants.learned_on) == (
        domain,
        "3 logs of 2 systems, 40 points",
    )


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
