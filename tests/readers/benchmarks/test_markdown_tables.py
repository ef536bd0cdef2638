from __future__ import annotations

import re

import pytest

from ccbench.flags import Flag
from ccbench.readers.benchmarks import log_of_text, markdown_tables
from ccbench.units import parse_size
from tests.readers.benchmarks import outputs
from tests.readers.benchmarks.logs import text_of


@pytest.mark.parametrize(
    "name",
    [
        "awkward_b200_4to8g_all_reduce_nvls_vs_ring_md.txt",
        "awkward_h200_4to8g_all_reduce_nvls_vs_ring_md.txt",
    ],
)
def test_every_number_of_gpus_is_a_table_for_each_column_of_rates(name: str) -> None:
    text = text_of({"file": name})
    printed = re.findall(
        r"^\| +(\d) \| (\w+) +\| ([\d.]+)GBps \| +([\d.]+)GBps", text, re.MULTILINE
    )
    assert len(printed) == 5
    tables = markdown_tables.read(text).tables
    assert [
        (t.ranks, t.algorithm, t.facts.get("variant"), t.rows[0].busbw) for t in tables
    ] == [
        *(
            (int(gpus), algorithm.lower(), None, float(busbw))
            for gpus, algorithm, busbw, _ in printed
        ),
        *((int(gpus), "default", "NVLS off", float(off)) for gpus, _, _, off in printed),
    ]
    assert {row.flags for table in tables for row in table.rows} == {(Flag.SIZE_NOT_STATED,)}


def test_columns_of_nodes_are_tables_whose_kind_of_rate_is_not_made_up() -> None:
    text = text_of({"file": "awkward_b200_8g_1n_and_32g_4n_all_reduce_md.txt"})
    printed = re.findall(r"^\| +(\w+) \| +([\d.]+)GBps \| +([\d.]+)GBps", text, re.MULTILINE)
    assert len(printed) == 20
    single, four = markdown_tables.read(text).tables
    assert (single.nodes, four.nodes) == (1, 4)
    for table, column in ((single, 1), (four, 2)):
        assert [
            (r.size_bytes, r.extra["rate_gb_per_second"], r.busbw, r.flags) for r in table.rows
        ] == [
            (parse_size(cells[0]), float(cells[column]), None, (Flag.RATE_KIND_UNKNOWN,))
            for cells in printed
        ]


def test_collectives_and_settings_in_cells_are_told_apart() -> None:
    tables = markdown_tables.read(
        text_of({"file": "awkward_h200_8g_1n_collectives_16gib_md.txt"})
    ).tables
    assert [
        (t.collective, t.algorithm, t.facts.get("environment"), t.rows[0].busbw) for t in tables
    ] == [
        ("all_reduce", "nvls", {"NCCL_NVLS_ENABLE": "1"}, 480.0),
        ("all_reduce", "ring", {"NCCL_NVLS_ENABLE": "0"}, 367.2),
        ("all_gather", "ring", None, 361.4),
        ("reduce_scatter", "ring", None, 362.9),
    ]


def test_a_page_gives_its_tables_of_figures_and_no_others() -> None:
    tables = markdown_tables.read(outputs.MARKDOWN_PAGE).tables
    assert [(t.collective, t.ranks, t.algorithm, len(t.rows)) for t in tables] == [
        ("all_reduce", 4, "ring", 1),
        ("all_reduce", 8, "nvls", 1),
        ("all_reduce", 4, "default", 1),
        ("all_reduce", 8, "default", 1),
        ("all_gather", None, "ring", 1),
        ("broadcast", None, "default", 1),
    ]
    payloads = [row for table in tables[:4] for row in table.rows]
    assert [(row.size_bytes, row.flags) for row in payloads] == [
        (8 * 2**30, ())
    ] * 4  # from the text above
    row = tables[4].rows[0]  # of units in the heading
    assert (row.size_bytes, row.algbw, row.busbw) == (2**20, 50.0, 43.75)
    assert row.seconds == pytest.approx(20.97e-6)


@pytest.mark.parametrize(
    ("cell", "gigabytes_per_second"),
    [
        ("400 GB/s", 400.0),
        ("400GBps", 400.0),
        ("**400.0** GB/s", 400.0),
        ("3200 Gbps", 400.0),
        ("3,200 Gb/s", 400.0),
        ("100 GiB/s", 107.3741824),
        ("500 MB/s", 0.5),
    ],
)
def test_rates_in_any_unit_become_one(cell: str, gigabytes_per_second: float) -> None:
    text = f"| size | busbw |\n|---|---|\n| 1 MiB | {cell} |\n"
    (table,) = markdown_tables.read(text).tables
    assert table.rows[0].busbw == pytest.approx(gigabytes_per_second)


def test_in_place_columns_are_rows_of_their_own() -> None:
    text = (
        "| size (B) | busbw out-of-place (GB/s) | busbw in-place (GB/s) |\n| --- | --- | --- |\n"
        "| 1024 | 1.50 | 1.25 |\n| 2048 | 2.50 | 2.25 |\n"
    )
    tables = markdown_tables.read(text).tables
    assert [[(r.size_bytes, r.in_place, r.busbw) for r in t.rows] for t in tables] == [
        [(1024, False, 1.5), (1024, True, 1.25), (2048, False, 2.5), (2048, True, 2.25)],
    ]


@pytest.mark.parametrize(
    ("above", "busbw"), [("The busbw is", 1.2), ("busbw, not algbw", None), ("Figures:", None)]
)
def test_the_text_above_may_say_which_rates_they_are(above: str, busbw: float | None) -> None:
    text = f"# all_reduce_perf\n{above}\n\n| payload | 1 node |\n| ---: | ---: |\n| 32KiB | 1.20GBps |\n"
    (table,) = markdown_tables.read(text).tables
    assert (table.collective, table.nodes, table.rows[0].busbw) == ("all_reduce", 1, busbw)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no table | here",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "| size | busbw |\n|---|---|\n",
    ],
)
def test_text_without_figures_is_not_recognised(text: str) -> None:
    assert not markdown_tables.recognises(text)


PLACEMENTS = """\
Run of all_reduce_perf, 2 ranks (L40S), bf16

nccl-tests version 2.17.6  nccl-headers=22809  nccl-library=22809

| Size | Alg BW (GB/s) | Bus BW out-of-place | Bus BW in-place |
|---|---|---|---|
| 64 MB | 20.10 | 20.1 GB/s | 20.3 GB/s |
| **1 GB** | **21.40** | **21.4 GB/s** | **21.6 GB/s** |
| **Average** | - | **20.8 GB/s** | - |
"""


@pytest.mark.parametrize("version", [True, False])
def test_a_line_of_another_tool_above_a_table_is_no_table(version: bool) -> None:
    text = PLACEMENTS if version else PLACEMENTS.replace("nccl-tests version", "version")
    log = log_of_text(text, "page.md")
    (table,) = log.tables
    assert (log.tool, table.collective, table.ranks) == ("markdown-table", "all_reduce", 2)
    assert [(row.size_bytes, row.in_place, row.busbw) for row in table.rows] == [
        (64_000_000, False, 20.1),
        (64_000_000, True, 20.3),
        (1_000_000_000, False, 21.4),
        (1_000_000_000, True, 21.6),
    ]
    assert {row.dtype for row in table.rows} == {"bfloat16"}
    assert log.versions.get("NCCL") == "2.28.9"
    assert log.library == "NCCL"


@pytest.mark.parametrize(
    ("above", "library", "version"),
    [
        ("NCCL 2.27.3 all_reduce fp16, 4 ranks", "NCCL", "2.27.3"),
        ("RCCL v2.22.3, all_reduce, 4 ranks, fp16", "RCCL", "2.22.3"),
        ("NCCL against RCCL: all_reduce, 4 ranks, fp16", "", None),
    ],
)
def test_the_library_is_the_one_that_the_page_names(
    above: str, library: str, version: str | None
) -> None:
    log = log_of_text(
        f"{above}\n\n| size | busbw (GB/s) |\n|---|---|\n| 64 MiB | 2.4 |\n", "page.md"
    )
    assert (log.library, log.versions.get(library)) == (library, version)
    assert (log.tables[0].ranks, log.tables[0].rows[0].dtype) == (4, "float16")
