"""The result of a plan: lines for a terminal, plain values for JSON (docs/parallelism.md names the keys)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ccbench.plan.planner import Outcome, Planned, Scaled
from ccbench.plan.step import MEASURED, Step
from ccbench.report.present import Table, aligned, columns
from ccbench.units import format_seconds, format_size

NOT_MODELLED = (
    "groups of different axes that send at the same time share links (each axis is priced with all its own "
    "groups running and nothing else; but gradients and weights hide only while those links are free)",
    "computing slowed down by the communication beside it (streaming multiprocessors, memory rate)",
    "jitter, stragglers, stalls of the host, data loading, checkpoints",
    "congestion of the network beyond the NICs: switches are taken not to block",
)
"""Said with every plan; docs/parallelism.md has the same in full."""

_SECONDS_OF = {"step": "seconds"} | {
    name: f"{name}_seconds" for name in ("computing", "bubble", "exposed", "hidden")
}

_SETTINGS = (
    "global_batch",
    "sequence",
    "micro_batch",
    "micro_batches",
    "pipeline",
    "virtual_stages",
    "zero",
    "sequence_parallel",
    "recompute",
)
"""Of a strategy, as JSON has them."""

MASKED_TOLD = 1.05
"""Factor that attention in full must add before figures without what is masked are told too."""


def plan_lines(planned: Planned) -> Iterator[str]:
    """Everything, one line after the other."""
    if planned.textbook:
        yield from textbook_lines(planned)
        return
    shape, cluster, device = planned.where
    plan, found = planned.plan, planned.searched
    billions = shape.parameters / 1e9
    yield f"{shape.name}, {billions:.4g} billion parameters, on {cluster.ranks} devices: {cluster.name}"
    share = plan.efficiency.matrix * device.achieved
    yield (
        f"{device.name}: {device.peak(plan.dtype) / 1e12:.4g} TFLOP/s {plan.dtype} peak, of which large "
        f"matrix products reach {share:.0%}; {device.memory_bytes / 1e9:.4g} GB"
    )
    if found is not None:
        yield (
            f"searched {found.candidates} combinations, of which {found.fitting} fit into memory; the "
            f"{len(found.best)} fastest of them:"
        )
    if len(planned.outcomes) > 1:
        yield ""
        times = ("step", "computing", "bubble", "exposed", "hidden")
        rows = [
            (
                outcome.name,
                *(format_seconds(getattr(outcome.step, _SECONDS_OF[name])) for name in times),
                f"{outcome.memory.total_bytes / 1e9:.1f} GB",
                f"{outcome.tflops:.1f}",
                f"{outcome.utilization:.1%}",
                "" if outcome.fits else "does not fit",
            )
            for outcome in planned.outcomes
        ]
        yield from aligned(Table(columns("<layout", *times, "memory", "TFLOP/s", "MFU", "<"), rows))
    for name, reason in planned.refused.items():
        yield f"left out: {name}: {reason}"
    # The fastest of those that fit, if any does, in detail.
    best = planned.outcomes[0]
    if found is None:
        best = min(planned.outcomes, key=lambda one: (not one.fits, -one.tflops))
    for part in (
        _one(best),
        _communication(best.step),
        _scaling(planned.scaled),
        _remarks(planned),
    ):
        lines = list(part)
        if lines:
            yield ""
            yield from lines


def _one(one: Outcome) -> Iterator[str]:
    step, strategy = one.step, one.strategy
    fit = "" if one.fits else ", which does NOT fit"
    yield f"{one.name}: {strategy.layout}, {strategy.micro_batches} micro-batches of {strategy.micro_batch}"
    yield (
        f"  step {format_seconds(step.seconds)}, computing alone {format_seconds(step.computing_seconds)}: "
        f"{one.tflops:.1f} TFLOP/s a device, MFU {one.utilization:.1%}, {one.tokens_per_second:,.0f} tokens/s"
    )
    if one.tflops > MASKED_TOLD * one.masked_tflops:
        share = one.utilization * one.masked_tflops / one.tflops
        yield (
            f"  attention counted without what a causal mask leaves out {one.masked_tflops:.1f} TFLOP/s a "
            f"device, MFU {share:.1%}"
        )
    if one.hardware_tflops > one.tflops:
        yield f"  with what is computed again {one.hardware_tflops:.1f} TFLOP/s a device"
    whole = step.seconds
    yield (
        f"  computing {step.computing_seconds / whole:.1%}, bubble {step.bubble_seconds / whole:.1%}, "
        f"exposed communication {step.exposed_seconds / whole:.1%}; hidden communication "
        f"{format_seconds(step.hidden_seconds)}"
    )
    waits = by_bottleneck(step)
    if waits:
        told = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in waits.items())
        yield f"  exposed communication by what limits it: {told}"
    memory = one.memory
    yield (
        f"  memory of the fullest stage ({memory.stage}) {memory.total_bytes / 1e9:.1f} GB{fit}: parameters "
        f"{memory.parameter_bytes / 1e9:.1f}, gradients {memory.gradient_bytes / 1e9:.1f}, optimizer "
        f"{memory.optimizer_bytes / 1e9:.1f}, activations {memory.activation_bytes / 1e9:.1f}, working "
        f"{memory.working_bytes / 1e9:.1f}"
    )


def by_bottleneck(step: Step) -> dict[str, float]:
    """Seconds of exposed communication by the link or term that costs most of each, the largest first."""
    found: dict[str, float] = {}
    for line in step.lines:
        if line.exposed_seconds > 0:
            name = line.price.bottleneck.split(":")[0]
            found[name] = found.get(name, 0.0) + line.exposed_seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _communication(step: Step) -> list[str]:
    """A line for each communication, those that show most first."""
    lines = sorted(step.lines, key=lambda line: (-line.exposed_seconds, -line.total_seconds))
    if not lines:
        return ["no communication"]
    rows = []
    for line in lines:
        one, price = line.communication, line.price
        times = (price.seconds, line.total_seconds, line.hidden_seconds, line.exposed_seconds)
        cells = [format_seconds(seconds) if seconds else "-" for seconds in times]
        purpose = one.purpose + ("" if one.stage == "only" else f" ({one.stage} stage)")
        # Sizes of models are rarely round: two digits are enough.
        size = format_size(one.size_bytes)
        if len(size) > 10:
            units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
            name, bytes_each = next(unit for unit in units if one.size_bytes >= unit[1])
            size = f"{one.size_bytes / bytes_each:.2f} {name}"
        limits = "measured; " * (price.source == MEASURED) + shortened(price.bottleneck)
        asked = (one.axis, str(one.ranks), one.collective, size, str(one.times))
        rows.append((*asked, *cells, purpose, limits))
    titles = (
        "<axis",
        "ranks",
        "<collective",
        "size",
        "times",
        "each",
        "total",
        "hidden",
        "exposed",
    )
    return aligned(Table(columns(*titles, "<of", "<bottleneck"), rows))


def shortened(bottleneck: str) -> str:
    """The limit, the rate or the largest of several terms, and who shares it; JSON has all of it."""
    told, semicolon, sharing = bottleneck.partition("; ")
    head, opens, detail = told.removesuffix(")").partition(" (")
    way = detail.partition(" through ")[2]
    first, comma, _ = detail.partition(", ")
    inside = f" ({way or first + (', ...' if comma else '')})" if opens else ""
    return f"{head}{inside}{semicolon}{sharing}"


def _scaling(scaled: tuple[Scaled, ...]) -> list[str]:
    if not scaled:
        return []
    rows = []
    for one in scaled:
        if (found := one.outcome) is None:
            rows.append((str(one.ranks), "-", "-", "-", "-", one.reason))
            continue
        seconds = found.step.seconds
        idle = f"{(seconds - found.step.computing_seconds) / seconds:.1%}"
        figures = (format_seconds(seconds), idle, f"{found.tflops:.1f}")
        rows.append((str(one.ranks), str(found.strategy.global_batch), *figures, found.name))
    titles = ("devices", "batch", "step", "not computing", "TFLOP/s", "<layout")
    return aligned(Table(columns(*titles), rows))


def _remarks(planned: Planned) -> Iterator[str]:
    lines = [line for outcome in planned.outcomes for line in outcome.step.lines]
    measured = sum(1 for line in lines if line.price.source == MEASURED)
    if measured:
        others = "" if measured == len(lines) else "; the others are predicted"
        yield f"measured: {measured} of {len(lines)} communications{others}"
    elif planned.with_measured:
        yield (
            f"measured: none of {len(lines)} communications: no measured point is of the same collective, "
            "ranks of a group, nodes, traffic and a size on either side"
        )
    for remark in dict.fromkeys(line.price.extrapolated for line in lines):
        if remark:
            yield f"extrapolated: {remark}"
    yield "not modelled: " + "; ".join(NOT_MODELLED)


def textbook_lines(planned: Planned) -> Iterator[str]:
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
    for one in planned.textbook:
        ends = (
            ""
            if not open_ended
            else ", all bytes"
            if one.startup_seconds == 0
            else ", all start-up"
        )
        usual = {0: "in series", 1: "overlapped, each gradient on its own"}
        way = usual.get(one.bucket, f"overlapped, buckets of {one.bucket}{ends}")
        times = (
            seconds * 1e3 for seconds in (one.seconds, one.exposed_seconds, one.hidden_seconds)
        )
        # Whole milliseconds of long times, so that figures can be checked by hand.
        digits = ((ms, 0 if ms >= 100 or abs(ms - round(ms)) < 1e-6 else 3) for ms in times)
        rows.append((way, str(one.messages), *(f"{ms:,.{number}f} ms" for ms, number in digits)))
    yield from aligned(Table(columns("<", "messages", "step", "exposed", "hidden"), rows))
    if open_ended:
        yield ""
        yield (
            "Start-up is the part of a communication that a larger message does not pay again. How much that "
            "is, the plan does not say; the truth lies between the two lines of a bucket. Write startup: to "
            "know."
        )


def plan_document(planned: Planned) -> dict[str, Any]:
    """Everything; times in seconds, sizes in bytes."""
    document: dict[str, Any] = {"plan": planned.plan.name}
    if planned.textbook:
        shares = ("exposed_seconds", "hidden_seconds")
        document["gradients"] = [
            {**asdict(one), **{name: getattr(one, name) for name in shares}}
            for one in planned.textbook
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
        names = ("candidates", "fitting", "priced")
        document["search"] = {name: getattr(planned.searched, name) for name in names}
    if planned.scaled:
        document["scale"] = [
            {
                "devices": one.ranks,
                "reason": one.reason,
                "layout": None if one.outcome is None else outcome_document(one.outcome),
            }
            for one in planned.scaled
        ]
    return document


def outcome_document(one: Outcome) -> dict[str, Any]:
    """One layout's step."""
    step, strategy, layout = one.step, one.strategy, one.strategy.layout
    lines = []
    for line in step.lines:
        price = asdict(line.price)
        limit = {key: price.pop(key) for key in ("bottleneck", "source", "extrapolated")}
        launches = {"nodes": price["nodes"], "groups_on_node": price["groups_on_node"]}
        times = ("total_seconds", "hidden_seconds", "exposed_seconds")
        seconds = {"seconds": price["seconds"], **{name: getattr(line, name) for name in times}}
        lines.append({**asdict(line.communication), **launches, **seconds, **limit})
    return {
        "name": one.name,
        "layout": str(layout),
        **{axis: getattr(layout, axis) for axis in ("tp", "cp", "ep", "dp", "pp")},
        **{key: getattr(strategy, "zero_stage" if key == "zero" else key) for key in _SETTINGS},
        **{f"{name}_seconds": getattr(step, attribute) for name, attribute in _SECONDS_OF.items()},
        "exposed_by_bottleneck_seconds": by_bottleneck(step),
        **{name: getattr(one, name) for name in ("tflops", "masked_tflops", "hardware_tflops")},
        "model_flops_utilization": one.utilization,
        "tokens_per_second": one.tokens_per_second,
        "fits": one.fits,
        "memory": asdict(one.memory),
        "communication": lines,
    }
