"""Every kernel on the host engine, bit for bit against NumPy in the same order of summation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.kernels.abi import OPS, TYPES
from ccbench.backends.kernels.host_engine import KernelDeadlock
from ccbench.backends.kernels.layout import SLOT_BYTES
from ccbench.backends.kernels.sources import entries
from tests.backends.kernels.cases import (
    ENTRIES,
    SCHEDULES,
    KernelCase,
    case_of,
    parameters_of,
    run_in_a_row,
)

REDUCING = [name for name in ENTRIES if entries()[name].reduces]
FILES = sorted({entries()[name].file for name in ENTRIES})
CANDIDATES = 30


def pairs_of(values: Mapping[str, Any]) -> set[Any]:
    return set(itertools.combinations(values.items(), 2))


def pairwise(parameters: Mapping[str, Sequence[Any]], seed: int) -> list[dict[str, Any]]:
    """Cases that cover all pairs; greedy: the best of some random candidates, one after another."""
    generator = random.Random(seed)
    each = [[(name, value) for value in values] for name, values in parameters.items()]
    pairs = [itertools.product(*two) for two in itertools.combinations(each, 2)]
    missing = dict.fromkeys(itertools.chain(*pairs))
    chosen = []
    while missing:
        lacking = dict(generator.choice(list(missing)))
        candidates = [
            {name: generator.choice(values) for name, values in parameters.items()} | lacking
            for _ in range(CANDIDATES)
        ]
        chosen.append(max(candidates, key=lambda one: len(pairs_of(one) & missing.keys())))
        missing = {pair: None for pair in missing if pair not in pairs_of(chosen[-1])}
    return chosen


@pytest.mark.exhaustive
@pytest.mark.parametrize("entry", ENTRIES)
def test_every_pair_of_parameters_gives_what_numpy_gives(entry: str) -> None:
    for seed, values in enumerate(
        pairwise(parameters_of(entries()[entry].file), seed=len(entry))
    ):
        assert run_in_a_row(case_of(entry, values), seed)


@pytest.mark.exhaustive
def test_every_pair_of_a_schedule_and_a_parameter_gives_what_numpy_gives() -> None:
    ran = 0
    for seed, values in enumerate(
        pairwise({"algorithm": SCHEDULES, **parameters_of("schedule.cu")}, 1)
    ):
        ran += run_in_a_row(case_of("schedule", values, values.pop("algorithm")), seed)
    assert ran > 400


@pytest.mark.thinned(10)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_runs_on_every_number_of_ranks_that_it_exists_for(
    name: str, in_place: bool
) -> None:
    for ranks in (2, 3, 4, 8):
        case = KernelCase("schedule", name, ranks=ranks, channels=1, count=257, slot_bytes=512)
        assert run_in_a_row(replace(case, in_place=in_place, drifting=ranks == 4), ranks)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("entry", "algorithm"),
    [
        *((entry, "") for entry in ENTRIES if entries()[entry].file in ("ring.cu", "tree.cu")),
        ("schedule", "all_reduce ring"),
    ],
)
def test_messages_as_long_as_on_gpus_are_right(entry: str, algorithm: str) -> None:
    """Two of them and a little; chains and schedules take shorter ones."""
    count = SLOT_BYTES // 4 * 2 + 5
    case = KernelCase(
        entry, algorithm, ranks=3, channels=1, count=count, lanes=16, launches=1, root=0
    )
    assert run_in_a_row(replace(case, slot_bytes=SLOT_BYTES, staging_bytes=1 << 20), 1)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_op_gives_what_numpy_gives(dtype: str, op: str) -> None:
    for entry in REDUCING:
        assert run_in_a_row(KernelCase(entry, dtype=dtype, op=op), 1)
    for name in ("all_reduce one_shot", "all_reduce ring"):
        case = KernelCase("schedule", name, dtype=dtype, op=op, slot_bytes=512)
        assert run_in_a_row(case, 1)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("entry", ENTRIES)
def test_real_threads_give_the_same(entry: str) -> None:
    assert run_in_a_row(KernelCase(entry), 5, engine="threads")


def any_case(file: str) -> st.SearchStrategy[KernelCase]:
    """Of any entry of a kernel file, or of any schedule."""
    names = (
        SCHEDULES
        if file == "schedule.cu"
        else [name for name in ENTRIES if entries()[name].file == file]
    )
    return st.builds(
        lambda name, **values: KernelCase(
            *(("schedule", name) if file == "schedule.cu" else (name,)), **values
        ),
        name=st.sampled_from(names),
        ranks=st.integers(1, 10),
        channels=st.integers(1, 5),
        lanes=st.integers(1, 9),
        count=st.integers(0, 600),
        misalignment=st.integers(0, 15),
        slots=st.sampled_from([2, 4, 8]),
        slot_bytes=st.integers(4, 40).map(lambda units: 16 * units),
        packets=st.integers(2, 64),
        pieces=st.integers(1, 9),
        drifting=st.booleans(),
        in_place=st.booleans(),
        shuffled=st.booleans(),
        dtype=st.sampled_from(["float32", "float64", "bfloat16", "uint8"]),
    )


@pytest.mark.thinned(3)
@pytest.mark.parametrize("file", [*FILES, "schedule.cu"])
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_any_case_gives_what_numpy_gives(file: str, data: st.DataObject, seed: int) -> None:
    run_in_a_row(data.draw(any_case(file)), seed)


@pytest.mark.parametrize("name", SCHEDULES)
def test_too_few_resident_interpreters_are_told_and_do_not_hang(name: str) -> None:
    case = KernelCase("schedule", name, channels=1, count=2000, drifting=False)
    with pytest.raises(KernelDeadlock, match="deadlock: rank"):
        run_in_a_row(case, 1, resident=1)
