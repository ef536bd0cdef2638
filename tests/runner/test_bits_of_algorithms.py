"""Bits of own algorithms are what their schedules and kernels say: dependent on positions or not, alike on all ranks.

``cpu`` runs schedules on real ranks, ``cuda-host`` the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ccbench.backends.base import TeamRequest
from ccbench.backends.control_block import Control
from ccbench.backends.cuda_host import BACKEND, CHANNELS, EmulatedEndpoint
from ccbench.backends.kernels.sources import kernel_algorithms
from ccbench.cases.axes import Case, InexactData
from ccbench.cases.measurement import Rounding, Status
from ccbench.collectives import COLLECTIVES
from ccbench.runner.accumulation import UNKNOWN
from ccbench.runner.bits import launch_inexact, rounding_of_ranks
from ccbench.runner.workers.team import WorkerTeam
from ccbench.schedules import algorithms_of, schedule_for
from ccbench.schedules.orders import BitDependence, bit_dependence
from tests.backends import measuring
from tests.backends.kernels.summation import kernel_bits
from tests.backends.measuring import SAMPLING

SIZE_BYTES = 256 << 10
REDUCING = [name for name, row in COLLECTIVES.items() if row.reduces]


def case_of(backend: str, name: str, algorithm: str, ranks: int, **changes: Any) -> Case:
    count = SIZE_BYTES // 4 // (ranks if COLLECTIVES[name].blocked else 1)
    return measuring.case_of(
        backend, name, algorithm, ranks, count, inexact=InexactData(), **changes
    )


def check(case: Case, rounding: Rounding, expected: BitDependence) -> None:
    """See that launches agree, and ranks and positions where ``expected`` says so."""
    assert rounding.differing_over_launches == 0, case.label
    differs = rounding.differing_over_ranks
    assert (differs is not None) == (case.collective == "all_reduce")
    assert bool(differs) == expected.ranks, case.label
    assert bool(rounding.first_difference) == expected.ranks
    assert rounding.differing_over_positions is not None
    assert bool(rounding.differing_over_positions) == expected.positions, case.label
    assert rounding.correctly_rounded_share is not None
    if expected.depth == 1:
        assert rounding.correctly_rounded_share == 1
    else:
        assert 0.2 < rounding.correctly_rounded_share < 1


# -- schedules -------------------------------------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(2, marks=pytest.mark.exhaustive),
        3,
        pytest.param(4, marks=pytest.mark.exhaustive),
        pytest.param(5, marks=pytest.mark.exhaustive),
    ],
)
def team(request: pytest.FixtureRequest) -> Iterator[WorkerTeam]:
    made = WorkerTeam(TeamRequest("cpu", request.param))
    yield made
    made.close()


def of_its_size(case: Case) -> BitDependence:
    """What bits depend on within a message of the case's size."""
    made = schedule_for(
        case.collective,
        case.algorithm,
        case.ranks,
        max(case.root, 0),
        size_bytes=case.size_bytes,
    )
    # Without the row of its name it stands for no other size.
    return bit_dependence(replace(made, algorithm="mine"), own_first=case.in_place)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", REDUCING)
def test_the_cpu_backend_adds_as_its_schedules_say(
    team: WorkerTeam, name: str, in_place: bool
) -> None:
    for algorithm in algorithms_of(name):
        case = case_of("cpu", name, algorithm, len(team.pids), in_place=in_place)
        measurement = team.run(case, SAMPLING)
        if measurement.status is Status.UNSUPPORTED:
            continue
        assert measurement.status is Status.OK, measurement.detail
        check(case, measurement.rounding, of_its_size(case))
        assert measurement.rounding.accumulation.startswith("float32")
        assert UNKNOWN not in measurement.rounding.accumulation


# -- kernels ---------------------------------------------------------------------------------------------------


@pytest.mark.thinned(6)
@pytest.mark.parametrize("ranks", range(2, 6))
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [(name, algorithm) for name in REDUCING for algorithm in kernel_algorithms(name)],
)
def test_kernels_add_as_is_said_of_them(
    name: str, algorithm: str, in_place: bool, ranks: int
) -> None:
    endpoint = EmulatedEndpoint(Control(1, 64), ranks)
    case = case_of("cuda-host", name, algorithm, ranks, in_place=in_place)
    if BACKEND.unsupported(case):
        return
    endpoint.prepare(case)
    channels = endpoint._calls[0].channels or CHANNELS
    bits = launch_inexact(endpoint, case, lambda number: endpoint.launch(1))
    endpoint.finish()
    expected = kernel_bits(algorithm, name, ranks, channels, max(case.root, 0))
    check(case, rounding_of_ranks(case, bits), expected)
