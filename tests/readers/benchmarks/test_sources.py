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
