"""A collective that did not end, in one line: who, where, what, how far the others are, what NCCL says."""

from __future__ import annotations

from collections.abc import Sequence

from ccbench.backends.nccl.ras import ras_report, ras_summary
from ccbench.cases import Case
from ccbench.errors import CcbenchError
from ccbench.units import format_seconds

FIRST_RAS_VERSION = 22_403
"""NCCL 2.24.3 (release notes: "RAS")."""

LEAST_LIMIT_SECONDS = 15.0
SLOWEST_BYTES_PER_SECOND = 20e6
"""A launch gets LEAST_LIMIT_SECONDS and what its bytes take at this rate, a slow office network's."""


class CollectiveHung(CcbenchError):
    """A collective did not end in its time, or NCCL says that it never will."""

    exit_code = 4


def limit_for(case: Case, times: int) -> float:
    """Seconds that ``times`` launches may take."""
    moved = case.size_bytes * max(case.ranks, 1) * case.aggregation * times
    return LEAST_LIMIT_SECONDS + moved / SLOWEST_BYTES_PER_SECOND


def hung(
    case: Case,
    where: str,
    sample: int,
    after_seconds: float | None,
    busy: Sequence[str],
    complaints: Sequence[str],
    version: int,
) -> CollectiveHung:
    """The error for a launch of ``case``; asks NCCL's watch service, so call it before aborting.

    after_seconds: how long was waited; None where a call failed at once.
    """
    when = f"sample {sample}" if sample >= 0 else "warming up"
    what = "failed" if after_seconds is None else f"did not end in {format_seconds(after_seconds)}"
    words = [f"{where}: {case.label} {what} ({when})"]
    if busy:
        words.append(f"still waiting: {', '.join(busy)}")
    words += [f"NCCL says: {text}" for text in complaints]
    if version >= FIRST_RAS_VERSION:
        summary = ras_summary(ras_report())
        words.append(f"RAS: {summary}" if summary else "RAS does not answer")
    return CollectiveHung("; ".join(words) + "; the communicator was aborted")
