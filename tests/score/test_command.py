from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.score.__main__ import score as command
from ccbench.cli import main
from tests.cli.conftest import Command, Ended
from tests.score.corpora import HOPPER, all_reduce_text, write_corpus


@pytest.fixture
def score(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """``score("manifest.yaml", "--json")`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as leaving:
            main(list(arguments), command)
        out, err = capfd.readouterr()
        code = leaving.value.code
        assert isinstance(code, int)
        return Ended(code, out, err)

    return run


def good() -> str:
    """An H100 board much as it is: 480 GB/s busbw at the end, 30 us at the start."""
    return all_reduce_text(lambda size: 30 + size * 1.75 / 480e3)


def test_json_has_the_total_every_log_and_the_reasons(score: Command, tmp_path: Path) -> None:
    absent = {**HOPPER, "file": "absent.txt"}
    sick = {**HOPPER, "healthy": False}
    manifest = write_corpus(tmp_path, [(HOPPER, good()), (absent, None), (sick, good())])
    ended = score(str(manifest), "--json")
    assert ended.code == 0
    total, logs = ended.json["total"], ended.json["logs"]
    assert total["points"] == 22
    assert 0 <= total["median_error"] < 0.5
    assert total["bands"].keys() == {"up_to_32KiB", "32KiB_to_32MiB", "above_32MiB"}
    assert [log["counted"] for log in logs] == [True, False, False]
    assert "cannot be read" in logs[1]["reason"]
    assert total["comparison"].keys() == {"nccl_constants"}


@pytest.mark.exhaustive
def test_fits_are_tested_on_what_they_did_not_see(score: Command, tmp_path: Path) -> None:
    other = {**HOPPER, "nodes": 2, "network": "ib-ndr-400x8"}
    slower = all_reduce_text(lambda size: 60 + size * 1.875 / 470e3, ranks=16)
    manifest = write_corpus(tmp_path, [(HOPPER, good()), (other, slower)])
    ended = score(str(manifest), "--holdout", "--json")
    assert ended.code == 0
    systems = ended.json["learned_without_the_system"]
    assert systems["total"]["points"] == 44
    assert len(systems["systems"]) == 2
    assert "learned without 1 of 2" in ended.err


@pytest.mark.exhaustive
def test_nothing_that_can_be_modelled_is_an_error_with_the_reasons(
    score: Command, tmp_path: Path
) -> None:
    manifest = write_corpus(tmp_path, [({**HOPPER, "file": "absent.txt"}, None)])
    for more in ((), ("--json",)):
        ended = score(str(manifest), *more)
        assert ended.code == 2
        assert "none of the 1 logs can be modelled" in ended.err
        assert "cannot be read" in ended.out


@pytest.mark.exhaustive
def test_what_is_to_know_is_said_in_text_and_json(score: Command, tmp_path: Path) -> None:
    manifest = write_corpus(
        tmp_path, [({**HOPPER, "collective": "all_gather"}, "# all_reduce_perf\n" + good())]
    )
    line = "log0.txt: the manifest's collective is all_gather, and the log's, which counts, all_reduce"
    ended = score(str(manifest))
    assert ended.code == 0
    assert f"To know:\n  {line}" in ended.out
    assert "total of 1 logs" in ended.out
    found = score(str(manifest), "--json").json
    assert found["notices"] == [line]
