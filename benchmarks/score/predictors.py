"""The predictors that are compared: the model as shipped, and a simple rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.score.scores import Predictor
from ccbench.model.library import LibraryRequest, LibrarySystem

ALPHA_BETA = "alpha_beta"


def first_principles(system: LibrarySystem, request: LibraryRequest) -> Sequence[float]:
    """Seconds by the model with its shipped constants.

    Nothing is fitted here, but those constants were learned from published logs: on one of them this is the
    error of a fit.
    """
    from ccbench.model.library.predictor import predict_library

    return [point.seconds for point in predict_library(system, request)]


def rivals() -> Mapping[str, Predictor]:
    """Return plain alpha-beta, for the same table."""
    from benchmarks.score.alpha_beta import alpha_beta

    return {ALPHA_BETA: lambda system, request: alpha_beta(system, request).tolist()}
