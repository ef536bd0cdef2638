"""Figures that owners published of healthy machines; the model with its shipped constants comes near them.

busbw in GB/s. The tolerance at large sizes is what machines of one kind differ by; at small
ones the median error there of systems that the model has not seen (docs/model.md).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.collectives import collective
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.predictor import predict_library
from tests.model.library.systems import A100, B200, H100, HDR, MI300X, NDR, clustered

GIB = 1 << 30


def bus_gigabytes(system: LibrarySystem, request: LibraryRequest) -> float:
    (point,) = predict_library(system, request)
    factor = float(collective(request.collective).bus_factor(system.ranks))
    return factor * point.size_bytes / point.seconds / 1e9


@pytest.mark.parametrize(
    ("system", "collective_name", "gibibytes", "algorithm", "published"),
    [
        (
            H100,
            "all_reduce",
            16,
            "default",
            482,
        ),  # awsome-distributed-training, NVIDIA/nccl-tests#212
        (H100, "all_reduce", 16, "ring", 367),  # ml-engineering, H200 with NCCL_NVLS_ENABLE=0
        (H100, "all_gather", 16, "default", 361),  # ml-engineering, H200
        (H100, "reduce_scatter", 16, "default", 363),  # ml-engineering, H200
        (A100, "all_reduce", 16, "default", 235),  # ml-engineering, microsoft/superbenchmark
        (A100, "all_gather", 8, "default", 230),  # microsoft/superbenchmark
        (A100, "broadcast", 8, "default", 235),  # microsoft/superbenchmark
        (A100, "all_to_all", 8, "default", 226),  # microsoft/superbenchmark
        (B200, "all_reduce", 16, "ring", 682),  # ml-engineering
        (B200, "all_reduce", 16, "default", 838),  # ml-engineering
        (MI300X, "all_reduce", 4, "default", 313),  # ml-engineering
        (
            replace(MI300X, ranks_per_node=2, intra_bytes_per_second=64e9),
            "all_reduce",
            4,
            "default",
            47.7,
        ),
        (
            clustered(H100, 2),
            "all_reduce",
            16,
            "default",
            474,
        ),  # 460-487, dstack and others
        (clustered(B200, 2), "all_reduce", 8, "default", 694),  # 684 and 703, dstack
        (clustered(A100, 2, HDR), "all_reduce", 4, "default", 189),  # NVIDIA/deepops
        (
            clustered(A100, 4, HDR),
            "all_reduce",
            4,
            "default",
            192,
        ),  # NVIDIA/deepops, NVIDIA/nccl#812
        (
            clustered(H100, 8, replace(NDR, in_network_reduction=True)),
            "all_reduce",
            8,
            "default",
            387,
        ),
    ],
)
def test_large_sizes_are_as_fast_as_published(
    system: LibrarySystem,
    collective_name: str,
    gibibytes: int,
    algorithm: str,
    published: float,
) -> None:
    request = LibraryRequest(collective_name, (gibibytes * GIB,), algorithm=algorithm)
    assert bus_gigabytes(system, request) == pytest.approx(published, rel=0.08)


@pytest.mark.parametrize(
    ("system", "request_", "microseconds"),
    [
        (
            A100,
            LibraryRequest("all_reduce", (8,), gpus_per_process=8),
            35,
        ),  # microsoft/superbenchmark
        (
            A100,
            LibraryRequest("all_to_all", (1024,), gpus_per_process=8),
            89,
        ),  # microsoft/superbenchmark
        (clustered(A100, 2, HDR), LibraryRequest("all_reduce", (8,)), 39),  # NVIDIA/deepops
        (clustered(H100, 2), LibraryRequest("all_reduce", (8,)), 30),  # dstack
    ],
)
def test_small_sizes_take_as_long_as_published(
    system: LibrarySystem, request_: LibraryRequest, microseconds: float
) -> None:
    (point,) = predict_library(system, request_)
    assert point.seconds * 1e6 == pytest.approx(microseconds, rel=0.24)
