from __future__ import annotations

import faulthandler
import random
from contextlib import suppress
from pathlib import Path

import pytest

from ccbench.errors import MachineError, UsageError
from ccbench.readers.benchmarks import log_of_text
from ccbench.readers.lines import (
    decoded_text,
    figure,
    file_text,
    is_description,
    plain_lines,
    ranges,
    repeated_tags,
    unquoted,
    whole,
    without_tags,
)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("GPU0 µ".encode(), "GPU0 µ"),
        (b"\xef\xbb\xbfGPU0", "GPU0"),
        ("\ufeffGPU0 µ".encode("utf-16-le"), "GPU0 µ"),
        ("\ufeffGPU0 µ".encode("utf-16-be"), "GPU0 µ"),
        (b"GPU0 \xff", "GPU0 \\xff"),
    ],
)
def test_a_file_is_text_without_its_mark_and_stray_bytes_stay_visible(
    tmp_path: Path, content: bytes, text: str
) -> None:
    file = tmp_path / "printed.txt"
    file.write_bytes(content)
    assert file_text(file, "a log", "with the rows") == text


def test_a_file_above_the_limit_or_that_cannot_be_read_is_refused_with_the_cure(
    tmp_path: Path,
) -> None:
    file = tmp_path / "large.txt"
    file.write_bytes(b"x" * (1 << 20))
    assert len(file_text(file, "a log", "with the rows", most_bytes=1 << 20)) == 1 << 20
    with pytest.raises(UsageError, match="larger than 0 MiB; cut out the part with the rows"):
        file_text(file, "a log", "with the rows", most_bytes=(1 << 20) - 1)
    with pytest.raises(UsageError, match=r"cannot be read \(No such file.*\); name a log"):
        file_text(tmp_path / "absent", "a log", "with the rows")
    with pytest.raises(UsageError, match=r"cannot be read \(.*null.*\); name a log"):
        file_text(Path("a\0b"), "a log", "with the rows")
    with pytest.raises(MachineError, match="stdin: larger than 1 MiB; cut out the part drawn"):
        decoded_text(b"x" * ((1 << 20) + 1), "stdin", "drawn", MachineError, 1 << 20)


def test_colours_and_foreign_line_ends_disappear() -> None:
    assert plain_lines("\x1b[4mGPU0\x1b[0m\r\n[4mGPU1[0m\rend") == ["GPU0", "GPU1", "end"]


def test_text_in_brackets_that_is_no_colour_stays() -> None:
    assert plain_lines("[0] rank [12m away] [4x]") == ["[0] rank  away] [4x]"]
    assert plain_lines("ring[3] 10 m") == ["ring[3] 10 m"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", ((0, 0),)),
        ("0-13,28-41", ((0, 13), (28, 41))),
        ("1-1, 3-3", ((1, 1), (3, 3))),
        ("-31,64-95", None),
        ("5-2", None),
        ("N/A", None),
        ("", None),
        ("0-9999999", ((0, 9999999),)),
        ("0-99999999", None),
        ("²", None),
    ],
)
def test_lists_of_cpus(text: str, expected: tuple[tuple[int, int], ...] | None) -> None:
    assert ranges(text) == expected


@pytest.mark.parametrize(
    "tag",
    [
        "(pid=123) ",
        "[1,0]<stdout>:",
        "[node-3,1,0]<stdout>: ",
        "[node-3:0]: ",
        "[default3]:",
        "[pod/a/b] ",
        "2026-01-02T03:04:05.678Z ",
        "  12: ",
        "> ",
    ],
)
def test_tags_of_launchers_disappear_and_what_they_tagged_keeps_its_indentation(
    tag: str,
) -> None:
    assert without_tags(f"{tag}  + PCI[24.0]") in ("  + PCI[24.0]", " + PCI[24.0]")
    assert without_tags("[0] NCCL INFO Trees [0] 1") == "[0] NCCL INFO Trees [0] 1"


def test_a_figure_knows_half_a_unit_of_its_last_digit() -> None:
    expected = {"36.50": (36.5, 0.005), "1.2e+05": (1.2e5, 5000.0), "7": (7.0, 0.5)}
    assert {
        text: (f.value, f.half_unit) for text in expected if (f := figure(text))
    } == expected
    assert [figure(text) for text in ("-1", "N/A", "1e999", "")] == [None] * 4
    assert [whole(text) for text in ("12", "-1", "1.0", "9" * 19)] == [12, -1, None, None]


def test_tags_are_beginnings_that_repeat_and_content_is_none() -> None:
    rows = [f"  {1024 << i}  {256 << i}  float  sum  -1  12.5{i}" for i in range(9)]
    comments = [f"#  Rank  {i} Pid {40 + i} on box{i}" for i in range(9)]
    messages = [f"box0:7:8 [{i}] NCCL INFO Channel 00/0 : {i}" for i in range(9)]
    assert repeated_tags([*comments, *messages]) == ()
    for tag in ("Apr  2 09:11:0{} box run[81]: ", "[{}] ", "rank{}: ", "w-{}  | "):
        lines = [tag.format(i) + line for i, line in enumerate((*comments, *rows, *messages))]
        bare = [candidate.removed(lines) for candidate in repeated_tags(lines)]
        assert [*comments, *rows, *messages] in bare


def table_of_numbers(chosen: random.Random, rows: int) -> str:
    """Rows of a counter's table that share their beginnings and differ at the end."""
    head = chosen.choice(["", "  ", "# ", "[{}] ", "mlx5_{}: ", "eth{} ", "{}.{}.", "| ", "- "])
    sign = chosen.choice([" ", "\t", ",", ".", "|", "/", ":", " | ", "-", "_"])
    ends = chosen.choices(["", " |", "]", " x", ":", " ok|", "\r", "\r7 8", ". ."], k=2)
    columns, largest = chosen.randrange(2, 49), 10 ** chosen.randrange(1, 13)
    return "".join(
        head.format(row, row)
        + sign.join(str(chosen.randrange(largest)) for _ in range(columns))
        + ends[row % 3 == 0]
        + "\n"
        for row in range(rows)
    )


@pytest.mark.parametrize("seed", range(40))
def test_tables_of_numbers_are_read_in_time_whatever_their_shape(seed: int) -> None:
    text = table_of_numbers(random.Random(seed), rows=(12, 3000)[seed % 4 == 0])
    # No measure of speed: ambiguous patterns take longer than anybody waits.
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        tags = repeated_tags(text.split("\n"))
        for tag in tags:
            tag.removed(text.split("\n"))
        with suppress(UsageError):
            log_of_text(text, "table")
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert len(tags) <= 4 or len(tags) * len(text) <= 8_000_000


@pytest.mark.parametrize("line", ['{"log": "  5 6\\n", "at": "x"}', '"x","  5 6"', '"  5 6",'])
def test_records_give_their_longest_text_and_other_lines_stay(line: str) -> None:
    assert unquoted([line, "plain", line]) == ["  5 6", "plain", "  5 6"]
    assert unquoted([line, "plain", "more", "still"]) == [line, "plain", "more", "still"]


LISTED = """# Logs of jobs
schema: 1
entries:
- file: a.txt
  why: hung, connection timed out; lines of host0:1:1 [0] NCCL INFO are left out
- file: b.txt
  why: none
"""


def test_a_yaml_list_of_mappings_is_a_description_and_what_a_tool_prints_is_none() -> None:
    assert is_description(LISTED)
    assert not is_description(LISTED + "host0:1:1 [0] NCCL INFO Bootstrap : Using eth0\n")
    assert not is_description(LISTED + "- file: c.txt\n  log: |\n    NCCL WARN timed out\n")
    assert not is_description("host0: ready\nhost1: timed out\n")
