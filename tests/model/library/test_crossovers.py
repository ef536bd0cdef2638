from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.model.library.constants import STARTS
from ccbench.model.library.crossovers import crossovers
from ccbench.model.library.predictor import predict_library
from ccbench.model.library.system import LibraryRequest, LibrarySystem
from tests.model.library.systems import A100, COLLECTIVES, H100, clustered, systems

ENDS = (8, 1 << 34)


def choice(system: LibrarySystem, request: LibraryRequest, size: int) -> str:
    (point,) = predict_library(system, replace(request, size_bytes=(size,)), STARTS)
    return f"{point.algorithm} {point.protocol}"


@given(systems(), st.sampled_from(COLLECTIVES))
def test_the_choice_changes_at_each_crossover_and_to_the_byte(system: LibrarySystem, collective: str) -> None:
    request = LibraryRequest(collective, ENDS)
    for found in crossovers(system, request, STARTS):
        assert choice(system, request, found.size_bytes - 1) == found.before
        assert choice(system, request, found.size_bytes) == found.after


@given(systems(), st.sampled_from(COLLECTIVES))
def test_crossovers_lead_from_the_least_size_to_the_greatest(system: LibrarySystem, collective: str) -> None:
    request = LibraryRequest(collective, ENDS)
    found = crossovers(system, request, STARTS)
    names = [choice(system, request, ENDS[0]), *(change.after for change in found)]
    assert [change.before for change in found] == names[:-1]
    assert names[-1] == choice(system, request, ENDS[1])
    sizes = [change.size_bytes for change in found]
    assert sizes == sorted(set(sizes))


def test_large_sizes_go_to_the_switch() -> None:
    assert crossovers(H100, LibraryRequest("all_reduce", ENDS), STARTS)[-1].after == "nvls simple"


@pytest.mark.parametrize("sizes", [(), (8,), (0, 0), (1 << 30, 1 << 30)])
def test_without_a_range_there_is_no_crossover(sizes: tuple[int, ...]) -> None:
    assert crossovers(A100, LibraryRequest("all_reduce", sizes), STARTS) == ()


def test_what_is_forced_does_not_change() -> None:
    forced = LibraryRequest("all_reduce", ENDS, algorithm="ring", protocol="simple")
    assert crossovers(clustered(A100, 4), forced, STARTS) == ()


def test_one_rank_has_no_crossover() -> None:
    assert crossovers(replace(A100, ranks_per_node=1), LibraryRequest("all_reduce", ENDS), STARTS) == ()
