"""Every layout that fits: sizes of axes, micro-batches, virtual stages, sharding, recomputation; the fastest
first.

Complete within its bounds: a candidate is left out of pricing only where its computing and bubble alone,
which nothing can shorten, take longer than the whole step of as many candidates as are asked for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError, UsageError
from ccbench.groups import make_layout
from ccbench.plan.document import Wanted
from ccbench.plan.planner import Outcome, Planner
from ccbench.plan.step import Computing, stage_order
from ccbench.plan.strategy import RECOMPUTED, Strategy, check_strategy

MOST_MICRO_BATCH = 16
MOST_VIRTUAL_STAGES = 12
ZERO_STAGES = (0, 1, 2, 3)

BEST = 20
"""Layouts that a search tells of unless asked for more."""


@dataclass(frozen=True)
class Searched:
    """What a search found, the fastest first.

    candidates: combinations that divide. fitting: of them, those that memory holds. priced: of these, those
    whose communication had to be priced to know the best.
    """

    best: tuple[Outcome, ...]
    candidates: int
    fitting: int
    priced: int


@dataclass(order=True)
class _Found:
    """On a heap, the slowest first."""

    order: float
    number: int
    outcome: Outcome = field(compare=False)


def search(
    planner: Planner, settings: Mapping[str, Any], wanted: Wanted, ranks: int, most: int = BEST
) -> Searched:
    """The ``most`` fastest ways to train on ``ranks`` devices. UsageError where none fits.

    settings: of a Strategy, what is not searched. wanted: what to keep to; see ``choices``.
    """
    candidates = fitting = 0
    waiting: list[tuple[float, int, Strategy]] = []
    for strategy in strategies(planner, settings, wanted, ranks):
        candidates += 1
        if not planner.fits(planner.memory(strategy)):
            continue
        fitting += 1
        waiting.append((least_seconds(strategy, planner.computing(strategy)), fitting, strategy))
    waiting.sort(key=lambda one: one[:2])
    kept: list[_Found] = []
    priced = 0
    for least, number, strategy in waiting:
        if len(kept) == most and least >= -kept[0].order:
            break
        outcome = _priced(planner, strategy)
        priced += 1
        if outcome is not None:
            heapq.heappush(kept, _Found(-outcome.step.seconds, -number, outcome))
            if len(kept) > most:
                heapq.heappop(kept)
    if not kept:
        raise UsageError(_nothing(planner, candidates, ranks))
    best = tuple(one.outcome for one in sorted(kept, reverse=True))
    return Searched(best, candidates, fitting, priced)


def _nothing(planner: Planner, candidates: int, ranks: int) -> str:
    memory = planner.device.memory_bytes / 1e9
    if not candidates:
        return (
            f"search: no layout of {ranks} devices divides model and batch; choose a global_batch with "
            "more divisors or other nodes, or let a search keep to less"
        )
    return (
        f"search: none of {candidates} layouts on {ranks} devices fits into {memory:.0f} GB a device; take "
        "more nodes, or leave zero and recompute to the search"
    )


def _priced(planner: Planner, strategy: Strategy) -> Outcome | None:
    """None where groups stand on nodes in a way that is not priced."""
    try:
        return planner.outcome(name_of(strategy), strategy)
    except (UsageError, MachineError):
        return None


def least_seconds(strategy: Strategy, computing: Mapping[str, Computing]) -> float:
    """Computing and bubble of a step, communication left out."""
    by_stage = [
        computing[kind].forward_seconds + computing[kind].backward_seconds
        for kind in stage_order(strategy.layout.pp)
    ]
    slowest = max(by_stage)
    return strategy.micro_batches * slowest + (sum(by_stage) - slowest) / strategy.virtual_stages


def name_of(strategy: Strategy) -> str:
    """What a search varies, in one word for each: ``tp8 pp16 dp8 mb2 v3 zero1 selective``."""
    layout = strategy.layout
    words = [
        f"{axis}{getattr(layout, axis)}" for axis in ("tp", "cp", "ep", "pp", "dp") if layout.size(axis) > 1
    ]
    words += [f"mb{strategy.micro_batch}"]
    words += [f"v{strategy.virtual_stages}"] if strategy.virtual_stages > 1 else []
    words += [f"zero{strategy.zero_stage}"] if strategy.zero_stage else []
    words += [strategy.recompute] if strategy.recompute != "none" else []
    return " ".join(words)


def strategies(
    planner: Planner, settings: Mapping[str, Any], wanted: Wanted, ranks: int
) -> Iterator[Strategy]:
    """All that divide: layouts by ``layouts_of``, then micro-batches, virtual stages, sharding,
    recomputation.

    Where sequence parallelism is not stated, it goes with tensor parallelism, as Megatron-LM recommends.
    """
    for sizes in layouts_of(planner, settings, wanted, ranks):
        layout = make_layout(sizes, ranks)
        fixed = {"sequence_parallel": layout.tp > 1, **settings}
        per_rank = fixed["global_batch"] // layout.dp
        for micro_batch in choices(wanted, "micro_batch", _powers(min(MOST_MICRO_BATCH, per_rank))):
            if per_rank % micro_batch:
                continue
            for chunks in _chunks(planner, wanted, layout.pp, per_rank // micro_batch):
                pipeline = {"pipeline": "interleaved" if chunks > 1 else fixed.get("pipeline", "1f1b")}
                if chunks == 1 and pipeline["pipeline"] == "interleaved":
                    pipeline = {"pipeline": "1f1b"}
                for zero in choices(wanted, "zero", ZERO_STAGES if layout.dp * layout.cp > 1 else (0,)):
                    for recompute in choices(wanted, "recompute", _recomputed(fixed)):
                        yield Strategy(
                            layout,
                            **{
                                **fixed,
                                **pipeline,
                                "micro_batch": micro_batch,
                                "virtual_stages": chunks,
                                "zero_stage": zero,
                                "recompute": recompute,
                            },
                        )


def _recomputed(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Fused attention computes scores again anyway: nothing is left for selective recomputation to do."""
    fused = settings.get("fused_attention", True)
    return tuple(one for one in RECOMPUTED if one != "selective" or not fused)


def layouts_of(
    planner: Planner, settings: Mapping[str, Any], wanted: Wanted, ranks: int
) -> Iterator[dict[str, int | str]]:
    """Sizes of tp, cp, ep, pp (dp fills the rest) that divide the model, the sequence, the batch and the
    ranks.
    """
    shape = planner.shape
    divisors = _divisors(ranks)
    # Context parallelism is for sequences that one device could not hold; a search tries it on long ones.
    context = divisors if settings["sequence"] > 8192 else (1,)
    # A model has as many heads and layers as it has, however many devices there are.
    heads = tuple(one for one in divisors if shape.heads % one == 0)
    stages = tuple(one for one in divisors if one <= shape.layers)
    for tp in choices(wanted, "tp", heads):
        for cp in choices(wanted, "cp", context):
            for pp in choices(wanted, "pp", stages):
                if ranks % (tp * cp * pp) or settings["global_batch"] % (ranks // (tp * cp * pp)):
                    continue
                for ep in choices(wanted, "ep", divisors if shape.experts else (1,)):
                    sizes: dict[str, int | str] = {"tp": tp, "cp": cp, "pp": pp, "ep": ep}
                    # One expert's matrices are rarely split: the expert axis takes the tensor parallel ranks.
                    if shape.experts and ep > 1:
                        sizes["etp"] = 1
                    if _divides(planner, settings, sizes, ranks):
                        yield sizes


def _divides(planner: Planner, settings: Mapping[str, Any], sizes: dict[str, int | str], ranks: int) -> bool:
    layout_only = {key: settings[key] for key in ("global_batch", "sequence") if key in settings}
    split = {"sequence_parallel": int(sizes["tp"]) > 1}
    kept = {
        key: settings[key]
        for key in ("sequence_parallel", "context_kind", "uneven_stages", "traffic")
        if key in settings
    }
    try:
        strategy = Strategy(make_layout(sizes, ranks), **{**split, **layout_only, **kept})
        check_strategy(planner.shape, strategy)
    except UsageError:
        return False
    return True


def _chunks(planner: Planner, wanted: Wanted, pp: int, micro_batches: int) -> list[int]:
    """Virtual stages that divide the layers, and whose schedule has whole rounds of micro-batches."""
    tried = choices(wanted, "virtual_stages", tuple(range(1, MOST_VIRTUAL_STAGES + 1)))
    whole_rounds = pp > 1 and micro_batches % pp == 0
    return [v for v in tried if v == 1 or (whole_rounds and planner.shape.layers % (pp * v) == 0)]


def choices(wanted: Wanted, name: str, usual: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the plan keeps to, or all."""
    return wanted.values.get(name, usual)


def _powers(most: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(max(most, 1).bit_length()) if 2**power <= most)


def _divisors(number: int) -> tuple[int, ...]:
    """In order; found up to the root, since devices may be written as millions of millions by a slip."""
    low = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*low, *(number // one for one in low)}))
