from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccbench.cases.measurement import Sampling
from ccbench.errors import SuiteError
from ccbench.suite.expansion import expand
from ccbench.suite.model import Sweep, load_suite, read_suite
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


@pytest.mark.parametrize(
    "text", ["8:", "8:64:2:2", "a:b", "64:8", "8:64:0", "8:64:x", "8:64:1e9", ":::"]
)
def test_odd_ranges_of_sizes_are_value_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|swap"):
        parse_sizes(text)
