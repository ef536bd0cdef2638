from __future__ import annotations

from ccbench.report.topology_text import MOST_LINES, channel_lines, network_line


def test_rings_that_are_alike_are_one_line() -> None:
    assert list(channel_lines({"rings": [[0, 1, 2], [0, 1, 2], [0, 2, 1]]})) == [
        "ring: 0 1 2  (x2)",
        "ring: 0 2 1",
    ]
    assert list(channel_lines({"rings": {"00": [0, 1]}})) == ["ring: 0 1"]


def test_a_ring_that_the_source_cut_says_so() -> None:
    (line,) = channel_lines({"rings_first_3": {"00": [0, 1, 2]}})
    assert line == "ring: 0 1 2 ... (cut by the source)"


def test_chains_name_their_graph() -> None:
    assert list(channel_lines({"chains": {"1": [[0, 1]], "2": []}})) == ["chain of graph 1: 0 1"]


def test_a_tree_is_its_known_edges() -> None:
    leaf = {"parent": 0, "children": []}
    root = {"parent": None, "children": [1, 2]}
    trees = {"0": {"0": root, "1": root}, "1": {"0": leaf, "1": leaf}}
    assert list(channel_lines({"trees": trees})) == ["tree: 0>1 0>2  (x2)"]


def test_many_orders_are_cut_with_a_count() -> None:
    lines = list(channel_lines({"rings": [[0, number] for number in range(1, MOST_LINES + 4)]}))
    assert len(lines) == MOST_LINES + 1
    assert lines[-1].startswith("and 3 more orders")


def test_facts_of_any_other_form_print_nothing() -> None:
    assert list(channel_lines({"rings": 3, "chains": [1], "trees": {"a": {"0": 1}, "b": 2}})) == []


def test_a_log_without_a_machine_says_how_many_ranks_and_devices_it_names() -> None:
    facts = {"nranks": 16, "nnodes": 2, "net_devices": ["mlx5_0", "mlx5_1"]}
    assert network_line(facts) == "16 ranks, 2 machines, 2 network devices (mlx5_0 mlx5_1)"
    assert network_line({"nranks": None}) == ""
