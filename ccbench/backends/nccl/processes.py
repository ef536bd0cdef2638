"""The crew of ``nccl-processes``, by the name that ``ccbench.backends.crew`` looks for."""

from __future__ import annotations

from ccbench.backends.nccl.crew import ProcessesCrew


def crew(ranks: int, sample_capacity: int) -> ProcessesCrew:
    """A crew of ``ranks`` processes."""
    return ProcessesCrew(ranks, sample_capacity)
