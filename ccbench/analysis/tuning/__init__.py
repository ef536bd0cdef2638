"""What to run instead: the fastest measured choice per collective and band of sizes, where it is certain."""

from __future__ import annotations

from ccbench.analysis.tuning.advice import Advice, Band, Rules, advise
from ccbench.analysis.tuning.nccl_files import nccl_csv, nccl_environment
from ccbench.analysis.tuning.text import advice_document, advice_lines
from ccbench.analysis.tuning.timings import (
    SIZE_NOT_STATED,
    Choice,
    Situation,
    Timing,
    forced_from,
    timings_of,
)

__all__ = [
    "SIZE_NOT_STATED",
    "Advice",
    "Band",
    "Choice",
    "Rules",
    "Situation",
    "Timing",
    "advice_document",
    "advice_lines",
    "advise",
    "forced_from",
    "nccl_csv",
    "nccl_environment",
    "timings_of",
]
