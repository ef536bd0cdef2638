from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccbench.cases.measurement import Sampling
from ccbench.errors import SuiteError
from ccbench.suite.expansion import expand
from ccbench.suite.model import Sweep, load_suite, read_suite, suite_schema
from ccbench.suite.readers import Range, parse_sizes

from .offers import context

COMPLETE = """\
suite: everything
question: >
  Does every key
  work?
backends: [cpu, simulated]
sweep:
  collective: [all_reduce, broadcast]
  algorithm: [default, hierarchical:2]
  size:
    - 8 B
    - {from: 1 KiB, to: 1 MiB, factor: 4}
    - 3:100:2
  ranks: {from: 2, to: 6, step: 2}
  dtype: [float32, int8]
  op: [sum, max]
  root: [0, 1]
  placement: [out_of_place, in_place]
  mode: isolated
  protocol: ll128
sampling:
  confidence: 99%
  rounds: 3
  max_ci_width: 0.1
  minimum_samples: 5
  maximum_samples: 50
  warmup: 1 ms
  minimum_sample: 200 us
  budget: 1 s
  time_limit: 2m
order: written
seed: 7
"""


def refusal(text: str) -> str:
    with pytest.raises(SuiteError) as problem:
        expand(read_suite(text, "suites/x.yaml"), context())
    message = str(problem.value)
    assert message.isprintable()
    return message


def test_a_file_may_say_everything(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(COMPLETE)
    suite = load_suite(path)
    assert (suite.name, suite.question) == ("everything", "Does every key work?")
    assert suite.backends == ("cpu", "simulated")
    assert suite.sweep == (
        Sweep.model_validate(
            {
                "collective": ("all_reduce", "broadcast"),
                "algorithm": ("default", "hierarchical:2"),
                "size": (8, Range(1024, 2**20, "factor", 4), Range(3, 100, "factor", 2)),
                "ranks": (2, 4, 6),
                "dtype": ("float32", "int8"),
                "op": ("sum", "max"),
                "root": (0, 1),
                "placement": ("out_of_place", "in_place"),
                "mode": ("isolated",),
                "protocol": ("ll128",),
            }
        ),
    )
    assert suite.sampling == Sampling(
        confidence=0.99,
        rounds=3,
        target_relative_width=0.1,
        minimum_samples=5,
        maximum_samples=50,
        warmup_seconds=0.001,
        minimum_sample_seconds=0.0002,
        budget_seconds=1.0,
        time_limit_seconds=120.0,
    )
    assert (suite.order, suite.seed) == ("written", 7)


def test_what_a_file_leaves_out_is_what_sampling_and_cases_default_to() -> None:
    suite = read_suite("sweep: {collective: all_reduce}")
    assert suite.sampling == Sampling()
    assert (suite.backends, suite.order, suite.seed) == (("auto",), "interleaved", 1)
    (case, *_) = expand(suite, context())
    assert (case.dtype, case.op, case.mode, case.protocol, case.in_place) == (
        "float32",
        "sum",
        "streaming",
        "default",
        False,
    )


def test_a_suite_takes_the_name_of_its_file_unless_it_has_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("sweep: {collective: barrier}")
    assert load_suite(path).name == "mine"
    odd = tmp_path / "my suite.yaml"
    odd.write_text("sweep: {collective: barrier}")
    with pytest.raises(SuiteError, match="suite: 'my suite' is not a name for a run folder"):
        load_suite(str(odd))


def test_json_is_yaml_and_a_suite_survives_it() -> None:
    suite = read_suite(COMPLETE)
    assert read_suite(json.dumps(suite.as_document())) == suite


def mistakes() -> list[tuple[str, str]]:
    blocks = (
        (Path(__file__).parent / "mistakes.txt")
        .read_text(encoding="utf-8")
        .strip()
        .split("\n\n")[1:]
    )
    return [
        (text, message) for text, _, message in (block.rpartition("\n=> ") for block in blocks)
    ]


@pytest.mark.parametrize(("text", "message"), mistakes())
def test_every_mistake_names_line_place_what_was_seen_and_a_cure(
    text: str, message: str
) -> None:
    assert refusal(text) == f"suites/x.yaml:{message}"


def test_the_first_of_several_mistakes_in_the_file_is_told() -> None:
    assert "x.yaml:2: sweep.dtype" in refusal("sweep:\n  dtype: x\n  collective: y\n  size: z")


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8:64:2", (8, 16, 32, 64)),
        ("1KiB:5KiB:2", (1024, 2048, 4096)),
        ("10:99:1.5", (10, 15, 22, 34, 51, 76)),
        ("8:32", (8, 16, 32)),
        ("1 MiB", (2**20,)),
    ],
)
def test_sizes_may_be_written_as_nccl_tests_users_do(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text", ["8:", "8:64:2:2", "a:b", "64:8", "8:64:0", "8:64:x", "8:64:1e9", ":::"]
)
def test_odd_ranges_of_sizes_are_value_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|swap"):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("found", "points"),
    [
        (Range(8, 100, "factor", 3), (8, 24, 72)),
        (Range(0, 10, "step", 4), (0, 4, 8)),
        (Range(1, 1000, "per_decade", 1), (1, 10, 100, 1000)),
        (Range(1, 10, "per_decade", 10), (1, 2, 3, 4, 5, 6, 8, 10)),
        (Range(5, 5, "factor", 2), (5,)),
    ],
)
def test_ranges_by_factor_step_and_decade(found: Range, points: tuple[int, ...]) -> None:
    assert found.points() == points
    assert found.count() == len(points)


def test_the_schema_knows_the_keys_that_a_suite_has() -> None:
    schema = suite_schema()
    assert set(schema["properties"]) == set(
        read_suite("sweep: {collective: barrier}").as_document()
    )
    assert schema["required"] == ["sweep"]
    assert schema["additionalProperties"] is False
    sweep = schema["$defs"]["Sweep"]
    assert "broadcast" in sweep["properties"]["collective"]["anyOf"][0]["enum"]
    assert set(sweep["properties"]) == set(Sweep.model_fields)
    layouts = sweep["properties"]["layout"]["anyOf"][1]
    assert set(layouts["properties"]) == {"order", "tp", "cp", "ep", "dp", "pp", "etp"}
    json.dumps(schema)
