"""The predictors that are compared: the model as shipped, and a simple rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.score.scores import Predictor
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.predictor import nccl_seconds, predict_library


def first_principles(system: LibrarySystem, request: LibraryRequest) -> Sequence[float]:
    """Seconds by the model with its shipped constants.

    Nothing is fitted here, but those constants were learned from published logs: on one of them this is the
    error of a fit.
    """
    return [point.seconds for point in predict_library(system, request)]


def rivals() -> Mapping[str, Predictor]:
    """Return the constants with which NCCL chooses algorithms, for the same table."""
    return {"nccl_constants": lambda system, request: nccl_seconds(system, request).tolist()}
