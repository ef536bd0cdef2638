from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.lines import plain_lines
from ccbench.readers.machines import read_text
from ccbench.readers.machines.smi_table import tables_of
from ccbench.readers.machines.smi_topo import read
from ccbench.topology.graph import DeviceKind, LinkKind, Topology, TopologyClass
from ccbench.topology.matrix import path_labels
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


def test_devices_links_and_attributes_of_a_small_machine() -> None:
    topology = read(PAIR)
    assert [device.name for device in topology.devices] == [
        "gpu0",
        "gpu1",
        "cpu0",
        "cpu1",
        "nic0",
    ]
    assert topology.device("nic0").attributes["name"] == "mlx5_7"
    assert [device.numa_node for device in topology.gpus] == [0, 1]
    between = {("gpu0", "gpu1"): "NV4", ("gpu0", "nic0"): "PHB", ("gpu1", "nic0"): "SYS"}
    assert topology.matrix == between | {pair[::-1]: label for pair, label in between.items()}
    nvlinks = [link for link in topology.links if link.kind is LinkKind.NVLINK]
    assert [(link.source, link.target, link.count) for link in nvlinks] == [
        ("gpu0", "gpu1", 4),
        ("gpu1", "gpu0", 4),
    ]
    assert all(link.bytes_per_second is None for link in topology.links), (
        "the matrix prints no rates"
    )
    ends = {(link.source, link.target) for link in topology.links}
    assert {("nic0", "cpu0"), ("cpu0", "nic0"), ("gpu1", "cpu1"), ("cpu0", "cpu1")} <= ends


def test_gpus_and_nics_under_one_switch_share_a_pcie_switch() -> None:
    text = (
        "\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\tX\tSYS\tPIX\tSYS\t0-7\t0\nGPU1\tSYS\tX\tSYS\tPXB\t8-15\t1\n"
    )
    topology = read(text)
    assert len(topology.of_kind(DeviceKind.PCIE_SWITCH)) == 2
    ends = {(link.source, link.target) for link in topology.links}
    assert {("nic0", "pcie0"), ("gpu0", "pcie0"), ("pcie0", "cpu0"), ("gpu1", "pcie1")} <= ends
    assert ("nic0", "cpu0") not in ends


@pytest.mark.parametrize(
    ("count", "label", "expected"),
    [
        (8, "NV18", "nvswitch"),
        (8, "NV8", "nvswitch"),
        (16, "NV6", "nvswitch"),
        (4, "NV18", "nvswitch"),
        (4, "NV12", "nvswitch"),
        (4, "NV4", "nvlink-mesh"),
        (4, "NV2", "nvlink-mesh"),
        (3, "NV2", "nvlink-mesh"),
        (4, "NV6", "nvlink-mesh"),
        (3, "NV6", "unknown"),
        (2, "NV18", "unknown"),
        (2, "NV12", "unknown"),
        (2, "NV8", "unknown"),
        (2, "NV4", "nvlink-bridge"),
        (2, "NV2", "nvlink-bridge"),
        (2, "NV3", "nvlink-mesh"),
        (8, "SYS", "pcie"),
        (2, "PIX", "pcie"),
        (1, "", "single-gpu"),
    ],
)
def test_the_class_follows_from_counting_links(count: int, label: str, expected: str) -> None:
    assert read(matrix_text(count, label)).topology_class.value == expected


@pytest.mark.parametrize(
    ("count", "label", "expected"),
    [(4, "NV6", "nvswitch"), (2, "NV2", "nvlink-bridge"), (2, "NV4", "nvlink-mesh")],
)
def test_the_heading_of_old_drivers_leaves_fewer_machines(
    count: int, label: str, expected: str
) -> None:
    assert read(matrix_text(count, label, "CPU Affinity")).topology_class.value == expected


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


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (dict.fromkeys(RING, 1), "nvlink-mesh"),
        (dict.fromkeys(PAIRS, 12), "nvlink-bridge"),
        (dict.fromkeys(PAIRS, 3), "nvlink-mesh"),
    ],
)
def test_rings_are_no_cube_meshes_and_odd_pairs_are_a_board(
    counts: dict[tuple[int, int], int], expected: str
) -> None:
    assert read(counted(counts, 8)).topology_class.value == expected


def test_a_switched_machine_has_one_nvswitch_that_stands_for_all() -> None:
    topology = read(matrix_text(8, "NV18"))
    assert topology.facts["nvswitch_count"] is None, "the matrix does not count them"
    assert len(topology.of_kind(DeviceKind.NVSWITCH)) == 1
    up = [link for link in topology.links if link.target == "nvswitch0"]
    assert [link.count for link in up] == [18] * 8
    assert topology.facts["nvlinks_per_gpu"] == [18] * 8


@pytest.mark.parametrize(
    "text",
    [
        PAIR.replace("GPU1\tNV4\t", "GPU1\tNV4\n\t"),
        "\n".join(f"> {line}" for line in PAIR.split("\n")),
        PAIR.replace("GPU0", "\x1b[4mGPU0", 1).replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m"),
        PAIR.replace("\t", "    "),
        PAIR.replace("\n", "\r\n"),
        "collect_env\n$ nvidia-smi topo -m\n" + PAIR,
    ],
    ids=[
        "wrapped row",
        "quoted",
        "coloured",
        "blanks",
        "windows",
        "in a report",
    ],
)
def test_text_that_was_wrapped_quoted_or_coloured_says_the_same(text: str) -> None:
    assert read(text).facts == read(PAIR).facts


def test_where_a_cell_behind_the_matrix_is_empty_none_of_the_row_is_taken() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    text += "GPU0\tX\tSYS\t\t1\t\tN/A\nGPU1\tSYS\tX\t0-3\t0\t\tN/A\n"
    assert [gpu.numa_node for gpu in read(text).gpus] == [None, 0]


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        (PAIR, set()),
        (PAIR.replace("GPU1\tNV4", "GPU1\tNV2"), {"contradiction"}),
        (PAIR.replace("NV4", "QPI"), {"unknown_spelling"}),
        (PAIR[: PAIR.index("X \tSYS")], {"truncated"}),
        (matrix_text(2, "NV12"), {"not_visible"}),
    ],
)
def test_what_cannot_be_taken_as_it_stands_is_noted(text: str, noted: set[str]) -> None:
    assert kinds(read(text)) >= noted
    assert noted or not kinds(read(text))


def test_a_table_without_numbers_of_links_warns_that_pci_only_output_hides_them() -> None:
    legend = "\nLegend:\n\n  X    = Self\n  NODE = within a NUMA node\n  PIX  = a single PCIe bridge\n"
    hidden = read(matrix_text(2, "NODE") + legend)
    assert hidden.topology_class is TopologyClass.PCIE
    assert any("-mp" in warning.text for warning in hidden.warnings)
    assert (
        kinds(read(matrix_text(2, "NODE") + legend + "  NV#  = a bonded set of # NVLinks\n"))
        == set()
    )


LEGEND = (
    "\nLegend:\n\n  X    = Self\n  SYS  = across NUMA nodes\n  NODE = within a NUMA node\n"
    "  PHB  = a PCIe host bridge\n  PIX  = a single PCIe bridge\n  NV#  = # NVLinks\n"
)


@pytest.mark.parametrize("text", [matrix_text(4, "PHB"), matrix_text(2, "NV12"), PAIR])
def test_a_legend_takes_nothing_from_the_last_row(text: str) -> None:
    without, behind = read(text), read(text + LEGEND)
    assert (behind.devices, behind.links) == (without.devices, without.links)
    assert all(gpu.numa_node is not None for gpu in behind.gpus)


def test_a_damaged_affinity_is_left_out_alone_and_said() -> None:
    topology = read(PAIR.replace("0-15", "-15"))
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 1]
    assert "row GPU0: CPU Affinity is '-15', which is no list of numbers; left out" in [
        warning.text for warning in topology.warnings
    ]


def test_half_a_cell_at_the_end_is_no_path() -> None:
    topology = read(matrix_text(4, "NODE").partition("GPU3")[0] + "GPU1\tNODE\t X \tNO\n")
    assert "unknown_spelling" not in kinds(topology)


def test_the_registry_picks_this_reader_and_names_the_topology() -> None:
    topology = read_text(PAIR, "box.txt")
    assert (topology.name, topology.source) == ("box.txt", "nvidia-smi topo -m")


@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
def test_every_cell_is_labelled_as_the_dump_prints_it(entry: dict[str, Any]) -> None:
    tables, _ = tables_of(plain_lines(text_of(entry)))
    tables = [table for table in tables if table.rows and not table.is_p2p]
    topology = read(text_of(entry))
    if not tables:  # a table of peer statuses, or an answer by CPU: no path is made up for it
        assert not topology.matrix
        return
    named = {
        str(device.attributes.get("column") or device.attributes["name"]): device.name
        for device in topology.devices
        if device.kind in (DeviceKind.GPU, DeviceKind.NIC)
    }
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


def test_rows_of_words_that_no_label_follows_are_rows_and_a_word_is_noted_once() -> None:
    topology = read(FOREIGN)
    assert topology.facts["gpu_matrix"] == [
        line.split()[1:] for line in FOREIGN.splitlines()[1:]
    ]
    assert topology.matrix["gpu2", "gpu1"] == "MX"
    assert [warning.text for warning in topology.warnings if warning.line == 2] == [
        "path 'MX' is not known; kept as printed in 6 cells, first in row GPU0"
    ]
    assert kinds(topology) == {"unknown_spelling", "not_visible"}


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
    assert topology.facts["gpu_matrix"] == cells
    assert not kinds(topology) & {"truncated", "damaged_line", "unsupported"}


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_matrix_of_vendors_words_that_ends_early_is_mirrored(rows: int) -> None:
    topology = read("".join(FOREIGN.splitlines(keepends=True)[: rows + 1]))
    printed = {(f"gpu{row}", f"gpu{column}") for row in range(rows) for column in range(4)} - {
        (f"gpu{gpu}", f"gpu{gpu}") for gpu in range(4)
    }
    assert topology.matrix.keys() == printed | {pair[::-1] for pair in printed}


HEADED = (
    "        GPU0    GPU1    CPU Affinity      NUMA\n"
    "GPU0     X      SYS     0-31,64-95        0\n"
    "GPU1    SYS      X      32-63,96-127      1\n"
)


@pytest.mark.parametrize(
    ("cpus", "nodes"),
    [
        ("CPU Affinity", "NUMA"),
        ("CPU Affinity", "NUMA Node"),
        ("Cores", "NUMA Affinity"),
        ("CPU List", "Mem Affinity"),
    ],
)
def test_headings_behind_the_matrix_are_those_of_their_cells(cpus: str, nodes: str) -> None:
    text = HEADED.replace("CPU Affinity", cpus).replace("NUMA\n", f"{nodes}\n")
    topology = read(text)
    usual = read(HEADED.replace("NUMA\n", "NUMA Affinity\n"))
    assert topology.facts == usual.facts
    assert topology.devices == usual.devices
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 1]
    assert not kinds(topology)


def test_a_sentence_about_gpus_is_no_heading() -> None:
    text = HEADED + "GPU0  Has no fan\nGPU1 Gets warm\n"
    assert read(text).facts == read(HEADED).facts
