"""Damaged results are always reported, right results never: against a reference written by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ccbench.cases.axes import NO_OP, NO_ROOT, UNEVEN, Case
from ccbench.collectives import COLLECTIVES, OPS, collective, reference, sent_elements
from ccbench.dtypes import CPU_DTYPES, EXACT_LIMIT, item_bytes, numpy_dtype
from ccbench.inexact import INEXACT_SEED
from ccbench.verification import PERIOD_ELEMENTS, Part, check, fill, part_of, poison
from tests.tiers import examples

Outputs = list[np.ndarray[Any, Any]]

MOVING = [name for name, row in COLLECTIVES.items() if row.moves_data]
IN_PLACE = [name for name in MOVING if name not in ("all_to_all", UNEVEN, "send_recv")]
TRAFFICS = ("", "zipf:1.2", "zipf:3", "hot:0.5", "hot:1", "hot:0.02")
TRIALS = pytest.mark.parametrize(
    "trials", [20, pytest.param(200, marks=pytest.mark.exhaustive)]
)
CHUNK_ELEMENTS = 32


def case_of(
    name: str,
    dtype: str,
    op: str,
    count: int,
    ranks: int,
    root: int = 0,
    in_place: bool = False,
) -> Case:
    row = collective(name)
    size_bytes = row.size_bytes(count, ranks, item_bytes(dtype))
    op, root = op if row.reduces else NO_OP, root if row.rooted else NO_ROOT
    return Case(
        "s",
        "cpu",
        name,
        "default",
        dtype,
        op,
        size_bytes,
        count,
        ranks,
        root=root,
        in_place=in_place,
    )


def inputs_of(case: Case, seed: int, launches: int = 1) -> Outputs:
    buffers = []
    for rank in range(case.ranks):
        buffers.append(np.zeros(case.input_count(rank), numpy_dtype(case.dtype)))
        fill(case, rank, buffers[-1], seed, launches)
    return buffers


def results_of(case: Case, seed: int, launches: int = 1, at_start: bool = False) -> Outputs:
    """The outputs after ``launches`` launches; in place the result is the next input.

    at_start: a reduce_scatter writes over the first block, and a reduce spoils the other ranks' inputs.
    """
    buffers = inputs_of(case, seed, launches)
    sent = (
        sent_elements(case.traffic, case.count, case.ranks)
        if case.collective == UNEVEN
        else None
    )
    outputs = reference(buffers, case.op, case.collective, max(case.root, 0), sent)
    for _ in range(launches - 1):
        if case.in_place:
            buffers = (_at_start if at_start else _next_inputs)(case, buffers, outputs)
        outputs = reference(buffers, case.op, case.collective, max(case.root, 0), sent)
    return outputs


def _next_inputs(case: Case, inputs: Outputs, outputs: Outputs) -> Outputs:
    """What a launch in place leaves where the next one's input is read."""
    row = collective(case.collective)
    pieces = case.ranks if row.blocked else 1
    following = []
    for rank in range(case.ranks):
        given, made = (
            of(rank, case.ranks, pieces, max(case.root, 0)) for of in (row.inputs, row.outputs)
        )
        blocks = dict(zip(given, np.split(inputs[rank], max(1, len(given))), strict=False))
        for slot, block in zip(made, np.split(outputs[rank], max(1, len(made))), strict=False):
            if slot in blocks:
                blocks[slot] = block
        following.append(np.concatenate([blocks[slot] for slot in given] or [inputs[rank]]))
    return following


def _at_start(case: Case, inputs: Outputs, outputs: Outputs) -> Outputs:
    """As ``_next_inputs`` where MPI writes a block of sums, and where Gloo leaves sums of some ranks."""
    if case.collective == "reduce":
        partial = [
            reference(inputs[rank:], case.op, "all_reduce", 0)[0] for rank in range(case.ranks)
        ]
        return [
            outputs[rank] if rank == case.root else partial[rank] for rank in range(case.ranks)
        ]
    if case.collective == "reduce_scatter":
        pairs = zip(outputs, inputs, strict=True)
        return [np.concatenate([made, given[len(made) :]]) for made, given in pairs]
    return _next_inputs(case, inputs, outputs)


# -- right results are never reported ----------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case that moves data."""
    name = draw(st.sampled_from(MOVING))
    ranks = draw(st.one_of(st.integers(1, 20), st.sampled_from([45, 64, 100])))
    case = case_of(
        name,
        draw(st.sampled_from(CPU_DTYPES)),
        draw(st.sampled_from(OPS)),
        draw(st.integers(0, 300)),
        ranks,
        root=draw(st.integers(0, ranks - 1)),
        in_place=draw(st.booleans()) and name in IN_PLACE,
    )
    return replace(case, traffic=draw(st.sampled_from(TRAFFICS)) if name == UNEVEN else "")


@examples(
    30,
    300,
    case=cases(),
    seed=st.integers(0, INEXACT_SEED - 1),
    launches=st.integers(1, 5),
    at_start=st.booleans(),
)
def test_right_results_are_never_reported(
    case: Case, seed: int, launches: int, at_start: bool
) -> None:
    for rank, output in enumerate(results_of(case, seed, launches, at_start)):
        assert check(case, rank, output, seed, launches) is None


@pytest.mark.thinned(12)
@pytest.mark.parametrize("dtype", CPU_DTYPES)
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "reduce"])
def test_many_launches_in_place_have_one_right_result_wherever_it_is_left(
    name: str, dtype: str
) -> None:
    for op, at_start, ranks in product(OPS, (False, True), (1, 2, 3, 8)):
        case = case_of(name, dtype, op, 200, ranks, root=ranks - 1, in_place=True)
        for rank, output in enumerate(results_of(case, 5, 40, at_start)):
            assert check(case, rank, output, 5, 40) is None, (op, at_start, ranks, rank)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_every_combination_passes_in_its_own_arithmetic(dtype: str) -> None:
    """One launch and several, added up in the element type itself and in two orders."""
    for op, ranks, launches, order in product(OPS, (2, 3, 8, 12, 17), (1, 6), (1, -1)):
        case = case_of("all_reduce", dtype, op, 5000, ranks, in_place=True)
        buffers = inputs_of(case, 7, launches)
        for _ in range(launches):
            buffers = [_folded(buffers[::order], op)] * ranks
        assert check(case, ranks - 1, buffers[0], 7, launches) is None, (op, ranks, order)


def _folded(buffers: Outputs, op: str) -> np.ndarray[Any, Any]:
    """One after the other, rounded or wrapped to the element type after every step."""
    functions: dict[str, Callable[..., Any]] = {
        "prod": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
    }
    total: np.ndarray[Any, Any] = buffers[0].copy()
    for buffer in buffers[1:]:
        total = functions.get(op, np.add)(total, buffer)
    if op == "avg":
        quotient = total.astype(np.float64) / len(buffers)
        total = (np.trunc(quotient) if total.dtype.kind in "iu" else quotient).astype(
            total.dtype
        )
    return total


@given(
    matrix=st.integers(1, 5).flatmap(
        lambda ranks: st.tuples(
            *[st.tuples(*[st.sampled_from([0, 0, 1, 5, 0.3])] * ranks)] * ranks
        )
    ),
    dtype=st.sampled_from(CPU_DTYPES),
    count=st.sampled_from([1, 7, 1000, 2 * PERIOD_ELEMENTS + 3]),
    chooser=st.randoms(use_true_random=False),
)
def test_one_wrong_element_of_any_matrix_is_reported_and_none_that_is_right(
    matrix: tuple[tuple[float, ...], ...], dtype: str, count: int, chooser: random.Random
) -> None:
    assume(any(map(any, matrix)))
    case = replace(
        case_of(UNEVEN, dtype, "sum", count, len(matrix)), traffic=json.dumps(matrix)
    )
    for rank, output in enumerate(results_of(case, 11)):
        assert len(output) == case.output_count(rank)
        assert check(case, rank, output, 11, 1) is None
        if len(output):
            damage = wrong_element(output, output, chooser)
            found = check(case, rank, output, 11, 1)
            assert found is not None
            assert (found.rank, found.offset, found.wrong_elements) == (rank, damage.sure, 1)


@given(
    dtype=st.sampled_from(CPU_DTYPES),
    op=st.sampled_from((NO_OP, *OPS)),
    ranks=st.integers(1, 64),
    rank=st.integers(0, 63),
    seed=st.integers(0, 2**30),
)
def test_the_data_are_exact_in_their_type_and_zero_only_in_averages(
    dtype: str, op: str, ranks: int, rank: int, seed: int
) -> None:
    case = replace(case_of("all_reduce", dtype, "sum", 1000, ranks), op=op)
    buffer = np.zeros(1000, numpy_dtype(dtype))
    fill(case, rank % ranks, buffer, seed)
    whole = buffer.astype(np.float64)
    assert np.all(whole != 0) or op == "avg"
    if op == "prod":
        significands = np.abs(np.frexp(whole)[0])
        assert np.all(significands == 0.5) or numpy_dtype(dtype).kind in "iu"
        return
    assert np.all(whole == np.trunc(whole))
    assert np.all(np.abs(whole) <= EXACT_LIMIT[dtype])


# -- damaged results always are ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """What was done to an output: elements [first, last) may differ, the element ``sure`` does."""

    first: int
    last: int
    sure: int | None


def wrong_element(
    output: np.ndarray[Any, Any], stale: np.ndarray[Any, Any], chooser: random.Random
) -> Damage:
    where = chooser.randrange(len(output))
    bits = output.view(f"u{output.dtype.itemsize}")
    bits[where] ^= bits.dtype.type(1 << chooser.randrange(8 * output.dtype.itemsize))
    return Damage(where, where + 1, where)


def nan_bits(
    output: np.ndarray[Any, Any], stale: np.ndarray[Any, Any], chooser: random.Random
) -> Damage:
    """All ones: a NaN in every floating point type, -1 or the largest value in the others."""
    where = chooser.randrange(len(output))
    bits = output.view(f"u{output.dtype.itemsize}")
    if bits[where] == np.iinfo(bits.dtype).max:
        where = next(
            index for index, value in enumerate(bits) if value != np.iinfo(bits.dtype).max
        )
    bits[where] = np.iinfo(bits.dtype).max
    return Damage(where, where + 1, where)


def swapped_chunks(
    output: np.ndarray[Any, Any], stale: np.ndarray[Any, Any], chooser: random.Random
) -> Damage:
    length = chooser.randint(CHUNK_ELEMENTS, len(output) // 2)
    one = chooser.randrange(len(output) - 2 * length + 1)
    other = chooser.randrange(one + length, len(output) - length + 1)
    kept = output[one : one + length].copy()
    output[one : one + length] = output[other : other + length]
    output[other : other + length] = kept
    return Damage(one, other + length, None)


def stale_buffer(
    output: np.ndarray[Any, Any], stale: np.ndarray[Any, Any], chooser: random.Random
) -> Damage:
    """A chunk that was not written in this launch: the last seed's result, or the poison."""
    length = chooser.randint(CHUNK_ELEMENTS, len(output))
    begin = chooser.randrange(len(output) - length + 1)
    if chooser.random() < 0.5:
        output[begin : begin + length] = stale[begin : begin + length]
        return Damage(begin, begin + length, None)
    poison(output[begin : begin + length])
    return Damage(begin, begin + length, begin)


@TRIALS
@pytest.mark.parametrize("damage", [wrong_element, nan_bits, swapped_chunks, stale_buffer])
def test_damage_is_reported_in_every_trial_with_rank_and_offset(
    damage: Callable[..., Damage], trials: int
) -> None:
    chooser = random.Random(damage.__name__)
    for _ in range(trials):
        case, rank = _random_case(chooser)
        seed = chooser.randrange(1, 10_000)
        output = results_of(case, seed)[rank]
        right = output.copy()
        done = damage(output, results_of(case, seed - 1)[rank], chooser)
        bits = f"u{output.dtype.itemsize}"
        differs = np.flatnonzero(output.view(bits) != right.view(bits))
        found = check(case, rank, output, seed, 1)
        assert found is not None, (case, rank, done)
        assert (found.rank, found.offset, found.wrong_elements) == (
            rank,
            differs[0],
            len(differs),
        )
        assert done.first <= found.offset < done.last
        assert done.sure in (None, found.offset)


def _random_case(chooser: random.Random) -> tuple[Case, int]:
    """A case and one of its ranks that has an output."""
    name = chooser.choice(MOVING)
    ranks = chooser.randint(2, 16)
    root = chooser.randrange(ranks)
    count = chooser.randint(2 * CHUNK_ELEMENTS, 3000)
    in_place = name in IN_PLACE and chooser.random() < 0.5
    case = case_of(
        name, chooser.choice(CPU_DTYPES), chooser.choice(OPS), count, ranks, root, in_place
    )
    case = replace(case, traffic=chooser.choice(TRAFFICS) if name == UNEVEN else "")
    having = [rank for rank in range(ranks) if case.output_count(rank) >= 2 * CHUNK_ELEMENTS]
    return case, chooser.choice(having)


def test_the_values_of_a_mismatch_are_told() -> None:
    case = case_of("all_reduce", "float32", "sum", 100, 2)
    output = results_of(case, 1)[0]
    right = output[7]
    output[7] = np.nan
    assert str(check(case, 0, output, 1, 1)) == (
        f"rank 0: 1 wrong, first at element 7: nan instead of {float(right)}"
    )


# -- what chance cannot hide ---------------------------------------------------------------------------------


@examples(
    10,
    100,
    dtype=st.sampled_from(CPU_DTYPES),
    ranks=st.integers(2, 64),
    seed=st.integers(0, 2**30),
)
def test_the_average_of_data_that_differ_between_ranks_is_exact(
    dtype: str, ranks: int, seed: int
) -> None:
    case = case_of("all_reduce", dtype, "avg", 500, ranks)
    inputs = [buffer.astype(np.float64) for buffer in inputs_of(case, seed)]
    totals = np.sum(inputs, axis=0)
    limit = EXACT_LIMIT[dtype]
    assert np.all(totals % ranks == 0)
    assert np.all(totals != 0)
    assert np.all(np.abs(totals) <= limit)
    if numpy_dtype(dtype).kind not in "iu":  # in any order: even of the largest partial sum
        assert np.all(np.sum(np.maximum(inputs, 0), axis=0) <= limit)
        assert np.all(np.sum(np.minimum(inputs, 0), axis=0) >= -limit)
    (right, *_) = results_of(case, seed)
    assert np.array_equal(right.astype(np.float64), totals / ranks)


@pytest.mark.thinned(6)
@TRIALS
@pytest.mark.parametrize("dtype", CPU_DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_a_rank_that_keeps_its_input_or_skips_a_contribution_is_caught_in_every_trial(
    dtype: str, op: str, trials: int
) -> None:
    """Skips are told for sums, products and averages; a minimum does not depend on every rank's data."""
    chooser = random.Random(f"{dtype} {op}")
    for trial in range(trials):
        # Mostly few ranks: that is quicker, and small types with many ranks are what is hard.
        ranks, seed = chooser.randint(2, 12 if trial % 20 else 64), chooser.randrange(10_000)
        case = case_of("all_reduce", dtype, op, 64, ranks)
        rank, skipped = chooser.randrange(ranks), chooser.randrange(ranks)
        inputs = inputs_of(case, seed)
        assert check(case, rank, inputs[rank], seed, 1) is not None
        if op not in ("min", "max"):
            assert check(case, rank, _skip(inputs, skipped, op), seed, 1) is not None


def _skip(inputs: Outputs, skipped: int, op: str) -> np.ndarray[Any, Any]:
    """Everything combined but what rank ``skipped`` brought; an average still divides by all ranks."""
    neutral = inputs[skipped] * 0 + (op == "prod")
    others = [
        neutral.astype(buffer.dtype) if rank == skipped else buffer
        for rank, buffer in enumerate(inputs)
    ]
    return reference(others, op, "all_reduce", 0)[0]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("dtype", CPU_DTYPES)
@pytest.mark.parametrize("op", [NO_OP, *OPS])
def test_poison_is_never_a_right_value(dtype: str, op: str) -> None:
    name = "broadcast" if op == NO_OP else "all_reduce"
    poisoned = np.empty(1, numpy_dtype(dtype))
    poison(poisoned)
    bits = f"u{poisoned.itemsize}"
    for ranks, in_place, launches in product(
        (1, 2, 3, 5, 8, 9, 12, 17, 46, 64), (False, True), (1, 2)
    ):
        case = case_of(name, dtype, op, 8192, ranks, in_place=in_place)
        (output, *_) = results_of(case, ranks, launches)
        assert not np.any(output.view(bits) == poisoned.view(bits)), (ranks, in_place, launches)


# -- parts -------------------------------------------------------------------------------------------------


def parts_of(name: str, **requested: str) -> list[Part | None]:
    """The parts of four ranks."""
    case = replace(case_of(name, "float32", "sum", 1000, 4), **requested)  # type: ignore[arg-type]  # texts
    return [part_of(case, rank) for rank in range(4)]


def test_data_of_another_group_are_wrong_data() -> None:
    mine, _, other, _ = parts = parts_of("all_gather", groups="rank // 2")
    assert mine
    assert other
    blocks = np.empty((2, 2, 1000), np.float32)
    for part, block in zip(parts, blocks.reshape(4, 1000), strict=True):
        assert part
        part.fill(block, seed=7)
    own, strange = blocks.reshape(2, 2000)
    assert mine.check(own, 7, 1) is None
    strayed = mine.check(strange, 7, 1)
    assert strayed
    assert strayed.wrong_elements > 1000
    poison(strange)
    spoilt = other.check(strange, 7, 1)
    assert spoilt
    assert spoilt.rank == 2


def test_who_is_in_no_group_has_no_part_and_a_source_gets_nothing() -> None:
    outside, target, _, source = parts_of("send_recv", pair="3>1")
    assert outside is None
    assert source
    assert target
    assert (source.receives, target.receives, target.group_rank) == (False, True, 1)
