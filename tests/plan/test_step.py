"""One step's time: what of its communication shows, and that nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.groups import Layout
from ccbench.plan.communication import OPTIMIZER, PIPELINE, StepCommunication, communications
from ccbench.plan.memory import stage_order
from ccbench.plan.pipeline import pipeline_seconds
from ccbench.plan.shape import ModelShape, make_shape, named_shape
from ccbench.plan.step import (
    NOTHING,
    PREDICTED,
    Computing,
    Price,
    PricedLine,
    TrainingStep,
    step_of,
)
from ccbench.plan.strategy import Strategy

SHAPE = make_shape({"layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 32000})
MOE = replace(named_shape("mixtral-8x7b"), layers=8)
OVERLAPS = ("overlap_gradients", "overlap_parameters", "overlap_tensor", "overlap_experts")


@dataclass(frozen=True)
class ByRate:
    """Prices at one rate for every collective, with a latency."""

    bytes_per_second: float = 1e11
    latency_seconds: float = 1e-6

    def price(self, layout: Layout, communication: StepCommunication) -> Price:
        if communication.ranks < 2:
            return NOTHING
        seconds = self.latency_seconds + communication.size_bytes / self.bytes_per_second
        return Price(seconds, "the one link", PREDICTED, 1, 1)


def priced(
    strategy: Strategy, communications: Iterable[StepCommunication], prices: ByRate
) -> list[PricedLine]:
    return [PricedLine(one, prices.price(strategy.layout, one)) for one in communications]


def step(
    strategy: Strategy,
    prices: ByRate | None = None,
    forward: float = 0.01,
    shape: ModelShape = SHAPE,
) -> TrainingStep:
    computing = {
        kind: Computing(forward, 2 * forward, 1e-3) for kind in stage_order(strategy.layout.pp)
    }
    lines = priced(strategy, communications(shape, strategy), prices or ByRate())
    return step_of(strategy, lines, computing)


def of_axis(found: TrainingStep, *axes: str) -> list[float]:
    return [line.exposed_seconds for line in found.lines if line.communication.axis in axes]


def test_one_device_computes_and_nothing_else() -> None:
    found = step(Strategy(Layout(), 8, 512))
    assert found.lines == ()
    assert found.seconds == pytest.approx(8 * 0.03 + 1e-3)


def test_tensor_parallel_communication_is_waited_for_unless_it_is_overlapped() -> None:
    base = Strategy(Layout(tp=4), 8, 512)
    waited = step(base)
    assert waited.exposed_seconds == pytest.approx(
        sum(line.total_seconds for line in waited.lines)
    )
    hidden = step(replace(base, overlap_tensor=True))
    # What is not split by layers (embedding, loss) is waited for all the same.
    assert hidden.exposed_seconds < 0.2 * waited.exposed_seconds
    assert hidden.computing_seconds == waited.computing_seconds


def test_gradients_hide_behind_one_backward_pass_and_no_more() -> None:
    strategy = Strategy(Layout(dp=8), 64, 512, bucket_bytes=2**20)
    fast, slow = step(strategy), step(strategy, ByRate(1e9))
    assert sum(of_axis(fast, "dp")) < 0.05 * sum(line.total_seconds for line in fast.lines)
    total = sum(line.total_seconds for line in slow.lines)
    assert sum(of_axis(slow, "dp")) == pytest.approx(total - 0.02, rel=0.02)
    behind = step(replace(strategy, overlap_gradients=False))
    assert sum(of_axis(behind, "dp")) == pytest.approx(
        sum(line.total_seconds for line in behind.lines)
    )


def test_sharded_weights_are_waited_for_only_where_gathering_is_slower_than_computing() -> None:
    strategy = Strategy(Layout(dp=8), 64, 512, zero_stage=3)
    fast, slow = step(strategy), step(strategy, ByRate(1e9))
    share = fast.exposed_seconds / sum(line.total_seconds for line in fast.lines)
    assert share < 0.5
    assert slow.seconds > 0.9 * sum(line.total_seconds for line in slow.lines)
    kept = step(replace(strategy, reshard=False), ByRate(1e9))
    assert kept.seconds < slow.seconds


def test_gradients_of_stage_2_run_on_behind_the_next_micro_batch() -> None:
    base = Strategy(Layout(dp=2), 32, 512, zero_stage=2, bucket_bytes=2**20)
    one = step(base)
    dp = [line for line in one.lines if line.communication.phase != OPTIMIZER]
    assert sum(line.exposed_seconds for line in dp) < 0.1 * sum(
        line.total_seconds for line in dp
    )


def test_an_embedding_that_two_stages_share_is_summed_at_the_end() -> None:
    tied = replace(SHAPE, tied_embeddings=True)
    found = step(Strategy(Layout(pp=4), 16, 512), shape=tied)
    shared = [line for line in found.lines if "shared embedding" in line.communication.purpose]
    assert len(shared) == 1
    assert shared[0].exposed_seconds == shared[0].total_seconds


_strategies = st.tuples(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.integers(0, 3),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from(["none", "full"]),
    st.booleans(),
)


Drawn = tuple[int, int, int, int, int, int, int, int, bool, str, bool]


def drawn_strategy(drawn: Drawn) -> tuple[Strategy, ModelShape]:
    tp, cp, pp, dp, ep, zero, chunks, micro, moe, recompute, overlap = drawn
    ep = ep if moe and dp % ep == 0 else 1
    chunks = chunks if pp > 1 else 1
    strategy = Strategy(
        Layout(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep),
        dp * micro * pp * 2,
        512,
        micro,
        sequence_parallel=tp > 1,
        zero_stage=zero,
        recompute=recompute,
        pipeline="interleaved" if chunks > 1 else "1f1b",
        virtual_stages=chunks,
        overlap_gradients=overlap,
        overlap_parameters=overlap,
        overlap_tensor=overlap,
    )
    return strategy, MOE if moe else SHAPE


@given(_strategies, st.sampled_from([1e9, 1e11]))
def test_a_step_is_the_sum_of_its_parts_and_hides_only_what_there_is(
    drawn: Drawn, rate: float
) -> None:
    strategy, shape = drawn_strategy(drawn)
    zero = strategy.zero_stage
    found = step(strategy, ByRate(rate), shape=shape)
    turns = strategy.micro_batches
    assert found.computing_seconds == pytest.approx(turns * 0.03 + 1e-3)
    for line in found.lines:
        assert 0 <= line.exposed_seconds <= line.total_seconds * (1 + 1e-9)
        assert line.exposed_seconds + line.hidden_seconds == pytest.approx(line.total_seconds)
    # The pipeline's own closed form, and what comes after it.
    end = [
        line.exposed_seconds
        for line in found.lines
        if line.communication.phase == OPTIMIZER
        or (zero < 2 and line.communication.axis in (strategy.data_axis, "edp"))
    ]
    assert found.seconds == pytest.approx(pipeline_seconds(found.pipeline) + sum(end) + 1e-3)
    hops = [line for line in found.lines if line.communication.phase == PIPELINE]
    assert bool(hops) == (strategy.layout.pp > 1)


def test_gradients_do_not_hide_behind_waits_for_messages_on_the_same_links() -> None:
    strategy = Strategy(Layout(tp=2, dp=8), 64, 512, bucket_bytes=2**20)
    expected = communications(SHAPE, strategy)
    computing = {kind: Computing(1e-4, 2e-4) for kind in stage_order(strategy.layout.pp)}

    def exposed(across: bool) -> float:
        """Of gradients, all prices between nodes; tensor parallel messages between nodes too, or not."""

        class Placed(ByRate):
            def price(self, layout: Layout, communication: StepCommunication) -> Price:
                nodes = 2 if communication.axis == "dp" or across else 1
                return replace(super().price(layout, communication), nodes=nodes)

        return sum(
            of_axis(
                step_of(strategy, priced(strategy, expected, Placed(1e10)), computing), "dp"
            )
        )

    assert exposed(across=True) > exposed(across=False)


@given(_strategies, st.sampled_from([1e9, 1e10, 1e11]), st.floats(1.01, 4))
def test_faster_computing_and_faster_links_never_make_a_step_longer(
    drawn: Drawn, rate: float, faster: float
) -> None:
    strategy, shape = drawn_strategy(drawn)
    base = step(strategy, ByRate(rate), shape=shape).seconds * (1 + 1e-9)
    assert step(strategy, ByRate(rate * faster), shape=shape).seconds <= base
    assert step(strategy, ByRate(rate), 0.01 / faster, shape).seconds <= base


@given(_strategies, st.sampled_from([1e9, 1e10, 1e11]), st.sampled_from(OVERLAPS))
def test_what_may_hide_never_makes_a_step_longer(
    drawn: Drawn, rate: float, overlap: str
) -> None:
    strategy, shape = drawn_strategy(drawn)
    waiting: dict[str, Any] = {overlap: False}
    hiding: dict[str, Any] = {overlap: True}
    waited, hidden = (
        step(replace(strategy, **flags), ByRate(rate), shape=shape).seconds
        for flags in (waiting, hiding)
    )
    assert hidden <= waited * (1 + 1e-9)


@given(_strategies, st.sampled_from([1e9, 1e10, 1e11]))
def test_a_step_is_no_shorter_than_the_one_link_of_all_its_messages_is_busy(
    drawn: Drawn, rate: float
) -> None:
    strategy, shape = drawn_strategy(drawn)
    alone = replace(
        strategy, layout=replace(strategy.layout, pp=1), pipeline="1f1b", virtual_stages=1
    )
    found = step(alone, ByRate(rate), shape=shape)
    busy = sum(line.total_seconds for line in found.lines)
    assert found.seconds >= busy * (1 - 1e-9)


def test_gradients_that_are_kept_are_sent_once_as_those_of_stage_1_are() -> None:
    one = Strategy(Layout(dp=8), 128, 512, zero_stage=1, bucket_bytes=2**20)
    kept = replace(one, zero_stage=2, keep_gradients=True)
    for rate in (1e9, 1e11):
        assert step(kept, ByRate(rate)).seconds == pytest.approx(
            step(one, ByRate(rate)).seconds
        )


@pytest.mark.parametrize("reshard", [True, False])
def test_gradients_that_are_kept_beside_sharded_weights_never_cost_more_than_those_sent_each_time(
    reshard: bool,
) -> None:
    # 16 micro-batches of 9 units: fewer gradients are sent than there are micro-batches.
    each = Strategy(Layout(dp=8), 128, 512, zero_stage=3, reshard=reshard)
    for rate in (1e8, 1e9):
        kept = step(replace(each, keep_gradients=True), ByRate(rate))
        assert kept.seconds < step(each, ByRate(rate)).seconds
        assert kept.seconds >= sum(line.total_seconds for line in kept.lines) * (1 - 1e-9)
