"""One strategy on one machine: its step, its memory, how well it uses the devices; and the fastest of all.

A search takes every layout that fits: sizes of axes, micro-batches, virtual stages, sharding, recomputation.
It is complete within its bounds: a candidate is left out of pricing only where its computing and bubble
alone, which nothing can shorten, take longer than the whole step of as many candidates as are asked for.

A plan worked out: its layouts or the best of all, and the same on more and fewer devices.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ccbench.errors import MachineError, UsageError
from ccbench.groups import make_layout
from ccbench.model.cluster import Cluster, open_cluster
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
from ccbench.plan.document import Choice, DeviceKeys, Plan, Wanted
from ccbench.plan.memory import Device, Memory, holdings, largest_memory, named_device, stage_order
from ccbench.plan.pipeline import Bucketed, textbook
from ccbench.plan.shape import ModelShape
from ccbench.plan.step import Computing, Line, MeasuredPoints, Prices, Step, step_of
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


SCALES = tuple(2**power for power in range(3, 18))
"""8 to 131,072 devices."""


SETTING_OF = {
    "micro_batch": "micro_batch",
    "virtual_stages": "virtual_stages",
    "zero": "zero_stage",
    "recompute": "recompute",
}
"""Settings that a search varies where a plan does not state them, by their names in ``search``."""


@dataclass(frozen=True)
class Scaled:
    """The plan on so many devices: the outcome, or why there is none."""

    ranks: int
    outcome: Outcome | None
    reason: str = ""


@dataclass(frozen=True)
class Planned:
    """Everything a plan comes to. outcomes: the layouts that were named, in their order, or of a search the
    fastest first. refused: layouts that do not go, and why. textbook: of stated times, which need no machine.
    with_measured: whether measured points were at hand, used or not."""

    plan: Plan
    cluster: Cluster | None
    device: Device | None
    outcomes: tuple[Outcome, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    searched: Searched | None = None
    scaled: tuple[Scaled, ...] = ()
    textbook: tuple[Bucketed, ...] = ()
    with_measured: bool = False

    @property
    def where(self) -> tuple[ModelShape, Cluster, Device]:
        """Model, machine and device; UsageError for a plan of stated times, which has none."""
        shape = self.plan.shape
        if shape is None or self.cluster is None or self.device is None:
            raise UsageError(f"{self.plan.name}: a plan of stated times has no model and no machine")
        return shape, self.cluster, self.device


@dataclass(frozen=True)
class Asked:
    """What the command line adds to a plan. most: layouts of a search to tell."""

    machine: str | None = None
    nodes: int | None = None
    network: str | None = None
    search: bool = False
    scale: bool = False
    measured: MeasuredPoints | None = None
    most: int = BEST


def plan_out(plan: Plan, asked: Asked) -> Planned:
    """Work out ``plan``. SuiteError, UsageError and MachineError for what cannot be."""
    if plan.gradients is not None:
        _check_of_times(plan, asked)
        return Planned(plan, None, None, textbook=textbook(plan.gradients))
    machine = asked.machine or plan.machine
    if machine is None:
        raise plan.origin.error(
            ("machine",), "is missing; write 'machine: hgx-h100' into the plan, or give --machine"
        )
    network = asked.network or plan.network
    cluster = _opened(plan, asked, machine, network)
    planner = planner_of(plan, cluster, asked.measured)
    plan = replace(plan, dtype=planner.dtype)
    if asked.search or not plan.choices:
        _check_searched(plan)
        found = _found(plan, planner, asked)
        planned = Planned(plan, cluster, planner.device, found.best, searched=found)
    else:
        planned = _named(plan, planner)
    planned = replace(planned, with_measured=asked.measured is not None)
    if asked.scale:
        wanted = _wanted(plan, asked.search)
        planned = replace(planned, scaled=_scaled(planned, planner, wanted, machine, network))
    return planned


def _check_of_times(plan: Plan, asked: Asked) -> None:
    """Nothing is asked of a machine that stated times do without."""
    given = [
        name
        for name in ("machine", "nodes", "network", "search", "scale", "measured")
        if getattr(asked, name)
    ]
    if given:
        options = ", ".join(f"--{name}" for name in given)
        raise plan.origin.error(("gradients",), f"stated times need no machine; leave out {options}")


def _check_searched(plan: Plan) -> None:
    """A search needs for all layouts what a plan may say for each of several."""
    for key in ("global_batch", "sequence"):
        if key not in plan.settings:
            raise plan.origin.error(
                (key,), f"stands in single layouts only; a search needs one: write '{key}:' above the layouts"
            )


def _opened(plan: Plan, asked: Asked, machine: str, network: str | None) -> Cluster:
    """The plan's machine; what is wrong with it is told with the line that says it."""
    try:
        return open_cluster(machine, asked.nodes or plan.nodes, network)
    except MachineError as problem:
        key = "network" if str(problem).startswith("network:") else "machine"
        if getattr(asked, key) is not None:
            raise
        raise plan.origin.error((key,), str(problem).removeprefix("network: ")) from None


def _plain(problem: Exception) -> str:
    """What is wrong with a layout, without the words that its place in the file says already."""
    return str(problem).removeprefix("layout: ").removeprefix("strategy: ").removeprefix("search: ")


def _found(plan: Plan, planner: Planner, asked: Asked) -> Searched:
    """What a search of the plan finds; where that is nothing, told with the line that asks for it."""
    try:
        return search(planner, plan.settings, _wanted(plan, asked.search), planner.cluster.ranks, asked.most)
    except UsageError as problem:
        asks = [key for key in ("search", "layout", "layouts") if (key,) in plan.origin.lines]
        raise plan.origin.error((asks[0] if asks else "search",), _plain(problem)) from None


def _wanted(plan: Plan, everything: bool) -> Wanted:
    """What a search keeps to: what ``search`` says, else what the plan says for all layouts.

    everything: what ``search`` does not name is free, whatever the plan says.
    """
    values = dict(plan.wanted or {})
    if not everything:
        for name, setting in SETTING_OF.items():
            if setting in plan.settings and name not in values:
                values[name] = (plan.settings[setting],)
    return values


def _named(plan: Plan, planner: Planner) -> Planned:
    outcomes: list[Outcome] = []
    refused: dict[str, str] = {}
    for choice in plan.choices:
        try:
            strategy = choice.strategy(planner.cluster.ranks)
            outcomes.append(planner.outcome(choice.name, strategy, choice.hide_pipeline))
        except (UsageError, MachineError) as problem:  # noqa: PERF203  # one layout may fail, the rest go on
            if len(plan.choices) == 1:
                raise plan.origin.error(choice.spot, _plain(problem)) from None
            refused[choice.name] = _plain(problem)
    if not outcomes:
        first, reason = next(iter(refused.items()))
        raise plan.origin.error(("layouts",), f"none can be: {first}: {reason}")
    return Planned(plan, planner.cluster, planner.device, tuple(outcomes), refused)


def _scaled(
    planned: Planned, planner: Planner, wanted: Wanted, machine: str, network: str | None
) -> tuple[Scaled, ...]:
    """The first layout, or the best of each size where layouts are searched, on 8 to 131,072 devices."""
    found = []
    for ranks in SCALES:
        nodes = -(-ranks // len(planner.cluster.node.gpus))
        try:
            if nodes > 1 and network is None:
                raise UsageError(
                    f"{ranks} devices are several {machine}, which no network joins; give --network"
                )
            cluster = open_cluster(machine, nodes, network if nodes > 1 else None, ranks)
            outcome = _at(planned, replace(planner, cluster=cluster), wanted, ranks)
        except (UsageError, MachineError) as problem:  # one size may fail, the rest go on
            found.append(Scaled(ranks, None, _plain(problem)))
        else:
            found.append(Scaled(ranks, outcome))
    return tuple(found)


def _at(planned: Planned, planner: Planner, wanted: Wanted, ranks: int) -> Outcome:
    plan, base = planned.plan, planned.outcomes[0]
    if planned.searched is not None:
        settings = dict(plan.settings)
        settings["global_batch"] = _batch(plan, settings["global_batch"], ranks, base.ranks)
        return search(planner, settings, wanted, ranks, 1).best[0]
    choice = next(one for one in plan.choices if one.name == base.name)
    layout = base.strategy.layout
    other = layout.ranks // layout.dp
    if ranks % other:
        raise UsageError(f"{ranks} devices hold no whole copy of the model, which takes {other}")
    settings = dict(choice.settings)
    settings["global_batch"] = _batch(plan, settings["global_batch"], ranks, base.ranks)
    axes: dict[str, int | str] = {name: size for name, size in choice.axes.items() if name != "dp"}
    resized = Choice(choice.name, axes, settings, choice.spot)
    outcome = planner.outcome(choice.name, resized.strategy(ranks), choice.hide_pipeline)
    if not outcome.fits:
        raise UsageError(f"{outcome.memory.total_bytes / 1e9:.0f} GB a device are needed")
    return outcome


def _batch(plan: Plan, global_batch: int, ranks: int, base: int) -> int:
    """Weak scaling: as many sequences for each device as the plan has; strong: as many for all."""
    if plan.scaling == "strong":
        return global_batch
    wanted, rest = divmod(global_batch * ranks, base)
    if rest or wanted < 1:
        raise UsageError(f"{global_batch} sequences on {base} devices are no whole number on {ranks}")
    return wanted
