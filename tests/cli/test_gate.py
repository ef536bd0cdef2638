"""``--gate``: verdicts as exit codes, by words and by files of intervals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.cli.conftest import Command
from tests.readers.benchmarks.nccl_tests_outputs import ALL_RIGHT, ONE_WRONG, output, row

MIB = 1 << 20

SLOW = output(
    [row(1 << power, 1.875, time=2**power / 1e4) for power in range(26, 33)], range(16)
)
FAST = output([row(size, time=size / 3.9e5) for size in (256 * MIB, 512 * MIB, 1024 * MIB)])
UNKNOWN = ALL_RIGHT.replace("NVIDIA H100 80GB HBM3", "device of tomorrow")
STATED = ("--network", "ib-ndr-400x8")


def gated(ccbench: Command, text: str, *options: str) -> tuple[int, str]:
    """Exit code, and the last line of stdout, of an import."""
    Path("log.txt").write_text(text)
    ended = ccbench("check", "log.txt", *options, "-o", "run", "--force")
    return ended.code, ended.out.splitlines()[-1]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("text", "code", "outcome", "reason"),
    [
        (ALL_RIGHT, 0, "PASS", "NORMAL: nccl all_reduce, 8 ranks: middle sizes "),
        (SLOW, 1, "FAIL", "SLOW: nccl all_reduce, 16 ranks on 2 nodes: large messages "),
        (ONE_WRONG, 1, "FAIL", "WRONG: nccl all_reduce, 8 ranks: 1 of 4 cases gave wrong"),
        (UNKNOWN, 3, "CANNOT SAY", "nccl all_reduce, 8 ranks: "),
    ],
    ids=["healthy", "slow", "wrong", "unknown"],
)
def test_the_gravest_verdict_is_the_exit_code_and_the_last_line_says_why(
    ccbench: Command, text: str, code: int, outcome: str, reason: str
) -> None:
    options = STATED * (text is SLOW)
    ended, line = gated(ccbench, text, *options, "--gate")
    assert (ended, line.startswith(f"gate: {outcome} (exit code {code}): {reason}")) == (
        code,
        True,
    )
    assert "; threshold not-slow: SLOW and WRONG fail, CANNOT SAY is undecided" in line
    if outcome in ("PASS", "FAIL") and text is not ONE_WRONG:
        assert "expected " in line
    for form in ((), ("--format", "md"), ("--format", "junit", "-o", "x.xml")):
        reported = ccbench("report", "run", "--gate", "not-slow", *form)
        assert (reported.code, reported.out.splitlines()[-1]) == (code, line)
    document = ccbench("report", "run", "--gate", "--json").json["gate"]
    assert (document["exit_code"], document["sentence"]) == (code, line)
    imported = ccbench("check", "log.txt", *options, "--json", "--gate")
    assert (imported.code, imported.json["gate"]["sentence"]) == (code, line)
    assert ccbench("report", "run").code == code, (
        "a word has one exit code, with a gate or without"
    )


@pytest.fixture
def gates(ccbench: Command) -> Path:
    """A gate file of 1 and 2 MiB on the machine of ALL_RIGHT."""
    assert ccbench(*PREDICT, "--gate-file", "gates.yaml").code == 0
    return Path("gates.yaml")


PREDICT = (
    *("predict", "--machine", "hgx-h100", "--collective", "all_reduce"),
    *("--sizes", "1MiB,2MiB"),
)


def test_a_gate_file_has_the_predicted_intervals_and_bandwidths_that_follow(
    ccbench: Command, gates: Path
) -> None:
    written = yaml.safe_load(gates.read_text())
    header = {key: written[key] for key in ("machine", "nodes", "ranks", "network", "library")}
    expected = {"machine": "hgx-h100", "nodes": 1, "ranks": 8, "network": None}
    assert header == {**expected, "library": "NCCL"}
    for point, priced in zip(written["gates"], ccbench(*PREDICT, "--json").json, strict=True):
        for edge, other in (("low_80", "high_80"), ("high_95", "low_95")):
            seconds = point[f"{edge}_seconds"]
            assert seconds == pytest.approx(priced[f"predicted_{edge}_seconds"], rel=1e-5)
            rate = point["size_bytes"] / seconds / 1e9 * 1.75
            assert point[f"{other}_busbw_GB_s"] == pytest.approx(rate, rel=1e-4)
    # Other collectives join those that are there, and the same one is replaced.
    # 8 B are below one element of every rank's block: rounded down to 0 B, which is no point.
    again = (*PREDICT[:4], "all_gather", "--sizes", "8,1MiB,2MiB")
    for words in (again, PREDICT):
        assert ccbench(*words, "--gate-file", str(gates)).code == 0
    names = Counter(point["collective"] for point in yaml.safe_load(gates.read_text())["gates"])
    assert names == {"all_gather": 2, "all_reduce": 2}
    elsewhere = ("hgx-h200" if word == "hgx-h100" else word for word in PREDICT)
    mistake = ccbench(*elsewhere, "--gate-file", str(gates)).refused.err
    assert "holds machine hgx-h100, and this is hgx-h200" in mistake


def test_points_beyond_a_files_intervals_fail_and_missing_ones_are_undecided(
    ccbench: Command, gates: Path
) -> None:
    code, line = gated(ccbench, ALL_RIGHT, "--gate", "gates.yaml")
    assert (code, line.startswith("gate: PASS (exit code 0): all_reduce, 8 ranks, 1 MiB")) == (
        0,
        True,
    )
    assert "threshold gates.yaml: 95 % of the times of NCCL on 1 node hgx-h100, pre" in line
    slower = output([row(MIB), row(2 * MIB, time=5000.0)])
    code, line = gated(ccbench, slower, "--gate", "gates.yaml")
    assert (code, "all_reduce, 8 ranks, 2 MiB: 5 ms is slower than " in line) == (1, True)
    faster = output([row(MIB), row(2 * MIB, time=12.0)])
    assert gated(ccbench, faster, "--gate", "gates.yaml")[0] == 3
    code, line = gated(ccbench, output([row(MIB)]), "--gate", "gates.yaml")
    assert (code, "2 MiB, float32: has no time that can be judged" in line) == (3, True)
    assert gated(ccbench, ONE_WRONG, "--gate", "gates.yaml")[0] == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("nodes: 1", "nodes: one", ":3: nodes: 'one' is not a whole number"),
        ("dtype: float32", "dtype: float31", ":7: dtype: 'float31' is none of "),
        ("low_80_seconds:", "lowest_80_seconds:", "unknown key; "),
        (
            "  high_95_seconds: ",
            "  high_95_seconds: 1e-9 #",
            "1e-09 is below high_80_seconds, ",
        ),
        ("low_95_busbw_GB_s: ", "low_95_busbw_GB_s: 1.5 #", "does not follow from the times; "),
        ("format: ccbench-gates 1", "form: 1", "is no gate file: 'format: ccbench-gates 1' is"),
        ("size_bytes: 2097152", "size_bytes: 1048576", "this collective and size stand twice"),
        ("gates:", "gates: []\nmore:", "unknown key"),
    ],
)
def test_a_mistake_in_a_gate_file_has_its_line_and_what_is_expected(
    ccbench: Command, gates: Path, old: str, new: str, words: str
) -> None:
    text = gates.read_text()
    assert old in text
    gates.write_text(text.replace(old, new, 1))
    mistake = ccbench("check", "log.txt", "--gate", "gates.yaml").refused.err
    assert mistake.startswith("ccbench: error: gates.yaml:")
    assert words in mistake


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "log.txt", "--gate", "slow"),
        ("run", "all_reduce", "--gate", "absent.yaml"),
        (*PREDICT, "--algorithm", "ring", "--gate-file", "gates.yaml"),
        (*PREDICT, "--model", "schedule", "--gate-file", "gates.yaml"),
    ],
)
def test_what_no_gate_can_be_made_of_is_refused_before_anything_runs(
    ccbench: Command, arguments: tuple[str, ...]
) -> None:
    assert "gate" in ccbench(*arguments).refused.err
    assert not list(Path().iterdir())


def test_junit_has_a_case_for_every_collective_and_regime(ccbench: Command) -> None:
    ends = {}
    for text in (ALL_RIGHT, SLOW, ONE_WRONG, UNKNOWN, FAST):
        Path("log.txt").write_text(text)
        ccbench("check", "log.txt", *STATED * (text is SLOW), "-o", "run", "--force")
        xml = ccbench("report", "run", "--format", "junit").out
        suite = ElementTree.fromstring(xml)
        cases = list(suite.iter("testcase"))
        children = Counter(child.tag for case in cases for child in case)
        assert set(children) <= {"failure", "error", "skipped", "system-out"}
        counts = [int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")]
        kinds = [children[tag] for tag in ("failure", "error", "skipped")]
        assert counts == [len(cases), *kinds]
        ends[text] = [
            (
                case.attrib["name"],
                *(child.tag for child in case),
                *(child.get("type") for child in case),
            )
            for case in cases
        ]
    assert ends[ALL_RIGHT] == [("middle sizes",)]
    assert ends[SLOW] == [("large messages", "failure", "SLOW")]
    assert ends[ONE_WRONG] == [("verdict", "failure", "WRONG")]
    assert ends[UNKNOWN] == [("verdict", "error", "CANNOT SAY")]
    assert ends[FAST] == [("large messages", "system-out", None)]
