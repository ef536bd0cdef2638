"""What a plan comes to, as plain values for JSON; docs/parallelism.md names the keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ccbench.parallelism.planned import Planned, settings_of
from ccbench.parallelism.planner import Outcome
from ccbench.parallelism.step import Line
from ccbench.parallelism.text import NOT_MODELLED, by_bottleneck


def plan_document(planned: Planned) -> dict[str, Any]:
    """Everything; times in seconds, sizes in bytes."""
    document: dict[str, Any] = {"plan": planned.plan.name}
    if planned.textbook:
        document["gradients"] = [
            {
                **asdict(one),
                "exposed_seconds": one.exposed_seconds,
                "hidden_seconds": one.hidden_seconds,
            }
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
        "layouts": [outcome_document(one) for one in planned.outcomes],
        "refused": [asdict(one) for one in planned.refused],
        "not_modelled": list(NOT_MODELLED),
    }
    if planned.searched is not None:
        found = planned.searched
        document["search"] = {
            "candidates": found.candidates,
            "fitting": found.fitting,
            "priced": found.priced,
        }
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
    step = one.step
    return {
        "name": one.name,
        **settings_of(one),
        "step_seconds": step.seconds,
        "computing_seconds": step.computing_seconds,
        "bubble_seconds": step.bubble_seconds,
        "exposed_seconds": step.exposed_seconds,
        "hidden_seconds": step.hidden_seconds,
        "exposed_by_bottleneck_seconds": by_bottleneck(step),
        "tflops": one.tflops,
        "masked_tflops": one.masked_tflops,
        "hardware_tflops": one.hardware_tflops,
        "model_flops_utilization": one.utilization,
        "tokens_per_second": one.tokens_per_second,
        "fits": one.fits,
        "memory": asdict(one.memory),
        "communication": [line_document(line) for line in step.lines],
    }


def line_document(line: Line) -> dict[str, Any]:
    """One communication with its price."""
    price = line.price
    return {
        **asdict(line.communication),
        "nodes": price.nodes,
        "groups_on_node": price.groups_on_node,
        "seconds": price.seconds,
        "total_seconds": line.total_seconds,
        "hidden_seconds": line.hidden_seconds,
        "exposed_seconds": line.exposed_seconds,
        "bottleneck": price.bottleneck,
        "source": price.source,
        "extrapolated": price.extrapolated,
    }
