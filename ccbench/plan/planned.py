"""A plan worked out: its layouts or the best of all, and the same on more and fewer devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ccbench.errors import MachineError, UsageError
from ccbench.model.cluster import Cluster, open_cluster
from ccbench.plan.document import Choice, Plan, Wanted
from ccbench.plan.memory import Device
from ccbench.plan.planner import BEST, Outcome, Planner, Searched, planner_of, search
from ccbench.plan.pricing import MeasuredPoints
from ccbench.plan.shape import ModelShape
from ccbench.plan.textbook import Bucketed, textbook

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
