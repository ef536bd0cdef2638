"""MPI's and Gloo's collectives on one host: their messages, and what ranks copy and add themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.collectives import COLLECTIVES
from ccbench.model.context import PredictionContext
from ccbench.model.host_collectives import predict_host_library
from ccbench.model.machine import Machine, load_machine
from ccbench.model.pricing import bound_seconds
from tests.model.machines import flat
from tests.model.test_host_network import case_of, network_of

COPIED, ADDED = 8e9, 4e9
"""Bytes per second of one process; twice as many of two or more, on two cores."""

LARGE = 1 << 24


def host(cores: int = 2) -> Machine:
    plain = load_machine("cpu-shared-memory")
    return replace(
        plain,
        fabric=replace(
            plain.fabric, cores=cores, copy=flat(COPIED, 2 * COPIED), reduce=flat(ADDED, 2 * ADDED)
        ),
    )


def predicted(
    collective: str, ranks: int, size_bytes: int, algorithm: str = "", backend: str = "mpi", **changes: object
) -> tuple[float, float]:
    """Seconds with what ranks do themselves, and of messages alone."""
    case = case_of(collective, ranks, size_bytes, backend, **changes)
    network = network_of((0,) * ranks, backend=backend)
    whole = predict_host_library(case, network, algorithm, host(4 if backend == "gloo" else 2))
    messages = predict_host_library(case, network, algorithm)
    assert whole is not None
    assert messages is not None
    assert whole.latency_seconds + whole.bandwidth_seconds == pytest.approx(whole.predicted_seconds)
    return whole.predicted_seconds, messages.predicted_seconds


@pytest.mark.parametrize(
    ("algorithm", "added"), [("mpi:ring", 0.5), ("mpi:recursive_doubling", 1.0), ("mpi:rabenseifner", 0.5)]
)
def test_an_all_reduce_copies_its_input_and_adds_what_it_gets(algorithm: str, added: float) -> None:
    whole, messages = predicted("all_reduce", 2, LARGE, algorithm)
    assert whole - messages == pytest.approx(LARGE / COPIED + added * LARGE / ADDED)


def test_in_place_nothing_is_copied() -> None:
    whole, messages = predicted("all_reduce", 2, LARGE, "mpi:ring", in_place=True)
    assert whole - messages == pytest.approx(LARGE / 2 / ADDED)


def test_of_what_is_gathered_a_rank_copies_its_own_block() -> None:
    whole, messages = predicted("all_gather", 2, LARGE, "mpi:ring")
    assert whole - messages == pytest.approx(LARGE / 2 / COPIED)


@pytest.mark.parametrize("collective", ["broadcast", "send_recv", "barrier"])
def test_what_neither_copies_nor_adds_takes_its_messages(collective: str) -> None:
    whole, messages = predicted(collective, 2, LARGE if collective != "barrier" else 0)
    assert whole == messages


def test_gloo_reduces_in_its_input_and_adds_while_it_sends() -> None:
    whole, messages = predicted("all_reduce", 2, LARGE, backend="gloo")
    assert whole == messages


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gloo_is_priced_where_each_of_its_threads_has_a_processor(ranks: int) -> None:
    case, network = case_of("all_gather", ranks, LARGE), network_of((0,) * ranks)
    assert predict_host_library(case, network, "", host(2 * ranks)) is not None
    assert predict_host_library(case, network, "", host(2 * ranks - 1)) is None


def test_gloo_between_hosts_is_priced_however_few_processors_there_are() -> None:
    assert predict_host_library(case_of("all_gather", 2, LARGE), network_of((0, 1)), "", host()) is not None


def test_ranks_without_a_core_of_their_own_work_by_turns() -> None:
    (two, of_two), (four, of_four) = (predicted("all_gather", ranks, LARGE, "mpi:ring") for ranks in (2, 4))
    assert two - of_two == pytest.approx(LARGE / 2 / COPIED)
    assert four - of_four == pytest.approx(2 * LARGE / 4 / COPIED)


def test_between_hosts_messages_hide_what_ranks_do_themselves() -> None:
    case, network = case_of("all_reduce", 2, LARGE, "mpi"), network_of((0, 1), backend="mpi")
    assert predict_host_library(case, network, "mpi:ring", host()) == predict_host_library(
        case, network, "mpi:ring"
    )


@given(
    st.sampled_from(sorted(set(COLLECTIVES) - {"all_to_all_v", "barrier"})),
    st.integers(2, 5),
    st.integers(1, 1 << 24),
    st.sampled_from(["mpi", "gloo"]),
)
def test_the_bound_is_that_of_the_host_s_memory(
    collective: str, ranks: int, size_bytes: int, backend: str
) -> None:
    case = case_of(collective, ranks, size_bytes, backend)
    found = predict_host_library(case, network_of((0,) * ranks, backend=backend), "", host(10))
    assert found is not None
    row = COLLECTIVES[collective]
    memory = float(bound_seconds(row, ranks, case.count, 4, host(10), max(case.root, 0)))
    assert found.bound_seconds == pytest.approx(min(memory, found.predicted_seconds))


def test_a_run_s_basis_hands_its_host_on() -> None:
    network = network_of((0, 0), backend="mpi")
    case = case_of("all_reduce", 2, LARGE, "mpi")

    probed = PredictionContext(host=host(), host_networks={("mpi", 2): network})
    assert probed.predict(case) == predict_host_library(case, network, "", host())
    assert PredictionContext(host=host()).predict(case) is None
