from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest
import yaml

from benchmarks.publish import collect, family_of, main, source_text, table_of
from ccbench.errors import UsageError
from ccbench.results import SCHEMA
from ccbench.results.loading import (
    FURTHER_COLUMNS,
    SERVERS_FILE,
    contents,
    load_published,
    published_folder,
    published_names,
    server_names,
)
from tests.readers.benchmarks.logs import LOGS, needs_logs
from tests.readers.benchmarks.nccl_tests_outputs import ONE_WRONG


def corpus(folder: Path, **changes: object) -> Path:
    """A manifest of one healthy log of an eight-GPU H100 machine."""
    (folder / "log.txt").write_text(ONE_WRONG)
    entry = {
        "file": "log.txt",
        "collective": "all_reduce",
        "gpu": "H100 SXM (one)",
        "gpus_per_node": 8,
        "nodes": 1,
        "interconnect": "nvswitch3",
        "network": "none",
        "nccl_version": "2.21.5",
        "forced": "NCCL_ALGO=Ring",
        "source": "owner/repository:docs/log.txt",
        "healthy": True,
    }
    (folder / "manifest.yaml").write_text(yaml.safe_dump([{**entry, **changes}]))
    return folder / "manifest.yaml"


@pytest.mark.parametrize("healthy", [False, "unknown", None])
def test_logs_that_are_not_known_to_be_healthy_are_left_out_aloud(
    tmp_path: Path, healthy: object
) -> None:
    rows, left_out = collect(corpus(tmp_path, healthy=healthy))
    assert rows == {}
    assert left_out == ["log.txt: not known to be healthy"]


def test_the_command_writes_files_that_load_as_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(corpus(tmp_path)), str(tmp_path / "out")]) == 0
    assert "hgx-h100.parquet: 3 rows" in capsys.readouterr().out
    run = load_published("hgx-h100", tmp_path / "out")
    assert run.manifest.machine == "hgx-h100"
    assert [point.size_bytes for point in run.points] == [1 << 20, 1 << 20, 2 << 20]
    assert set(FURTHER_COLUMNS) <= set(run.table.column_names)
    listed = contents("hgx-h100", tmp_path / "out")
    assert (listed["rows"], listed["sources"], listed["teams"]) == (3, 1, [(8, 1)])


@pytest.mark.parametrize("arguments", [[], ["only-one"], ["absent.yaml", "out"]])
def test_the_command_says_what_is_wrong(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err


def test_an_unknown_name_is_refused_with_near_ones() -> None:
    with pytest.raises(
        UsageError, match=r"published: 'hgx-h10' is not a machine .*did you mean 'hgx-h100'"
    ):
        load_published("hgx-h10")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name:docs/a.md", "owner/name:docs/a.md"),
        ("NVIDIA/nccl-tests#194", "NVIDIA/nccl-tests#194"),
        (
            "repository not named by the index (file id 12)",
            "public repository, name not recorded",
        ),
        ("", "public repository, name not recorded"),
        (
            "Some notes (repository not named by the index; file id 12)",
            "Some notes; public repository, name not recorded",
        ),
    ],
)
def test_a_source_says_only_what_means_something_elsewhere(text: str, expected: str) -> None:
    assert source_text(text) == expected


@pytest.mark.parametrize(
    ("gpu", "interconnect", "family"),
    [
        ("H100 SXM (p5.48xlarge)", "nvswitch3", "hgx-h100"),
        ("H100 PCIe", "nvlink-bridge", "h100-pcie-bridge"),
        ("A100 (DGX A100)", "nvswitch2", "dgx-a100"),
        ("GB200 (NVL72)", "nvswitch4-nvl72", "gb200-nvl72"),
        ("V100 (DGX-2H, NVSwitch)", "nvswitch1", "dgx-2"),
        ("V100-SXM2-32GB (DGX-1)", "nvlink-cube-mesh", "dgx-1v"),
        ("H100 or H200 SXM", "nvswitch3", "h100-or-h200-sxm"),
        ("H100 PCIe + A100 PCIe (mixed)", "none used", "h100-pcie-a100-pcie"),
        ("T4 (g4dn, 1 per node)", "none used", "t4"),
        ("", "", "unknown"),
    ],
)
def test_words_of_a_manifest_lead_to_the_machine_family(
    gpu: str, interconnect: str, family: str
) -> None:
    assert family_of(gpu, interconnect) == family


def test_what_ships_is_whole_and_says_where_every_row_is_from() -> None:
    names = published_names()
    assert {"hgx-h100", "hgx-h200", "dgx-a100", "hgx-b200", "mi300x"} <= set(names)
    columns = {column.name for column in SCHEMA} | set(FURTHER_COLUMNS)
    for name in names:
        table = load_published(name).table
        assert set(table.column_names) == columns
        rows = table.to_pylist()
        assert len({row["case_id"] for row in rows}) == len(rows)
        for row in rows:
            assert row["source"]
            assert not re.search("file id|by the index", row["source"])
            assert (row["machine"], row["status"]) == (name, "ok")
            assert row["median_seconds"] > 0
            assert row["samples_seconds"] is None


def test_all_reduces_of_servers_ship_by_name_alone_and_an_ill_machine_is_marked() -> None:
    names = server_names()
    assert {"servers", "servers/hgx-h100", "servers/l40s-ill"} <= set(names)
    assert not {*names} & {*published_names()}
    assert (published_folder() / SERVERS_FILE).stat().st_size < 400_000
    rows = load_published("servers").table.to_pylist()
    assert len({row["case_id"] for row in rows}) == len(rows) == 5083
    for row in rows:
        assert row["source"].startswith("ai-dynamo/aiconfigurator@095f58a51:")
        assert row["mode"] in ("graph", "streaming")
        assert ("ill_box" in row["flags"]) == (row["machine"] == "l40s-ill")
    machines = [load_published(name) for name in names if "/" in name]
    assert sum(len(run.points) for run in machines) == len(rows)
    assert [f"servers/{run.manifest.machine}" for run in machines] == list(names[1:])


@pytest.mark.exhaustive
@needs_logs
def test_every_row_that_the_corpus_gives_ships_as_it_is() -> None:
    """More ships than this corpus: other logs were collected by the same form of manifest."""
    assert LOGS is not None
    rows, _ = collect(LOGS / "manifest.yaml")
    for name, members in rows.items():
        shipped = pq.read_table(published_folder() / f"{name}.parquet")
        shipped_rows = {repr(row) for row in shipped.to_pylist()}
        # In which order columns stand says nothing.
        corpus_rows = table_of(members).select(shipped.column_names).to_pylist()
        missing = [row["case_id"] for row in corpus_rows if repr(row) not in shipped_rows]
        assert not missing, f"{name}: run python -m benchmarks.publish again"
