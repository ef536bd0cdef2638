"""The result of a plan: lines for a terminal, plain values for JSON (docs/parallelism.md names the keys)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from ccbench.plan.planner import Planned, Scaled, StrategyOutcome
from ccbench.plan.step import MEASURED, TrainingStep
from ccbench.report.present import (
    ShownColumn,
    Table,
    aligned,
    columns,
    documents,
    named,
    table_of,
    values_of,
)
from ccbench.units import format_seconds, format_size

NOT_MODELLED = (
    "groups of different axes that send at the same time share links (each axis is priced with all its own "
    "groups running and nothing else; but gradients and weights hide only while those links are free)",
    "computing slowed down by the communication beside it (streaming multiprocessors, memory rate)",
    "jitter, stragglers, stalls of the host, data loading, checkpoints",
    "congestion of the network beyond the NICs: switches are taken not to block",
)
"""Of every plan's JSON."""

NOT_MODELLED_PAGE = "docs/parallelism.md#what-is-not-modelled"

_SECONDS_OF = {"step": "seconds"} | {
    name: f"{name}_seconds" for name in ("computing", "bubble", "exposed", "hidden")
}

_KEPT = {"step": 9, "computing": 3, "bubble": 4, "exposed": 6, "hidden": 2, "total": 8}
"""Of columns of times, how long each stays on a narrow screen."""

_SETTINGS = (
    "global_batch",
    "sequence",
    "micro_batch",
    "micro_batches",
    "pipeline",
    "virtual_stages",
    "sequence_parallel",
    "recompute",
)
"""Of a strategy, as JSON has them."""

_TENTH, _SHARE = "{:.1f}".format, "{:.1%}".format
LAYOUTS = (
    ShownColumn("layout", right=False, keep=9, value="name", name="name"),
    *(
        ShownColumn(
            name,
            keep=_KEPT[name],
            value=f"step.{field}",
            form=format_seconds,
            name=f"{name}_seconds",
        )
        for name, field in _SECONDS_OF.items()
    ),
    ShownColumn(
        "memory", keep=5, value=lambda outcome: f"{outcome.memory.total_bytes / 1e9:.1f} GB"
    ),
    ShownColumn("TFLOP/s", value="tflops", form=_TENTH, name="tflops"),
    ShownColumn(
        "MFU", keep=8, value="utilization", form=_SHARE, name="model_flops_utilization"
    ),
    ShownColumn(
        " ", right=False, keep=9, value=lambda outcome: "" if outcome.fits else "does not fit"
    ),
    *named(*(f"strategy.{name}" for name in _SETTINGS)),
    *named(*(f"strategy.layout.{name}" for name in ("tp", "cp", "ep", "dp", "pp"))),
    ShownColumn(name="zero", value="strategy.zero_stage"),
    *named("masked_tflops", "hardware_tflops", "tokens_per_second", "fits"),
)
"""Of an outcome: a layout and its step."""

MASKED_TOLD = 1.05
"""Factor that attention in full must add before figures without what is masked are told too."""


def plan_lines(
    planned: Planned, laid_out: Callable[[Table], list[str]] = aligned
) -> Iterator[str]:
    """Lines about a plan. laid_out: lines of a table."""
    if planned.textbook:
        yield from textbook_lines(planned, laid_out)
        return
    shape, cluster, device = planned.where
    plan, searched = planned.plan, planned.searched
    billions = shape.parameters / 1e9
    best = best_of(planned)
    if not best.fits:
        needed, there = best.memory.total_bytes / 1e9, device.memory_bytes / 1e9
        every = ", in every layout" * (len(planned.outcomes) > 1)
        yield f"does NOT fit: needs {needed:.4g} GB of {there:.4g} GB a device{every}"
    yield f"{shape.name}, {billions:.4g} billion parameters, on {cluster.ranks} devices: {cluster.name}"
    share = plan.efficiency.matrix * device.achieved
    yield (
        f"{device.name}: {device.peak(plan.dtype) / 1e12:.4g} TFLOP/s {plan.dtype} peak, of which large "
        f"matrix products reach {share:.0%}; {device.memory_bytes / 1e9:.4g} GB"
    )
    if searched is not None:
        yield (
            f"searched {searched.candidates} combinations, of which {searched.fitting} fit into memory; the "
            f"{len(searched.best)} fastest of them:"
        )
    if len(planned.outcomes) > 1:
        yield ""
        yield from laid_out(table_of(LAYOUTS, planned.outcomes))
    for name, reason in planned.refused.items():
        yield f"left out: {name}: {reason}"
    # Those that show most first.
    most = sorted(
        best.step.lines, key=lambda line: (-line.exposed_seconds, -line.total_seconds)
    )
    for part in (
        _in_detail(best),
        laid_out(table_of(LINES, most)) if most else ["no communication"],
        (laid_out(table_of(SCALES, planned.scaled)) if planned.scaled else ()),
        _remarks(planned),
    ):
        lines = list(part)
        if lines:
            yield ""
            yield from lines


def best_of(planned: Planned) -> StrategyOutcome:
    """The fastest layout of those that fit into memory, if any does, else of all."""
    return min(planned.outcomes, key=lambda outcome: (not outcome.fits, -outcome.tflops))


def _in_detail(outcome: StrategyOutcome) -> Iterator[str]:
    step, strategy = outcome.step, outcome.strategy
    fit = "" if outcome.fits else ", which does NOT fit"
    yield f"{outcome.name}: {strategy.layout}, {strategy.micro_batches} micro-batches of {strategy.micro_batch}"
    yield (
        f"  step {format_seconds(step.seconds)}, computing alone {format_seconds(step.computing_seconds)}: "
        f"{outcome.tflops:.1f} TFLOP/s a device, MFU {outcome.utilization:.1%}, "
        f"{outcome.tokens_per_second:,.0f} tokens/s"
    )
    if outcome.tflops > MASKED_TOLD * outcome.masked_tflops:
        share = outcome.utilization * outcome.masked_tflops / outcome.tflops
        yield (
            f"  attention counted without what a causal mask leaves out {outcome.masked_tflops:.1f} TFLOP/s a "
            f"device, MFU {share:.1%}"
        )
    if outcome.hardware_tflops > outcome.tflops:
        yield f"  with what is computed again {outcome.hardware_tflops:.1f} TFLOP/s a device"
    whole = step.seconds
    yield (
        f"  computing {step.computing_seconds / whole:.1%}, bubble {step.bubble_seconds / whole:.1%}, "
        f"exposed communication {step.exposed_seconds / whole:.1%}; hidden communication "
        f"{format_seconds(step.hidden_seconds)}"
    )
    waits = by_bottleneck(step)
    if waits:
        listed = ", ".join(
            f"{name} {format_seconds(seconds)}" for name, seconds in waits.items()
        )
        yield f"  exposed communication by what limits it: {listed}"
    memory = outcome.memory
    yield (
        f"  memory of the fullest stage ({memory.stage}) {memory.total_bytes / 1e9:.1f} GB{fit}: parameters "
        f"{memory.parameter_bytes / 1e9:.1f}, gradients {memory.gradient_bytes / 1e9:.1f}, optimizer "
        f"{memory.optimizer_bytes / 1e9:.1f}, activations {memory.activation_bytes / 1e9:.1f}, working "
        f"{memory.working_bytes / 1e9:.1f}"
    )


def by_bottleneck(step: TrainingStep) -> dict[str, float]:
    """Seconds of exposed communication by the link or term that costs most of each, the largest first."""
    seconds: dict[str, float] = {}
    for line in step.lines:
        if line.exposed_seconds > 0:
            name = line.price.bottleneck.split(":")[0]
            seconds[name] = seconds.get(name, 0.0) + line.exposed_seconds
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _size(size_bytes: int) -> str:
    # Sizes of models are rarely round: two digits are enough.
    size = format_size(size_bytes)
    if len(size) > 10:
        units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
        name, bytes_each = next(unit for unit in units if size_bytes >= unit[1])
        size = f"{size_bytes / bytes_each:.2f} {name}"
    return size


def shortened(bottleneck: str) -> str:
    """The limit, the rate or the largest of several terms, and who shares it; JSON has all of it."""
    limit, semicolon, sharing = bottleneck.partition("; ")
    head, opens, detail = limit.removesuffix(")").partition(" (")
    way = detail.partition(" through ")[2]
    first, comma, _ = detail.partition(", ")
    inside = f" ({way or first + (', ...' if comma else '')})" if opens else ""
    return f"{head}{inside}{semicolon}{sharing}"


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"


LINES = (
    ShownColumn("axis", right=False, keep=9, value="communication.axis"),
    ShownColumn("ranks", keep=6, value="communication.ranks"),
    ShownColumn("collective", right=False, keep=9, value="communication.collective"),
    ShownColumn("size", keep=8, value="communication.size_bytes", form=_size),
    ShownColumn("times", keep=4, value="communication.times"),
    ShownColumn("each", keep=5, value="price.seconds", form=_time),
    *(
        ShownColumn(name, keep=_KEPT[name], value=f"{name}_seconds", form=_time)
        for name in ("total", "hidden", "exposed")
    ),
    ShownColumn(
        "of",
        right=False,
        keep=2,
        value="communication",
        form=lambda sent: sent.purpose + f" ({sent.stage} stage)" * (sent.stage != "only"),
    ),
    ShownColumn(
        "bottleneck",
        right=False,
        keep=1,
        value="price",
        form=lambda price: (
            "measured; " * (price.source == MEASURED) + shortened(price.bottleneck)
        ),
    ),
)
"""Of a communication of a step."""


def _idle(scaled: Scaled) -> float | None:
    step = scaled.outcome and scaled.outcome.step
    return (step.seconds - step.computing_seconds) / step.seconds if step else None


SCALES = (
    ShownColumn("devices", keep=9, value="ranks", name="devices"),
    ShownColumn("batch", value="outcome.strategy.global_batch"),
    ShownColumn("step", keep=9, value="outcome.step.seconds", form=format_seconds),
    ShownColumn("not computing", value=_idle, form=_SHARE),
    ShownColumn("TFLOP/s", value="outcome.tflops", form=_TENTH),
    ShownColumn(
        "layout", right=False, keep=8, value=lambda scaled: scaled.reason or scaled.outcome.name
    ),
    *named("reason"),
)
"""Of a number of devices; a reason says why it has no layout."""


def _remarks(planned: Planned) -> Iterator[str]:
    lines = [line for outcome in planned.outcomes for line in outcome.step.lines]
    measured = sum(1 for line in lines if line.price.source == MEASURED)
    if measured:
        rest = "" if measured == len(lines) else "; the others are predicted"
        yield f"measured: {measured} of {len(lines)} communications{rest}"
    elif planned.with_measured:
        yield (
            f"measured: none of {len(lines)} communications: no measured point is of the same collective, "
            "ranks of a group, nodes, traffic and a size on either side"
        )
    for remark in dict.fromkeys(line.price.extrapolated for line in lines):
        if remark:
            yield f"extrapolated: {remark}"
    yield f"not modelled: {NOT_MODELLED_PAGE}"


def textbook_lines(
    planned: Planned, laid_out: Callable[[Table], list[str]] = aligned
) -> Iterator[str]:
    """Gradients of stated times: in series, overlapped, in buckets."""
    gradients = planned.plan.gradients
    assert gradients is not None
    compute, communicate = gradients.compute_seconds * 1e3, gradients.communicate_seconds * 1e3
    yield (
        f"{gradients.layers} layers x {gradients.per_layer} gradients, {compute:g} ms to compute and "
        f"{communicate:g} ms to communicate each"
    )
    yield ""
    open_ended = gradients.startup_seconds is None
    rows = []
    for case in planned.textbook:
        ends = (
            ""
            if not open_ended
            else ", all bytes"
            if case.startup_seconds == 0
            else ", all start-up"
        )
        usual = {0: "in series", 1: "overlapped, each gradient on its own"}
        way = usual.get(case.bucket, f"overlapped, buckets of {case.bucket}{ends}")
        times = (
            seconds * 1e3
            for seconds in (case.seconds, case.exposed_seconds, case.hidden_seconds)
        )
        # Whole milliseconds of long times, so that figures can be checked by hand.
        digits = ((ms, 0 if ms >= 100 or abs(ms - round(ms)) < 1e-6 else 3) for ms in times)
        rows.append(
            (way, str(case.messages), *(f"{ms:,.{number}f} ms" for ms, number in digits))
        )
    yield from laid_out(Table(columns("<", "messages", "step", "exposed", "hidden"), rows))
    if open_ended:
        yield ""
        yield (
            "Start-up is the part of a communication that a larger message does not pay again. How much that "
            "is, the plan does not say; the truth lies between the two lines of a bucket. Write startup: to "
            "know."
        )


def plan_document(planned: Planned) -> dict[str, Any]:
    """Return the plan as JSON values; times in seconds, sizes in bytes."""
    document: dict[str, Any] = {"plan": planned.plan.name}
    if planned.textbook:
        document["gradients"] = [
            {**asdict(case), **values_of(case, "exposed_seconds", "hidden_seconds")}
            for case in planned.textbook
        ]
        return document
    shape, cluster, device = planned.where
    document |= {
        "model": shape.name,
        "parameters": shape.parameters,
        "machine": cluster.name,
        "devices": cluster.ranks,
        "device": device.name,
        "peak_flops": device.peak(planned.plan.dtype),
        "memory_bytes": device.memory_bytes,
        "layouts": [outcome_document(outcome) for outcome in planned.outcomes],
        "refused": [{"name": name, "reason": why} for name, why in planned.refused.items()],
        "not_modelled": list(NOT_MODELLED),
    }
    if planned.searched is not None:
        document["search"] = values_of(planned.searched, "candidates", "fitting", "priced")
    if planned.scaled:
        document["scale"] = [
            {**scale, "layout": scaled.outcome and outcome_document(scaled.outcome)}
            for scale, scaled in zip(
                documents(SCALES, planned.scaled), planned.scaled, strict=True
            )
        ]
    return document


def outcome_document(outcome: StrategyOutcome) -> dict[str, Any]:
    """One layout's step."""
    prices = ("nodes", "groups_on_node", "seconds", "bottleneck", "source", "extrapolated")
    shown = ("total_seconds", "hidden_seconds", "exposed_seconds")
    names = (*(f"price.{name}" for name in prices), *shown)
    return {
        **documents(LAYOUTS, [outcome])[0],
        "layout": str(outcome.strategy.layout),
        "exposed_by_bottleneck_seconds": by_bottleneck(outcome.step),
        "memory": asdict(outcome.memory),
        "communication": [
            {**asdict(line.communication), **values_of(line, *names)}
            for line in outcome.step.lines
        ],
    }
