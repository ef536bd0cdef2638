"""One strategy on one machine: its step, its memory, how well it uses the devices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ccbench.errors import UsageError
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
from ccbench.plan.document import Plan, Stated
from ccbench.plan.memory import Device, Memory, holdings, largest_memory, named_device
from ccbench.plan.pricing import MeasuredPoints, Prices
from ccbench.plan.shape import ModelShape
from ccbench.plan.step import Computing, Step, step_of
from ccbench.plan.strategy import Strategy


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

    def memory(self, strategy: Strategy) -> Memory:
        """Of the fullest kind of stage."""
        return largest_memory(self.shape, strategy)

    def fits(self, memory: Memory) -> bool:
        """Whether a device holds it."""
        return memory.total_bytes <= self.device.memory_bytes

    def outcome(self, name: str, strategy: Strategy, hide_pipeline: bool | None = None) -> Outcome:
        """UsageError where shape, strategy and machine do not fit together.

        hide_pipeline: of this strategy alone, None: as of all.
        """
        hide = self.hide_pipeline if hide_pipeline is None else hide_pipeline
        wanted = communications(self.shape, strategy)
        step = step_of(strategy, wanted, self.computing(strategy), self.prices, hide)
        memory = self.memory(strategy)
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
            work = stage_work(self.shape, strategy, holding)
            found[holding.kind] = Computing(
                seconds_of(work.forward, self.device, self.efficiency, self.dtype),
                seconds_of(work.backward, self.device, self.efficiency, self.dtype),
                seconds_of(optimizer_work(strategy, holding), self.device, self.efficiency, self.dtype),
            )
        return found


def device_of(cluster: Cluster, stated: Stated, dtype: str) -> Device:
    """The plan's device, or the machine's; UsageError where neither is known.

    Of an unknown device with stated rates the matrix products take all the time: its memory's rate is not
    known.
    """
    name = stated.name or str(cluster.node.gpus[0].attributes.get("model", ""))
    try:
        device = named_device(name)
    except UsageError:
        if stated.name or stated.teraflops is None or stated.memory_bytes is None:
            raise UsageError(
                f"device: how fast {name or 'a GPU without a name'} computes is not known; write "
                "'device: {teraflops: 312, memory: 80 GB}' or 'device: a100' into the plan"
            ) from None
        peak = ((dtype, stated.teraflops * 1e12),)
        return Device(name or "GPU", stated.memory_bytes, math.inf, peak, 1.0, "stated in the plan", "stated")
    return device.with_rates(stated.teraflops, stated.memory_bytes)


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
    return Planner(plan.shape, cluster, device, dtype, plan.device.efficiency, plan.hide_pipeline, measured)
