from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model.machine import (
    Machine,
    RatePoint,
    Rates,
    load_machine,
    machine_names,
    save_machine,
)

from .machines import flat, machines, refusal, toy


@given(machines())
def test_a_saved_machine_loads_as_the_same_value(
    tmp_path_factory: pytest.TempPathFactory, machine: Machine
) -> None:
    path = tmp_path_factory.getbasetemp() / "machine.yaml"
    save_machine(machine, path)
    assert load_machine(path) == machine


@pytest.mark.parametrize("name", machine_names())
def test_every_shipped_machine_loads_under_its_own_name(name: str) -> None:
    assert load_machine(name).name == name


@pytest.fixture
def text(tmp_path: Path) -> str:
    save_machine(toy(), tmp_path / "toy.yaml")
    return (tmp_path / "toy.yaml").read_text()


@pytest.mark.parametrize(
    ("original", "instead", "complaint"),
    [
        ("cores: 4", "cores: '4'", "fabric.cores: input should be a valid integer; seen '4'"),
        ("cores: 4", "cores: 0", "cores: 0 is not at least 1"),
        ("cores: 4", "cores: 4\n  cores: 5", ":4: fabric.cores: the key is given twice"),
        ("cores: 4", "cores: 4\n  sockets: 1", "fabric.sockets: unexpected keyword argument"),
        ("  cores: 4\n", "", "fabric.cores: field required"),
        ("1.0e-05", ".nan", "fabric.yield_seconds"),
        ("1.0e-05", "-1.0", "yield_seconds: -1.0 is not a number of seconds"),
        ("kind: cpu", "kind: gpu", "kind: input should be 'cpu'; seen 'gpu'"),
        ("name: toy", "name: [", "is not YAML"),
        ("  yield_seconds: made up for a test\n", "", "origins: nothing about yield_seconds"),
        (
            "  cores: made",
            "  sockets: made up\n  cores: made",
            "origins: sockets is not a number",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_path_and_place(
    tmp_path: Path, text: str, original: str, instead: str, complaint: str
) -> None:
    assert original in text
    path = tmp_path / "wrong.yaml"
    path.write_text(text.replace(original, instead, 1))
    assert complaint in refusal(load_machine, path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"- 1", "the file: input should be an object"),
        (b"\xff\xfe", "is not UTF-8 text; a description of a machine is JSON or YAML"),
        (
            b"a: " + b"x" * (4 << 20),
            "is larger than 4096 KiB; a description of a machine is smaller",
        ),
        (b"2020-01-01", "the file: input should be an object"),
        (b"[" * 5000, "nested deeper than 64 levels"),
    ],
)
def test_a_file_that_is_no_machine_is_refused_in_one_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "other.yaml"
    path.write_bytes(content)
    assert complaint in refusal(load_machine, path)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        MachineError, match=r"'cpu-defualt' is not known; one of .*cpu-shared-memory"
    ):
        load_machine("cpu-defualt")


def test_missing_and_unwritable_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"cannot be read .*; name a machine's file"):
        load_machine(tmp_path / "absent.yaml")
    with pytest.raises(MachineError, match="cannot be written"):
        save_machine(toy(), tmp_path / "no-folder" / "toy.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peak_traffic": flat(1.9e9, 8e9)}, "less than 2 x copy"),
        ({"peak_traffic": flat(2e9, 8e9), "reduce": flat(5e8, 4e9)}, "less than 3 x reduce"),
        ({"peak_traffic": flat(9e9, 8e9)}, "peak_traffic: all_cores lies below one_process"),
        ({"operation_seconds": 0.0}, "operation_seconds: 0, but no call is free"),
        (
            {"best_flag_latency_seconds": 2e-6},
            "best_flag_latency_seconds: larger than flag_latency",
        ),
    ],
)
def test_numbers_of_a_host_that_contradict_each_other_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(MachineError, match=message):
        replace(toy().fabric, **changes)


UNKNOWN = "is not a type and one of sum, prod, min, max, average"


@pytest.mark.parametrize(
    ("key", "rate", "message"),
    [
        *(
            (key, 1e9, UNKNOWN)
            for key in ("float16", "float16 xor", "float17 sum", "sum float16", "")
        ),
        *(
            ("int8 sum", rate, f"int8 sum: {rate} is not a positive")
            for rate in (0.0, -1.0, math.inf, math.nan)
        ),
    ],
)
def test_rates_of_types_that_cannot_be_are_refused(key: str, rate: float, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        toy(arithmetic={key: rate})


def test_a_file_without_rates_of_types_is_a_machine_and_one_with_them_says_where_from(
    tmp_path: Path,
) -> None:
    path = tmp_path / "toy.yaml"
    for rates in ({}, {"int8 sum": 1e9}):
        save_machine(toy(arithmetic=rates), path)
        text = path.read_text()
        without = text.replace("  operation_bytes_per_second: made up for a test\n", "")
        without = without.replace("  operation_bytes_per_second: {}\n", "")
        assert without != text
        path.write_text(without)
        if not rates:
            assert load_machine(path).fabric.operation_bytes_per_second == {}
            continue
        with pytest.raises(MachineError, match="nothing about operation_bytes_per_second"):
            load_machine(path)


def test_points_must_rise_and_larger_must_not_be_quicker() -> None:
    with pytest.raises(MachineError, match="rising order"):
        Rates((RatePoint(8, 1.0), RatePoint(8, 1.0)), (RatePoint(8, 1.0),))
    with pytest.raises(MachineError, match="would take"):
        Rates((RatePoint(8, 1.0), RatePoint(16, 2.1)), (RatePoint(8, 1.0),))


def test_rates_are_straight_lines_in_log_log() -> None:
    rates = Rates((RatePoint(100, 4e9), RatePoint(10_000, 1e9)), (RatePoint(100, 16e9),))
    assert rates.at([1, 100, 1000, 10_000, 10**9], 1, 4) == pytest.approx(
        [4e9, 4e9, 2e9, 1e9, 1e9]
    )
    # Two of four cores are half way, on a logarithmic scale, between one and all.
    assert rates.at(100, 2, 4) == pytest.approx(8e9)
    assert rates.at(100, 4, 4) == pytest.approx(16e9)


@given(machines(), st.integers(1, 9))
def test_time_never_falls_as_the_working_set_grows(machine: Machine, processes: int) -> None:
    sizes = np.geomspace(1, 1e10, 200)
    seconds = sizes / machine.fabric.copy.at(sizes, processes, machine.fabric.cores)
    assert np.all(np.diff(seconds) >= -1e-9 * seconds[1:])
