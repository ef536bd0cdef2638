"""Tests here need an NVIDIA GPU, its driver, CuPy and NVRTC: they skip themselves where one is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ccbench.backends import open_backend
from ccbench.backends.control_block import Control
from ccbench.backends.cuda.runtime import Cuda, open_cuda
from ccbench.backends.cuda.single_process import CudaEndpoint
from ccbench.errors import CcbenchError

HERE = Path(__file__).parent

Opened = Callable[..., CudaEndpoint]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked, so that a skip is allowed and ``-m gpu`` finds it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def cuda() -> Cuda:
    """CUDA with at least one device, or a skip with the reason."""
    reason = open_backend("cuda").unavailable()
    if reason:
        pytest.skip(reason)
    try:
        return open_cuda()
    except CcbenchError as error:
        pytest.skip(str(error))


@pytest.fixture
def opened(cuda: Cuda) -> Iterator[Opened]:
    """Endpoints on the first device alone (``loopback``), closed afterwards."""
    made: list[CudaEndpoint] = []

    def make(ranks: int, limit_seconds: float = 5.0) -> CudaEndpoint:
        control = Control(1, 4096)
        made.append(CudaEndpoint(control, ranks, cuda, devices=1, limit_seconds=limit_seconds))
        return made[-1]

    yield make
    for endpoint in made:
        endpoint.close()
