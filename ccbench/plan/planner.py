"""A plan worked out: strategies on a machine, the fastest of all, and the same on more and fewer devices.

A search takes every layout that fits: sizes of axes, micro-batches, virtual stages, sharding, recomputation.
It is complete within its bounds: a candidate is left out of pricing only where its computing and bubble
alone, which nothing can shorten, take longer than the whole step of as many candidates as are asked for.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
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
from ccbench.plan.document import DeviceKeys, PlanChoice, SearchValues, TrainingPlan
from ccbench.plan.memory import (
    Accelerator,
    StageMemory,
    holdings,
    largest_memory,
    named_device,
    stage_order,
)
from ccbench.plan.pipeline import Bucketed, textbook
from ccbench.plan.shape import ModelShape
from ccbench.plan.step import (
    ClusterPrices,
    Computing,
    MeasuredPoints,
    PricedLine,
    TrainingStep,
    step_of,
)
from ccbench.plan.strategy import RECOMPUTED, Strategy, check_strategy

MICRO_BATCHES = (1, 2, 4, 8, 16)
MOST_VIRTUAL_STAGES = 12
ZERO_STAGES = (0, 1, 2, 3)

BEST = 20
"""Layouts that a search tells of unless asked for more."""

SCALES = tuple(2**power for power in range(3, 18))
"""8 to 131,072 devices."""


@dataclass(frozen=True)
class StrategyOutcome:
    """A strategy's step on a machine.

    memory: of the fullest kind of stage. fits: whether the device holds it. tflops: floating point operations
    of the model, in 1e12 per second and device, attention counted in full; masked_tflops: without what a
    causal mask leaves out; hardware_tflops: with what is computed a second time. utilization: what tflops are
    of the peak (MFU). tokens_per_second: of all devices.
    """

    name: str
    strategy: Strategy
    step: TrainingStep
    memory: StageMemory
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
    device: Accelerator
    dtype: str
    efficiency: Efficiency
    hide_pipeline: bool | None = None
    measured: MeasuredPoints | None = None
    prices: ClusterPrices = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prices", ClusterPrices(self.cluster, self.measured))

    def fits(self, memory: StageMemory) -> bool:
        """True if a device holds it."""
        return memory.total_bytes <= self.device.memory_bytes

    def outcome(
        self, name: str, strategy: Strategy, hide_pipeline: bool | None = None
    ) -> StrategyOutcome:
        """UsageError where shape, strategy and machine do not fit together.

        hide_pipeline: of this strategy alone, None: as of all.
        """
        hide = self.hide_pipeline if hide_pipeline is None else hide_pipeline
        lines = [
            PricedLine(communication, self.prices.price(strategy.layout, communication))
            for communication in communications(self.shape, strategy)
        ]
        step = step_of(strategy, lines, self.computing(strategy), hide)
        memory = largest_memory(self.shape, strategy)
        batch, sequence = strategy.global_batch, strategy.sequence
        flops, masked = (
            model_flops(self.shape, batch, sequence, share, strategy.capacity)
            for share in (1.0, 0.5)
        )
        ranks, seconds = strategy.layout.ranks, step.seconds
        return StrategyOutcome(
            name,
            strategy,
            step,
            memory,
            self.fits(memory),
            tflops=flops / seconds / ranks / 1e12,
            masked_tflops=masked / seconds / ranks / 1e12,
            hardware_tflops=step_flops(self.shape, strategy) / seconds / ranks / 1e12,
            utilization=utilization(flops, seconds, ranks, self.device, self.dtype),
            tokens_per_second=batch * sequence / seconds,
        )

    def computing(self, strategy: Strategy) -> dict[str, Computing]:
        """By kind of stage."""
        by_kind = {}
        for holding in holdings(self.shape, strategy):
            works = (
                *stage_work(self.shape, strategy, holding),
                optimizer_work(strategy, holding),
            )
            by_kind[holding.kind] = Computing(
                *(seconds_of(work, self.device, self.efficiency, self.dtype) for work in works)
            )
        return by_kind


def device_of(cluster: Cluster, stated: DeviceKeys, dtype: str) -> Accelerator:
    """The plan's device, or the machine's; UsageError where neither is known."""
    name = stated.name or str(cluster.node.gpus[0].attributes.get("model", ""))
    try:
        device = named_device(name)
    except UsageError:
        if stated.name or stated.teraflops is None or stated.memory is None:
            raise UsageError(
                f"device: how fast {name or 'a GPU without a name'} computes is not known; write "
                "'device: {teraflops: 312, memory: 80 GB}' or 'device: a100' into the plan"
            ) from None
        # Its memory's rate is not known: matrix products take all the time.
        peak = ((dtype, stated.teraflops * 1e12),)
        return Accelerator(
            name or "GPU", stated.memory, math.inf, peak, 1.0, "stated in the plan", "stated"
        )
    return device.with_rates(stated.teraflops, stated.memory)


def planner_of(
    plan: TrainingPlan, cluster: Cluster, measured: MeasuredPoints | None = None
) -> Planner:
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
    return Planner(
        plan.shape, cluster, device, dtype, plan.efficiency, plan.hide_pipeline, measured
    )


Report = Callable[[str], None]


def _ignored(text: str) -> None:
    """Nobody reads it."""


def _of_scale(report: Report, ranks: int) -> Report:
    return lambda text: report(f"{ranks:,} devices: {text}")


@dataclass(frozen=True)
class Searched:
    """The findings of a search, the fastest first.

    candidates: combinations that divide. fitting: of them, those that memory holds. priced: of these, those
    whose communication had to be priced to know the best.
    """

    best: tuple[StrategyOutcome, ...]
    candidates: int
    fitting: int
    priced: int


def search(
    planner: Planner,
    settings: Mapping[str, Any],
    values: SearchValues,
    ranks: int,
    most: int = BEST,
    report: Report = _ignored,
) -> Searched:
    """The ``most`` fastest ways to train on ``ranks`` devices. UsageError where none fits.

    settings: of a Strategy, what is not searched. values: what to keep to; see ``strategies``. report: see
    PlanOptions.
    """
    candidates = fitting = 0
    waiting: list[tuple[float, int, Strategy]] = []
    for strategy in strategies(planner, settings, values, ranks):
        candidates += 1
        report(f"{candidates:,} combinations, {fitting:,} fit into memory")
        if planner.fits(largest_memory(planner.shape, strategy)):
            fitting += 1
            waiting.append(
                (least_seconds(strategy, planner.computing(strategy)), fitting, strategy)
            )
    waiting.sort(key=lambda candidate: candidate[:2])
    kept: list[tuple[float, int, StrategyOutcome]] = []
    priced = 0
    for least, number, strategy in waiting:
        # What computing and bubble alone make slower than the slowest that is told cannot be better.
        if len(kept) == most and least >= kept[-1][0]:
            break
        priced += 1
        report(f"{priced:,} of {fitting:,} layouts priced")
        try:
            outcome = planner.outcome(name_of(strategy), strategy)
        except (UsageError, MachineError):
            continue  # groups stand on nodes in a way that is not priced
        bisect.insort(
            kept, (outcome.step.seconds, number, outcome), key=lambda ranked: ranked[:2]
        )
        del kept[most:]
    if not kept and not candidates:
        raise UsageError(
            f"search: no layout of {ranks} devices divides model and batch; choose a global_batch with more "
            "divisors or other nodes, or restrict the search less"
        )
    if not kept:
        raise UsageError(
            f"search: none of {candidates} layouts on {ranks} devices fits into "
            f"{planner.device.memory_bytes / 1e9:.0f} GB a device; take more nodes, or leave zero and "
            "recompute to the search"
        )
    return Searched(tuple(outcome for *_, outcome in kept), candidates, fitting, priced)


def least_seconds(strategy: Strategy, computing: Mapping[str, Computing]) -> float:
    """Computing and bubble of a step, communication left out."""
    by_stage = [
        computing[kind].forward_seconds + computing[kind].backward_seconds
        for kind in stage_order(strategy.layout.pp)
    ]
    slowest = max(by_stage)
    return (
        strategy.micro_batches * slowest + (sum(by_stage) - slowest) / strategy.virtual_stages
    )


def name_of(strategy: Strategy) -> str:
    """The settings that a search varies, in one word for each: ``tp8 pp16 dp8 mb2 v3 zero1 selective``."""
    layout = strategy.layout
    words = [
        f"{axis}{getattr(layout, axis)}"
        for axis in ("tp", "cp", "ep", "pp", "dp")
        if layout.size(axis) > 1
    ]
    words += [f"mb{strategy.micro_batch}"]
    words += [f"v{strategy.virtual_stages}"] if strategy.virtual_stages > 1 else []
    words += [f"zero{strategy.zero_stage}"] if strategy.zero_stage else []
    words += [strategy.recompute] if strategy.recompute != "none" else []
    return " ".join(words)


def strategies(
    planner: Planner, settings: Mapping[str, Any], values: SearchValues, ranks: int
) -> Iterator[Strategy]:
    """All that divide: layouts, then micro-batches, virtual stages, sharding, recomputation.

    Where sequence parallelism is not stated, it goes with tensor parallelism, as Megatron-LM recommends.
    """
    for sizes in layouts_of(planner, settings, values, ranks):
        layout = make_layout(sizes, ranks)
        fixed = {"sequence_parallel": layout.tp > 1, **settings}
        per_rank = fixed["global_batch"] // layout.dp
        # Fused attention computes scores again anyway: nothing is left for selective recomputation to do.
        fused = fixed.get("fused_attention", True)
        recomputed = tuple(
            recompute_mode
            for recompute_mode in RECOMPUTED
            if recompute_mode != "selective" or not fused
        )
        zeros = ZERO_STAGES if layout.dp * layout.cp > 1 else (0,)
        for micro_batch in values.get(
            "micro_batch", [size for size in MICRO_BATCHES if size <= per_rank]
        ):
            if per_rank % micro_batch:
                continue
            # Virtual stages must divide the layers, and their schedule have whole rounds of micro-batches.
            whole_rounds = layout.pp > 1 and per_rank // micro_batch % layout.pp == 0
            for chunks in values.get("virtual_stages", range(1, MOST_VIRTUAL_STAGES + 1)):
                if chunks > 1 and not (
                    whole_rounds and planner.shape.layers % (layout.pp * chunks) == 0
                ):
                    continue
                pipeline = "interleaved" if chunks > 1 else fixed.get("pipeline", "1f1b")
                if chunks == 1 and pipeline == "interleaved":
                    pipeline = "1f1b"
                varied = {
                    "pipeline": pipeline,
                    "micro_batch": micro_batch,
                    "virtual_stages": chunks,
                }
                for zero, recompute in product(
                    values.get("zero", zeros), values.get("recompute", recomputed)
                ):
                    own = {"zero_stage": zero, "recompute": recompute}
                    yield Strategy(layout, **{**fixed, **varied, **own})


def layouts_of(
    planner: Planner, settings: Mapping[str, Any], values: SearchValues, ranks: int
) -> Iterator[dict[str, int | str]]:
    """Sizes of tp, cp, ep, pp (dp is the rest) that divide model, sequence, batch and ranks."""
    shape = planner.shape
    names = (
        "global_batch",
        "sequence",
        "sequence_parallel",
        "context_kind",
        "uneven_stages",
        "traffic",
    )
    kept = {name: settings[name] for name in names if name in settings}
    # Found up to the root, since devices may be written as millions of millions by a slip.
    low = [divisor for divisor in range(1, math.isqrt(ranks) + 1) if ranks % divisor == 0]
    divisors = tuple(sorted({*low, *(ranks // divisor for divisor in low)}))
    # Context parallelism is for sequences that one device could not hold; a search tries it on long ones.
    context = divisors if settings["sequence"] > 8192 else (1,)
    # A model has as many heads and layers as it has, however many devices there are.
    heads = tuple(divisor for divisor in divisors if shape.heads % divisor == 0)
    stages = tuple(divisor for divisor in divisors if divisor <= shape.layers)
    for tp, cp, pp in product(
        values.get("tp", heads), values.get("cp", context), values.get("pp", stages)
    ):
        if ranks % (tp * cp * pp) or settings["global_batch"] % (ranks // (tp * cp * pp)):
            continue
        for ep in values.get("ep", divisors if shape.experts else (1,)):
            sizes: dict[str, int | str] = {"tp": tp, "cp": cp, "pp": pp, "ep": ep}
            # One expert's matrices are rarely split: the expert axis takes the tensor parallel ranks.
            if shape.experts and ep > 1:
                sizes["etp"] = 1
            split = {"sequence_parallel": tp > 1, **kept}
            try:
                check_strategy(shape, Strategy(make_layout(sizes, ranks), **split))
            except UsageError:
                continue
            yield sizes


# -- a plan -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaled:
    """The plan on so many devices: the outcome, or why there is none."""

    ranks: int
    outcome: StrategyOutcome | None
    reason: str = ""


@dataclass(frozen=True)
class Planned:
    """Results of a plan. outcomes: the layouts that were named, in their order, or of a search the
    fastest first. refused: layouts that do not go, and why. textbook: of stated times, which need no machine.
    with_measured: whether measured points were at hand, used or not."""

    plan: TrainingPlan
    cluster: Cluster | None
    device: Accelerator | None
    outcomes: tuple[StrategyOutcome, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    searched: Searched | None = None
    scaled: tuple[Scaled, ...] = ()
    textbook: tuple[Bucketed, ...] = ()
    with_measured: bool = False

    @property
    def where(self) -> tuple[ModelShape, Cluster, Accelerator]:
        """Model, machine and device; UsageError for a plan of stated times, which has none."""
        shape = self.plan.shape
        if shape is None or self.cluster is None or self.device is None:
            raise UsageError(
                f"{self.plan.name}: a plan of stated times has no model and no machine"
            )
        return shape, self.cluster, self.device


@dataclass(frozen=True)
class PlanOptions:
    """Options of the command line beside a plan.

    most: layouts of a search to list. report: is called with what is being priced, some thousand times.
    """

    machine: str | None = None
    nodes: int | None = None
    network: str | None = None
    search: bool = False
    scale: bool = False
    measured: MeasuredPoints | None = None
    most: int = BEST
    report: Report = _ignored


def plan_out(plan: TrainingPlan, options: PlanOptions) -> Planned:
    """Work out ``plan``. SuiteError, UsageError and MachineError for what cannot be."""
    if plan.gradients is not None:
        # Nothing is asked of a machine that stated times do without.
        names = ("machine", "nodes", "network", "search", "scale", "measured")
        if superfluous := [f"--{name}" for name in names if getattr(options, name)]:
            problem = f"stated times need no machine; leave out {', '.join(superfluous)}"
            raise plan.origin.error(("gradients",), problem)
        return Planned(plan, None, None, textbook=textbook(plan.gradients))
    machine, network = options.machine or plan.machine, options.network or plan.network
    if machine is None:
        raise plan.origin.error(
            ("machine",),
            "is missing; write 'machine: hgx-h100' into the plan, or give --machine",
        )
    try:
        cluster = open_cluster(machine, options.nodes or plan.nodes, network)
    except MachineError as problem:
        # What is wrong with the plan's own machine is told with the line that says it.
        key = "network" if str(problem).startswith("network:") else "machine"
        if getattr(options, key) is not None:
            raise
        raise plan.origin.error((key,), str(problem).removeprefix("network: ")) from None
    planner = planner_of(plan, cluster, options.measured)
    plan = replace(plan, dtype=planner.dtype)
    values = dict(plan.search_values or {})
    if not options.search:
        # A search keeps to what ``search`` says, else to what the plan says for all layouts.
        for name in ("micro_batch", "virtual_stages", "zero", "recompute"):
            setting = "zero_stage" if name == "zero" else name
            if setting in plan.settings:
                values.setdefault(name, (plan.settings[setting],))
    planned = Planned(plan, cluster, planner.device, with_measured=options.measured is not None)
    if options.search or not plan.choices:
        searched = _searched(plan, planner, values, options)
        planned = replace(planned, outcomes=searched.best, searched=searched)
    else:
        outcomes, refused = _named(plan, planner)
        planned = replace(planned, outcomes=outcomes, refused=refused)
    if options.scale:
        scaled: list[Scaled] = []
        for ranks in SCALES:
            nodes = -(-ranks // len(planner.cluster.node.gpus))
            report = _of_scale(options.report, ranks)
            try:
                if nodes > 1 and network is None:
                    raise UsageError(
                        f"{ranks} devices are several {machine}, which no network joins; give --network"
                    )
                cluster = open_cluster(machine, nodes, network if nodes > 1 else None, ranks)
                outcome = _resized(
                    planned, replace(planner, cluster=cluster), values, ranks, report
                )
            except (UsageError, MachineError) as problem:  # one size may fail, the rest go on
                scaled.append(Scaled(ranks, None, _plain(problem)))
            else:
                scaled.append(Scaled(ranks, outcome))
        planned = replace(planned, scaled=tuple(scaled))
    return planned


def _plain(problem: Exception) -> str:
    """Return the problem of a layout, without the words that its place in the file says already."""
    return (
        str(problem)
        .removeprefix("layout: ")
        .removeprefix("strategy: ")
        .removeprefix("search: ")
    )


def _searched(
    plan: TrainingPlan, planner: Planner, values: SearchValues, options: PlanOptions
) -> Searched:
    # A search needs for all layouts what a plan may say for each of several.
    for key in ("global_batch", "sequence"):
        if key not in plan.settings:
            raise plan.origin.error(
                (key,),
                f"stands in single layouts only; a search needs one: write '{key}:' above the layouts",
            )
    try:
        ranks = planner.cluster.ranks
        return search(planner, plan.settings, values, ranks, options.most, options.report)
    except UsageError as problem:
        # Where nothing is found, it is told with the line that asks for it.
        asks = [key for key in ("search", "layout", "layouts") if (key,) in plan.origin.lines]
        raise plan.origin.error((asks[0] if asks else "search",), _plain(problem)) from None


def _named(
    plan: TrainingPlan, planner: Planner
) -> tuple[tuple[StrategyOutcome, ...], dict[str, str]]:
    """Outcomes of the plan's own layouts, and why others cannot be; SuiteError where none can."""
    outcomes: list[StrategyOutcome] = []
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
    return tuple(outcomes), refused


def _resized(
    planned: Planned, planner: Planner, values: SearchValues, ranks: int, report: Report
) -> StrategyOutcome:
    plan, base = planned.plan, planned.outcomes[0]
    chosen = next((choice for choice in plan.choices if choice.name == base.name), None)
    settings = plan.settings
    if planned.searched is None and chosen is not None:
        settings = chosen.settings
        model_ranks = base.ranks // base.strategy.layout.dp
        if ranks % model_ranks:
            raise UsageError(
                f"{ranks} devices hold no whole copy of the model, which takes {model_ranks}"
            )
    # Weak scaling: as many sequences for each device as the plan has; strong: as many for all.
    batch = settings["global_batch"]
    if plan.scaling == "weak":
        wanted_batch, rest = divmod(batch * ranks, base.ranks)
        if rest or wanted_batch < 1:
            raise UsageError(
                f"{batch} sequences on {base.ranks} devices are no whole number on {ranks}"
            )
        batch = wanted_batch
    settings = {**settings, "global_batch": batch}
    if planned.searched is not None or chosen is None:
        return search(planner, settings, values, ranks, 1, report).best[0]
    # Only data parallel ranks become more or fewer.
    axes = {name: size for name, size in chosen.axes.items() if name != "dp"}
    resized = PlanChoice(chosen.name, axes, settings, chosen.spot)
    report(f"layout {chosen.name}")
    outcome = planner.outcome(chosen.name, resized.strategy(ranks), chosen.hide_pipeline)
    if not outcome.fits:
        raise UsageError(f"{outcome.memory.total_bytes / 1e9:.0f} GB a device are needed")
    return outcome
