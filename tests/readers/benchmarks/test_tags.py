"""What loggers, launchers and people write before and around the lines of a log hides no row."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.readers.benchmarks import log_of_text
from ccbench.readers.benchmarks.log import ImportedLog
from tests.readers.benchmarks import outputs
from tests.readers.benchmarks.nccl_tests_outputs import output, row

PLAIN = output().replace("#\n", "NCCL version 2.21.5+cuda12.4\n#\n", 1)
MESSAGE = "box0:21:21 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"

TAGS = {
    "Python logging": ["2026-04-02 09:11:{n:02},{n:03} INFO bench: "],
    "Python logging, levels": ["[INFO] 2026-04-02 09:11:{n:02} - runner - "],
    "syslog": ["Apr  2 09:11:{n:02} box3 all_reduce[815]: "],
    "syslog, two hosts by name": [
        "Apr 12 09:11:04 ash run[81]: ",
        "Apr 12 09:11:04 oak run[9]: ",
    ],
    "journalctl -o short-iso": ["2026-04-02T09:11:{n:02}+0200 box3 run[815]: "],
    "docker compose": ["worker-1  | ", "worker-10 | "],
    "kubectl": ["[pod/run-x7k2p/main] 2026-04-02T09:11:04.{n:09}Z "],
    "GitHub Actions": ["2026-04-02T09:11:04.{n:07}Z "],
    "job and step": ["train\tRun nccl-tests\t2026-04-02T09:11:04.{n:07}Z "],
    "glog": ["I0402 09:11:04.{n:06} 4711 run.cc:88] "],
    "epoch and host": ["1775120000.{n:03} box{n} stdout: "],
    "angle brackets": ["<box3:{n}> "],
    "Markdown quotation": ["> "],
    "Markdown list": ["- "],
    "rank": ["rank{n}: "],
}


def tagged(text: str, tags: list[str]) -> str:
    lines = zip(text.splitlines(keepends=True), cycle(tags), strict=False)
    return "".join(tag.format(n=number) + line for number, (line, tag) in enumerate(lines))


def content_of(log: ImportedLog) -> Any:
    """Everything of a log but remarks."""
    return (log.tool, log.library, log.tables, log.devices, log.versions, log.outcome)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("indent", ["", "    "])
@pytest.mark.parametrize("tags", TAGS.values(), ids=list(TAGS))
def test_a_repeated_beginning_hides_nothing(tags: list[str], indent: str) -> None:
    indented = "".join(indent + line for line in PLAIN.splitlines(keepends=True))
    expected = log_of_text(PLAIN, "log")
    assert expected.tables[0].rows
    log = log_of_text(tagged(indented, tags), "log")
    assert content_of(log) == content_of(expected)


@pytest.mark.parametrize("form", ["osu", "imb", "gloo", "hccl", "nccom"])
def test_tags_hide_no_row_of_other_tools(form: str) -> None:
    name = next(name for name in outputs.EVERY_OUTPUT if form in name.lower())
    text = outputs.EVERY_OUTPUT[name]
    expected = log_of_text(text, "log")
    for tags in (TAGS["Python logging"], TAGS["syslog, two hosts by name"]):
        assert log_of_text(tagged(text, tags), "log").tables == expected.tables


def test_one_remark_names_the_tag() -> None:
    log = log_of_text(tagged(PLAIN, TAGS["syslog"]), "log")
    (remark,) = (warning.text for warning in log.warnings if warning.kind == "assumed")
    assert remark.startswith("lines begin with 'Apr  2 09:11:00 box3 all_reduce[815]: ',")
    assert not [w for w in log_of_text(PLAIN, "log").warnings if w.kind == "assumed"]


def test_messages_of_the_library_keep_their_speaker_and_lose_the_tag() -> None:
    log = log_of_text(tagged(MESSAGE * 20 + PLAIN, TAGS["Python logging"]), "log")
    assert log.environment == {"NCCL_ALGO": "Ring"}
    assert log.tables[0].rows
    assert log_of_text(MESSAGE * 20 + PLAIN, "log").environment == log.environment


def test_only_a_part_of_a_text_is_tagged() -> None:
    second = output([row(4 << 20, time=300.0)])
    log = log_of_text(PLAIN + tagged(second, TAGS["Python logging"]), "log")
    expected = log_of_text(PLAIN + second, "log")
    assert content_of(log) == content_of(expected)
    assert len(log.tables) == 2


QUOTED: dict[str, Callable[[str], str]] = {
    "docker json-file": lambda line: json.dumps(
        {"log": line, "stream": "stdout", "time": "2026-04-02T09:11:04.123456789Z"}
    ),
    "JSON logger": lambda line: json.dumps(
        {"level": "info", "ts": 1775120000.5, "message": line.rstrip("\n")}
    ),
    "JSON array": lambda line: json.dumps(line.rstrip("\n")) + ",",
    "CSV column": lambda line: f'2026-04-02,"{line.rstrip()}",box3',
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("quote", QUOTED.values(), ids=list(QUOTED))
def test_records_of_a_line_each_are_read_by_their_text(quote: Callable[[str], str]) -> None:
    text = "".join(quote(line) + "\n" for line in PLAIN.splitlines(keepends=True))
    assert content_of(log_of_text(text, "log")) == content_of(log_of_text(PLAIN, "log"))
    inside = tagged(PLAIN, TAGS["Python logging"]).splitlines(keepends=True)
    both = log_of_text("".join(quote(line) + "\n" for line in inside), "log")
    assert content_of(both) == content_of(log_of_text(PLAIN, "log"))


WORDS = (
    "INFO",
    "stdout",
    "bench",
    "mpi-launcher",
    "box{n}",
    "ash",
    "r{n}",
    "{n}",
    "main.py:88",
)
STAMPS = ("2026-04-02 09:11:04.{n:03}", "Apr 12 09:11:{n:02}", "09:11:{n:02},{n:03}", "")
FRAMES = ("{}: ", "[{}] ", "<{}> ", "({}): ", "{} | ", "{} - ")


@st.composite
def any_tag(draw: st.DrawFn) -> str:
    """A stamp, or none, and one to three words, the last of which a sign ends."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
    frame = draw(st.sampled_from(FRAMES))
    stamp = draw(st.sampled_from(STAMPS))
    return " ".join(filter(None, (stamp, *words[:-1], frame.format(words[-1]))))


@settings(max_examples=25, deadline=None)
@given(
    form=st.sampled_from(["nccl-tests", "OSU all-reduce", "HCCL"]),
    tag=any_tag(),
    indent=st.sampled_from(["", "  ", "\t"]),
    end=st.sampled_from(["\n", "\r\n", "\x1b[0m\n"]),
)
def test_any_tag_indentation_and_end_of_line_change_nothing_but_remarks(
    form: str, tag: str, indent: str, end: str
) -> None:
    text = {**outputs.EVERY_OUTPUT, "nccl-tests": PLAIN, "HCCL": outputs.HCCL}[form]
    changed = tagged("".join(indent + line for line in text.splitlines(keepends=True)), [tag])
    changed = changed.replace("\n", end)
    assert content_of(log_of_text(changed, "log")) == content_of(log_of_text(text, "log"))


@pytest.mark.exhaustive
@settings(max_examples=15, deadline=None)
@given(tag=any_tag(), data=st.data())
def test_a_tagged_log_that_is_cut_has_the_rows_before_the_cut(
    tag: str, data: st.DataObject
) -> None:
    text = tagged(PLAIN, [tag])
    end = data.draw(st.integers(text.index("float") - 30, len(text)))
    whole = log_of_text(text, "log").tables[0].rows
    last = text[:end].count("\n")
    try:
        tables = log_of_text(text[:end], "log").tables
    except UsageError:
        tables = ()
    rows = [row for table in tables for row in table.rows if row.line <= last]
    assert rows == [row for row in whole if row.line <= last]
