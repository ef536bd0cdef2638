"""What a training step communicates: each collective with its group, size and number of launches."""

from __future__ import annotations

from dataclasses import dataclass

FORWARD, BACKWARD, OPTIMIZER, PIPELINE = PHASES = ("forward", "backward", "optimizer", "pipeline")
"""When a launch is wanted: in the forward or backward pass of a micro-batch, after all of them, between stages."""

LAYER, MICRO_BATCH, BUCKET, STEP = UNITS = ("layer", "micro_batch", "bucket", "step")
"""What asks for one launch."""

ONLY, FIRST, MIDDLE, LAST = STAGES = ("only", "first", "middle", "last")
"""Which pipeline stage: the only one, or the first, one in the middle, the last."""


@dataclass(frozen=True)
class Communication:
    """One collective as it comes again and again in a step.

    axis: of the layout, as ``Layout.groups`` takes it; the embedding that first and last stage share is
    communicated between these two of ``pp``. ranks: of one group. collective: ccbench's name.
    size_bytes: of one launch as nccl-tests counts it (the largest buffer of a rank). times: launches in a
    step on the busiest rank. purpose: for people. phase, unit, stage: see PHASES, UNITS, STAGES.
    traffic: of an all_to_all_v. can_hide: whether the strategy lets it run behind computing.
    """

    axis: str
    ranks: int
    collective: str
    size_bytes: int
    times: int
    purpose: str
    phase: str
    unit: str
    stage: str
    traffic: str = ""
    can_hide: bool = False

    @property
    def total_bytes(self) -> int:
        """Sizes of all launches together."""
        return self.size_bytes * self.times
