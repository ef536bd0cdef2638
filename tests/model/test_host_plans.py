"""What MPI libraries choose by themselves is what their sources say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.documents import read_installed
from ccbench.model.host_collectives import HostNetwork, predict_host_library
from ccbench.model.host_plans import (
    CHOICES,
    GLOO_PLANS,
    MPI_PLANS,
    TOLD_PLANS,
    MessageStage,
    own_choice,
)
from tests.model.test_host_collectives import RATE, case_of, line

OPEN_MPI = "Open MPI 4.1.4, mpi4py 4.1.2, launched from C"


def apart(ranks: int) -> tuple[int, ...]:
    return tuple(range(ranks))


@pytest.mark.parametrize(
    ("collective", "ranks", "size_bytes", "expected"),
    [
        ("all_reduce", 2, 4096, "ring"),
        ("all_reduce", 4, 8191, "recursive_doubling"),
        ("all_reduce", 4, 8192, "rabenseifner"),
        ("all_reduce", 40, 128, "rabenseifner"),
        ("all_reduce", 5000, 1 << 20, "ring"),
        ("all_gather", 4, 1 << 24, "recursive_doubling"),
        ("all_gather", 32, 32 * 1023, "recursive_doubling"),
        ("all_gather", 32, 32 * 1024, "neighbor"),
        ("all_gather", 32, 32 * 65536, "ring"),
        ("broadcast", 4, 2048, "binomial"),
        ("broadcast", 4, 1048575, "basic_linear"),
        ("broadcast", 4, 1048576, "chain"),
        ("broadcast", 16, 1048576, "scatter_doubling"),
        ("broadcast", 100, 1, "knomial"),
        ("reduce", 4, 1, ""),
    ],
)
def test_open_mpis_fixed_decisions(
    collective: str, ranks: int, size_bytes: int, expected: str
) -> None:
    assert own_choice(OPEN_MPI, collective, size_bytes, size_bytes, apart(ranks)) == expected


def test_a_ring_of_fewer_elements_than_ranks_is_recursive_doubling() -> None:
    assert own_choice(OPEN_MPI, "all_reduce", 8, 2, apart(4)) == "recursive_doubling"
    assert own_choice(OPEN_MPI, "all_reduce", 8, 8, apart(4)) == "ring"


@pytest.mark.parametrize(
    ("collective", "ranks", "size_bytes", "expected"),
    [
        ("broadcast", 4, 1 << 24, "binomial_in_turn"),
        ("broadcast", 8, 12288, "binomial_in_turn"),
        ("broadcast", 8, 12289, "scatter_doubling"),
        ("broadcast", 8, 524289, "scatter_allgather"),
        ("broadcast", 9, 12289, "scatter_allgather"),
        ("all_gather", 4, 524287, "recursive_doubling"),
        ("all_gather", 4, 524288, "ring"),
        ("all_gather", 5, 81919, "bruck"),
        ("all_gather", 5, 81920, "ring"),
        ("all_reduce", 4, 2048, ""),
        ("all_reduce", 4, 2049, "rabenseifner"),
    ],
)
def test_mpichs_selection(collective: str, ranks: int, size_bytes: int, expected: str) -> None:
    assert (
        own_choice("MPICH 5.0.2", collective, size_bytes, size_bytes, apart(ranks)) == expected
    )
    assert (
        own_choice("MPICH 5.0.2", collective, size_bytes, size_bytes, (*apart(ranks), 0)) == ""
    )


@pytest.mark.parametrize(
    "library", ["", "Open MPI 5.0.11, mpi4py 4.1.2", "Intel MPI 2021.18", "Cray MPICH 8.1"]
)
def test_of_other_libraries_nothing_is_said(library: str) -> None:
    assert own_choice(library, "all_reduce", 1 << 20, 1 << 18, apart(4)) == ""


def test_every_table_rises_and_names_plans_that_exist() -> None:
    for tables in read_installed(CHOICES).values():
        for collective, rows in tables.items():
            for row in rows:
                algorithms, sizes = row["take"][::2], row["take"][1::2]
                assert len(algorithms) == len(sizes) + 1
                assert sizes == sorted(set(sizes))
                assert set(algorithms) <= {*TOLD_PLANS[collective], "unknown"}
            assert rows[-1]["below"] == float("inf")


MAKERS = {f"gloo {name}": make for name, (_, make) in GLOO_PLANS.items()}
for tables in (MPI_PLANS, TOLD_PLANS):
    MAKERS |= {
        f"{name} {plan}": make for name, plans in tables.items() for plan, make in plans.items()
    }


@given(st.integers(1, 40), st.integers(0, 39))
def test_plans_send_between_ranks_that_exist_and_broadcasts_only_from_ranks_that_have_it(
    ranks: int, root: int
) -> None:
    root %= ranks
    for name, make in MAKERS.items():
        have = {root}
        whole = "broadcast" in name and "scatter" not in name
        for stage in make(ranks, root):
            sources, targets = ([end[side] for end in stage.messages] for side in (0, 1))
            assert all(0 <= rank < ranks for rank in (*sources, *targets)), name
            assert all(source != target for source, target in stage.messages) or ranks == 1, (
                name
            )
            if whole:
                assert set(sources) <= have, name
                assert len({*targets}) == len(targets), name
                assert not have & set(targets), name
                have |= set(targets)
        assert not whole or have == set(range(ranks)), name


def test_the_trees_of_seven_ranks() -> None:
    trees = TOLD_PLANS["broadcast"]
    assert trees["binary_tree"](7, 0) == [
        MessageStage(((0, 1), (0, 2)), 1.0),
        MessageStage(((1, 3), (1, 5), (2, 4), (2, 6)), 1.0),
    ]
    assert trees["knomial"](7, 0) == [
        MessageStage(((0, 1), (0, 2), (0, 3), (0, 4)), 1.0),
        MessageStage(((1, 5), (2, 6)), 1.0),
    ]
    assert [stage.messages for stage in trees["chain"](3, 1)] == [((1, 2),), ((2, 0),)]


def test_a_prediction_prices_what_the_library_takes_and_not_the_cheapest() -> None:
    """Open MPI 4.1 hands 16 MiB from rank to rank in one piece; a pipeline would take a third."""
    size = 1 << 24
    case = case_of("broadcast", 4, size, "mpi")
    told = HostNetwork(
        "mpi", ("a", "b", "c", "d"), (0, 1, 2, 3), line(), None, line(), RATE, library=OPEN_MPI
    )
    prediction = predict_host_library(case, told)
    assert prediction is not None
    assert prediction.predicted_seconds == pytest.approx(3 * size / RATE, rel=0.02)
    assert "(chain)" in prediction.bottleneck
