from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from ccbench.errors import CcbenchError, UsageError
from ccbench.readers import benchmarks as importers
from ccbench.readers.benchmarks import log_of_text, read_log, readers
from tests.readers.benchmarks import outputs
from tests.readers.benchmarks.logs import LOGS, entries, name_of, needs_logs

TOOL_OF_FORM = {
    "OSU": "osu",
    "IMB": "imb",
    "nccom-test": "nccom-test",
    "hccl_test": "hccl_test",
    "UCC": "ucc_perftest",
    "PARAM": "param",
    "Gloo": "gloo-benchmark",
    "torch": "torch-all-reduce-bench",
    "mscclpp": "mscclpp",
}


@pytest.mark.parametrize("form", outputs.EVERY_OUTPUT)
def test_the_reader_is_chosen_by_what_a_file_says(form: str, tmp_path: Path) -> None:
    path = tmp_path / "all_reduce_perf.txt"  # a name that would mislead
    path.write_text(outputs.EVERY_OUTPUT[form])
    log = read_log(path)
    expected = next(tool for begin, tool in TOOL_OF_FORM.items() if form.startswith(begin))
    assert (log.tool, log.source) == (expected, str(path))
    assert sum(len(table.rows) for table in log.tables) > 0


@pytest.mark.parametrize("form", outputs.EVERY_OUTPUT)
def test_only_the_readers_of_common_tables_take_another_tools_form(form: str) -> None:
    text = outputs.EVERY_OUTPUT[form]
    takers = [name for name, reader in [*readers().items()][:-2] if reader.recognises(text)]
    assert tuple(readers())[-2:] == ("nccl_reports", "nccl_tests")
    assert len(takers) == 1, takers


@needs_logs
@pytest.mark.parametrize("entry", entries(), ids=name_of)
def test_every_published_log_has_a_reader(entry: dict[str, str]) -> None:
    assert LOGS is not None
    log = read_log(LOGS / entry["file"])
    assert log.tool in {*TOOL_OF_FORM.values(), "nccl-tests", "rccl-tests"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encodings_and_line_ends_make_no_difference(
    encoding: str, newline: str, tmp_path: Path
) -> None:
    path = tmp_path / "osu.txt"
    path.write_bytes(outputs.OSU_ALL_REDUCE.replace("\n", newline).encode(encoding))
    assert read_log(path).tables == log_of_text(outputs.OSU_ALL_REDUCE, "here").tables


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            b"hello\nworld",
            r"no benchmark output that ccbench knows: 'hello\nworld'; known are nccl-tests",
        ),
    ],
)
def test_what_is_no_benchmark_output_is_told_with_what_is_known(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_log(path)
    message = str(error.value)
    assert message.startswith(f"{path}: {reason}")
    assert "\n" not in message


def test_a_missing_file_and_a_folder_are_told_in_one_line(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=reason) as error:
            read_log(path)
        assert str(error.value).startswith(str(path))
    with pytest.raises(UsageError, match="cannot be read"):
        read_log("a\0b")


def test_an_error_of_a_reader_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(text: str) -> NoReturn:
        raise UsageError("line 3: nothing to read")

    osu = replace(readers()["osu"], read=refusing)
    monkeypatch.setattr(importers, "readers", lambda: {"osu": osu})
    with pytest.raises(CcbenchError, match=r"^here: line 3: nothing to read$"):
        log_of_text(outputs.OSU_ALL_REDUCE, "here")


@pytest.mark.parametrize(
    ("form", "rows"), [("PARAM, old", 1), ("hccl_test", 3), ("nccom-test", 2)]
)
def test_a_comment_above_a_table_names_the_collective_without_a_command_line(
    form: str, rows: int
) -> None:
    without_command = outputs.EVERY_OUTPUT[form].partition("\n")[2]
    (table,) = log_of_text(f"# broadcast_perf\n{without_command}", "here").tables
    assert (table.collective, len(table.rows)) == ("broadcast", rows)
