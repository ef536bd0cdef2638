from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.lines import plain_lines
from ccbench.readers.machines import read_text
from ccbench.readers.machines.smi_table import Matrix, tables_of
from ccbench.readers.machines.smi_topo import read
from ccbench.topology.graph import Topology, TopologyClass
from ccbench.topology.matrix import path_labels
from ccbench.topology.summary import gpu_matrix
from tests.clocks import within
from tests.topology.dumps import entries, names, text_of

ENTRIES = entries("smi_topo")

PAIR = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV4\tPHB\t0-15\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tSYS\t16-31\t1\t\tN/A\n"
    "NIC0\tPHB\tSYS\t X \t\t\t\t\n"
    "\n"
    "NIC Legend:\n\n  NIC0: mlx5_7\n"
)


def matrix_text(count: int, label: str, heading: str = "CPU Affinity\tNUMA Affinity") -> str:
    gpus = [f"GPU{index}" for index in range(count)]
    rows = ["\t" + "\t".join([*gpus, heading])]
    for gpu in gpus:
        cells = [" X " if other == gpu else label for other in gpus]
        rows.append("\t".join([gpu, *cells, "0-15", *["0"] * heading.count("NUMA")]))
    return "\n".join(rows) + "\n"


def counted(counts: dict[tuple[int, int], int], gpus: int) -> str:
    """A matrix with NV# for the pairs given and SYS elsewhere."""
    rows = [
        "\t"
        + "\t".join(f"GPU{index}" for index in range(gpus))
        + "\tCPU Affinity\tNUMA Affinity"
    ]
    for one in range(gpus):
        cells = [
            " X "
            if one == index
            else f"NV{links}"
            if (links := both(counts, one, index))
            else "SYS"
            for index in range(gpus)
        ]
        rows.append("\t".join([f"GPU{one}", *cells, "0-15", "0"]))
    return "\n".join(rows)


def both(counts: dict[tuple[int, int], int], one: int, other: int) -> int:
    return counts.get((one, other)) or counts.get((other, one)) or 0


def kinds(topology: Topology) -> set[str]:
    return {warning.kind for warning in topology.warnings}


@pytest.mark.parametrize("label", ["NV4", "PIX"])
@pytest.mark.parametrize("gpus", [150, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_a_matrix_of_hundreds_of_gpus_takes_seconds(gpus: int, label: str) -> None:
    text = matrix_text(gpus, label)
    assert len(within(5 * gpus / 400, lambda: read(text)).gpus) == gpus


@given(st.permutations(range(8)))
def test_a_cube_mesh_is_one_in_any_order_of_its_gpus(order: list[int]) -> None:
    quads = [
        (a, b) for base in (0, 4) for a in range(base, base + 4) for b in range(a + 1, base + 4)
    ]
    across = [(gpu, gpu + 4) for gpu in range(4)]
    counts = {(order[one], order[other]): 1 for one, other in quads + across}
    assert read(counted(counts, 8)).topology_class is TopologyClass.NVLINK_CUBE_MESH
    del counts[order[0], order[4]]
    assert read(counted(counts, 8)).topology_class is TopologyClass.NVLINK_MESH


PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
RING = [(gpu, (gpu + step) % 8) for gpu in range(8) for step in (1, 2)]


@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
def test_every_cell_is_labelled_as_the_dump_prints_it(entry: dict[str, Any]) -> None:
    tables, _ = tables_of(plain_lines(text_of(entry)))
    tables = [table for table in tables if table.rows and not table.is_p2p]
    topology = read(text_of(entry))
    if not tables:  # a table of peer statuses, or an answer by CPU: no path is made up for it
        assert not topology.matrix
        return
    named = Matrix(tables[0], []).names
    labels = path_labels(topology)
    printed = {
        (named[row.name], named[column]): cell
        for row in tables[0].rows
        for column, cell in zip(tables[0].columns, row.cells, strict=False)
        if column != row.name and cell != "X" and row.name in named
    }
    assert printed or len(topology.gpus) == 1
    assert {pair: labels[pair] for pair in printed} == printed
    unseen = (
        {pair for pair in labels if pair[0] != pair[1]}
        - printed.keys()
        - {pair[::-1] for pair in printed}
    )
    assert {labels[pair] for pair in unseen} <= {"?"}


@pytest.mark.parametrize(
    "tag",
    [
        "2026-04-02 09:11:00,123 INFO topo: ",
        "Apr  2 09:11:04 box3 run[815]: ",
        "host0: ",
        "box3   | ",
        "    ",
        "> ",
    ],
)
def test_what_a_logger_wrote_before_each_line_hides_no_cell(tag: str) -> None:
    text = matrix_text(4, "NV6")
    marked = "".join(tag + line for line in text.splitlines(keepends=True))
    assert read_text(marked) == read_text(text)


# A full mesh of four cards whose link has a word of its vendor's.
FOREIGN = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\n"
    "GPU0\tX\tMX\tMX\tSYS\n"
    "GPU1\tMX\tX\tMX\tSYS\n"
    "GPU2\tMX\tMX\tX\tSYS\n"
    "GPU3\tSYS\tSYS\tSYS\tX\n"
)


@given(
    words=st.lists(
        st.from_regex(r"[A-Z][A-Z0-9_]{0,6}", fullmatch=True).filter(
            lambda word: word != "X" and not word.startswith(("GPU", "NIC"))
        ),
        min_size=6,
        max_size=6,
    ),
    gap=st.sampled_from(["\t", "    ", " \t "]),
    indent=st.sampled_from(["", "  ", "> "]),
    end=st.sampled_from(["\n", "\r\n", "\x1b[0m\n"]),
)
def test_any_words_of_any_vendor_are_kept_in_a_whole_matrix(
    words: list[str], gap: str, indent: str, end: str
) -> None:
    pairs = dict(
        zip(
            [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)],
            map("Q{}".format, words),
            strict=True,
        )
    )
    cells = [
        ["X" if a == b else pairs[min(a, b), max(a, b)] for b in range(4)] for a in range(4)
    ]
    lines = [gap + gap.join(f"GPU{gpu}" for gpu in range(4))]
    lines += [gap.join([f"GPU{gpu}", *cells[gpu]]) for gpu in range(4)]
    topology = read("".join(f"{indent}{line}{end}" for line in lines))
    assert gpu_matrix(topology) == cells
    assert not kinds(topology) & {"truncated", "damaged_line", "unsupported"}
