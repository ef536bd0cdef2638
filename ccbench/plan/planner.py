"""One strategy on one machine: its step, its memory, how well it uses the devices; and the fastest of all.

A search takes every layout that fits: sizes of axes, micro-batches, virtual stages, sharding, recomputation.
It is complete within its bounds: a candidate is left out of pricing only where its computing and bubble
alone, which nothing can shorten, take longer than the whole step of as many candidates as are asked for.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError, UsageError
from ccbench.groups import make_layout
from ccbench.model.cluster import Cluster
from ccbench.plan.communication import communications
from ccbench.plan.computing import (
    Efficiency,
    model_flops,
    optimizer_work,
    seconds_of,
    stage_work,
    step_flops,
    utilization,
)
from ccbench.plan.document import Plan, Wanted
from ccbench.plan.keys import DeviceKeys
from ccbench.plan.memory import Device, Memory, holdings, largest_memory, named_device, stage_order
from ccbench.plan.pricing import MeasuredPoints, Prices
from ccbench.plan.shape import ModelShape
from ccbench.plan.step import Computing, Line, Step, step_of
from ccbench.plan.strategy import RECOMPUTED, Strategy, check_strategy

MICRO_BATCHES = (1, 2, 4, 8, 16)
MOST_VIRTUAL_STAGES = 12
ZERO_STAGES = (0, 1, 2, 3)

BEST = 20
"""Layouts that a search tells of unless asked for more."""


@dataclass(frozen=True)
class Outcome:
    """A strategy's step on a machine.

    memory: of the fullest kind of stage. fits: whether the device holds it. tflops: floating point operations
    of the model, in 1e12 per second and device, attention counted in full; masked_tflops: without what a
    causal mask leaves out; hardware_tflops: with what is computed a second time. utilization: what tflops are
    of the peak (MFU). tokens_per_second: of all devices.
    """

    name: str
    strategy: Strategy
    step: Step
    memory: Memory
    fits: bool
    tflops: float
    masked_tflops: float
    hardware_tflops: float
    utilization: float
    tokens_per_second: float

    @property
    def ranks(self) -> int:
        """Devices."""
        return self.strategy.layout.ranks


@dataclass(frozen=True)
class Planner:
    """A model on a machine of so many devices; prices are kept from one strategy to the next."""

    shape: ModelShape
    cluster: Cluster
    device: Device
    dtype: str
    efficiency: Efficiency
    hide_pipeline: bool | None = None
    measured: MeasuredPoints | None = None
    prices: Prices = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prices", Prices(self.cluster, self.measured))

    def fits(self, memory: Memory) -> bool:
        """Whether a device holds it."""
        return memory.total_bytes <= self.device.memory_bytes

    def outcome(self, name: str, strategy: Strategy, hide_pipeline: bool | None = None) -> Outcome:
        """UsageError where shape, strategy and machine do not fit together.

        hide_pipeline: of this strategy alone, None: as of all.
        """
        hide = self.hide_pipeline if hide_pipeline is None else hide_pipeline
        lines = [
            Line(one, self.prices.price(strategy.layout, one)) for one in communications(self.shape, strategy)
        ]
        step = step_of(strategy, lines, self.computing(strategy), hide)
        memory = largest_memory(self.shape, strategy)
        ranks, seconds = strategy.layout.ranks, step.seconds
        flops, masked = (
            model_flops(self.shape, strategy.global_batch, strategy.sequence, share, strategy.capacity)
            for share in (1.0, 0.5)
        )
        return Outcome(
            name,
            strategy,
            step,
            memory,
            self.fits(memory),
            flops / seconds / ranks / 1e12,
            masked / seconds / ranks / 1e12,
            step_flops(self.shape, strategy) / seconds / ranks / 1e12,
            utilization(flops, seconds, ranks, self.device, self.dtype),
            strategy.global_batch * strategy.sequence / seconds,
        )

    def computing(self, strategy: Strategy) -> dict[str, Computing]:
        """By kind of stage."""
        found = {}
        for holding in holdings(self.shape, strategy):
            works = (*stage_work(self.shape, strategy, holding), optimizer_work(strategy, holding))
            found[holding.kind] = Computing(
                *(seconds_of(work, self.device, self.efficiency, self.dtype) for work in works)
            )
        return found


def device_of(cluster: Cluster, stated: DeviceKeys, dtype: str) -> Device:
    """The plan's device, or the machine's; UsageError where neither is known.

    Of an unknown device with stated rates the matrix products take all the time: its memory's rate is not
    known.
    """
    name = stated.name or str(cluster.node.gpus[0].attributes.get("model", ""))
    try:
        device = named_device(name)
    except UsageError:
        if stated.name or stated.teraflops is None or stated.memory is None:
            raise UsageError(
                f"device: how fast {name or 'a GPU without a name'} computes is not known; write "
                "'device: {teraflops: 312, memory: 80 GB}' or 'device: a100' into the plan"
            ) from None
        peak = ((dtype, stated.teraflops * 1e12),)
        return Device(name or "GPU", stated.memory, math.inf, peak, 1.0, "stated in the plan", "stated")
    return device.with_rates(stated.teraflops, stated.memory)


def planner_of(plan: Plan, cluster: Cluster, measured: MeasuredPoints | None = None) -> Planner:
    """For a plan's model on a machine. SuiteError where it is not known how fast its devices compute."""
    assert plan.shape is not None
    key = "device"
    try:
        device = device_of(cluster, plan.device, plan.dtype)
        key = "dtype"
        dtype = plan.dtype
        if not plan.dtype_stated and dtype not in dict(device.peak_flops):
            dtype = device.usual_dtype
        device.peak(dtype)
    except UsageError as problem:
        raise plan.origin.error((key,), str(problem).removeprefix("device: ")) from None
    return Planner(plan.shape, cluster, device, dtype, plan.efficiency, plan.hide_pipeline, measured)


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
        if not planner.fits(largest_memory(planner.shape, strategy)):
            continue
        fitting += 1
        waiting.append((least_seconds(strategy, planner.computing(strategy)), fitting, strategy))
    waiting.sort(key=lambda one: one[:2])
    kept: list[tuple[float, int, Outcome]] = []
    priced = 0
    for least, number, strategy in waiting:
        if len(kept) == most and least >= kept[-1][0]:
            break
        priced += 1
        try:
            outcome = planner.outcome(name_of(strategy), strategy)
        except (UsageError, MachineError):
            continue  # groups stand on nodes in a way that is not priced
        bisect.insort(kept, (outcome.step.seconds, number, outcome), key=lambda one: one[:2])
        del kept[most:]
    if not kept:
        problem = (
            f"no layout of {ranks} devices divides model and batch; choose a global_batch with more divisors "
            "or other nodes, or let a search keep to less"
            if not candidates
            else f"none of {candidates} layouts on {ranks} devices fits into "
            f"{planner.device.memory_bytes / 1e9:.0f} GB a device; take more nodes, or leave zero and "
            "recompute to the search"
        )
        raise UsageError(f"search: {problem}")
    return Searched(tuple(outcome for *_, outcome in kept), candidates, fitting, priced)


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
        # Fused attention computes scores again anyway: nothing is left for selective recomputation to do.
        fused = fixed.get("fused_attention", True)
        recomputed = tuple(one for one in RECOMPUTED if one != "selective" or not fused)
        for micro_batch in wanted.get(
            "micro_batch", tuple(size for size in MICRO_BATCHES if size <= per_rank)
        ):
            if per_rank % micro_batch:
                continue
            for chunks in _chunks(planner, wanted, layout.pp, per_rank // micro_batch):
                pipeline = "interleaved" if chunks > 1 else fixed.get("pipeline", "1f1b")
                if chunks == 1 and pipeline == "interleaved":
                    pipeline = "1f1b"
                for zero in wanted.get("zero", ZERO_STAGES if layout.dp * layout.cp > 1 else (0,)):
                    for recompute in wanted.get("recompute", recomputed):
                        yield Strategy(
                            layout,
                            **{
                                **fixed,
                                "pipeline": pipeline,
                                "micro_batch": micro_batch,
                                "virtual_stages": chunks,
                                "zero_stage": zero,
                                "recompute": recompute,
                            },
                        )


def layouts_of(
    planner: Planner, settings: Mapping[str, Any], wanted: Wanted, ranks: int
) -> Iterator[dict[str, int | str]]:
    """Sizes of tp, cp, ep, pp (dp fills the rest) that divide the model, the sequence, the batch and the
    ranks.
    """
    shape = planner.shape
    names = ("global_batch", "sequence", "sequence_parallel", "context_kind", "uneven_stages", "traffic")
    kept = {name: settings[name] for name in names if name in settings}
    divisors = _divisors(ranks)
    # Context parallelism is for sequences that one device could not hold; a search tries it on long ones.
    context = divisors if settings["sequence"] > 8192 else (1,)
    # A model has as many heads and layers as it has, however many devices there are.
    heads = tuple(one for one in divisors if shape.heads % one == 0)
    stages = tuple(one for one in divisors if one <= shape.layers)
    for tp in wanted.get("tp", heads):
        for cp in wanted.get("cp", context):
            for pp in wanted.get("pp", stages):
                if ranks % (tp * cp * pp) or settings["global_batch"] % (ranks // (tp * cp * pp)):
                    continue
                for ep in wanted.get("ep", divisors if shape.experts else (1,)):
                    sizes: dict[str, int | str] = {"tp": tp, "cp": cp, "pp": pp, "ep": ep}
                    # One expert's matrices are rarely split: the expert axis takes the tensor parallel ranks.
                    if shape.experts and ep > 1:
                        sizes["etp"] = 1
                    split = {"sequence_parallel": tp > 1, **kept}
                    try:
                        check_strategy(planner.shape, Strategy(make_layout(sizes, ranks), **split))
                    except UsageError:
                        continue
                    yield sizes


def _chunks(planner: Planner, wanted: Wanted, pp: int, micro_batches: int) -> list[int]:
    """Virtual stages that divide the layers, and whose schedule has whole rounds of micro-batches."""
    tried = wanted.get("virtual_stages", tuple(range(1, MOST_VIRTUAL_STAGES + 1)))
    whole_rounds = pp > 1 and micro_batches % pp == 0
    return [v for v in tried if v == 1 or (whole_rounds and planner.shape.layers % (pp * v) == 0)]


def _divisors(number: int) -> tuple[int, ...]:
    """In order; found up to the root, since devices may be written as millions of millions by a slip."""
    low = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*low, *(number // one for one in low)}))
