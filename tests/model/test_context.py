"""What a run's predictions are priced on: the right machine for each backend, or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccbench.cases.axes import Case
from ccbench.errors import CcbenchError
from ccbench.machine.detection import load_topology
from ccbench.model import Prediction
from ccbench.model import context as context_module
from ccbench.model.cluster import Cluster, ClusterPoint, cluster_of, library_points
from ccbench.model.context import PredictionContext, named_context, predict_case
from ccbench.model.library import LibraryRequest

SIZE = 64 << 20
ON_GPUS = Case("s", "nccl", "all_reduce", "default", "float32", "sum", SIZE, SIZE // 4, 8)
ON_CPU = replace(ON_GPUS, backend="cpu", algorithm="ring", ranks=2)


def price(context: PredictionContext, case: Case, *used: str) -> Prediction:
    prediction = context.predict(case, *used)
    assert prediction is not None
    return prediction


def test_more_ranks_than_gpus_have_no_price_and_fewer_have_their_own() -> None:
    context = named_context("hgx-h100")
    assert context.predict(replace(ON_GPUS, ranks=9)) is None
    assert price(context, replace(ON_GPUS, ranks=4)) != price(context, ON_GPUS)


def test_a_machine_that_is_needed_and_cannot_be_is_refused_with_the_reason() -> None:
    context = named_context("hgx-h100")
    assert isinstance(context.needed_machine(ON_CPU), Cluster)
    with pytest.raises(CcbenchError, match="need a network"):
        context.needed_machine(replace(ON_GPUS, ranks=16, nodes=2))
    with pytest.raises(CcbenchError, match="--machine"):
        PredictionContext().needed_machine(ON_GPUS)


@pytest.mark.parametrize(
    "change",
    [
        {"collective": "send_recv", "pair": "0>1"},
        {"groups": "rank // 2"},
        {"groups": "rank // 2", "active_group": 1},
        {"concurrent": "all_gather on rank % 2"},
        {"collective": "all_to_all_v", "traffic": "hot:0.5"},
    ],
)
def test_what_shares_links_with_something_else_has_a_price_that_no_bound_exceeds(
    change: dict[str, Any],
) -> None:
    prediction = price(named_context("hgx-h100"), replace(ON_GPUS, **change))
    assert 0 < prediction.bound_seconds <= prediction.predicted_seconds


def test_of_computing_meanwhile_nothing_is_said() -> None:
    asked = replace(ON_GPUS, mode="overlap", overlap_with="matmul")
    assert named_context("hgx-h100").predict(asked) is None


def test_what_a_library_has_nothing_of_to_send_has_neither_price_nor_bound() -> None:
    nothing = replace(ON_GPUS, collective="all_gather", op="none", size_bytes=0, count=0)
    assert named_context("hgx-h100").predict(nothing) is None
    assert (
        named_context("hgx-h100").predict(replace(nothing, size_bytes=64, count=16)) is not None
    )


def test_what_the_library_says_it_ran_is_what_is_priced() -> None:
    context = named_context("hgx-h100")
    ring = price(context, ON_GPUS, "ring", "simple")
    assert ring == context.predict(replace(ON_GPUS, algorithm="ring", protocol="simple"))
    assert (
        price(context, ON_GPUS, "ring", "ll").predicted_seconds > 1.5 * ring.predicted_seconds
    )
    collnet = context.predict(ON_GPUS, "collnet", "simple")
    assert context.predict(ON_GPUS, "collnetdirect", "simple") == collnet


@pytest.mark.parametrize("backend", ["nccl", "cuda"])
def test_streaming_is_priced_with_the_hosts_launches_and_the_other_modes_without(
    backend: str,
) -> None:
    context = named_context("hgx-h100")
    small = replace(
        ON_GPUS, backend=backend, algorithm="ring", protocol="ll", size_bytes=8, count=2
    )
    took = {}
    for mode in ("streaming", "graph", "isolated", "cold"):
        prediction = price(context, replace(small, mode=mode), "ring")
        assert prediction.predicted_seconds == pytest.approx(
            prediction.latency_seconds + prediction.bandwidth_seconds
        )
        assert prediction.bottleneck.startswith("launches: ") is (mode == "streaming")
        took[mode] = prediction.predicted_seconds
    assert took["streaming"] > 8 * 4e-6
    assert took["graph"] == took["isolated"] == took["cold"] < took["streaming"]


def test_a_launch_that_nobody_tells_is_asked_of_the_model_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[LibraryRequest] = []

    def points(
        cluster: Cluster, request: LibraryRequest, root: int = 0
    ) -> tuple[ClusterPoint, ...]:
        asked.append(request)
        return library_points(cluster, request, root)

    monkeypatch.setattr(context_module, "library_points", points)
    case = Case("s", "nccl", "all_reduce", "default", "float32", "sum", 8, 2, 8, nodes=1)
    cluster = cluster_of(load_topology("hgx-h100"), 1, None, 8)
    prices = [
        predict_case(case, cluster, gpus_per_process=launched) for launched in (None, 1, 8)
    ]
    assert [(one.gpus_per_process, one.launch_known) for one in asked] == [
        (1, False),
        (1, True),
        (8, True),
    ]
    unknown, alone, together = (one.predicted_seconds for one in prices if one is not None)
    assert unknown == alone < together
