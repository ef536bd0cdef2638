"""Gloo on this machine: every collective, type and op that the backend offers, each result checked."""

from __future__ import annotations

import os
import random
from itertools import product
from typing import Any

import pytest

from ccbench.backends.gloo import BACKEND, REDUCE_OPS, addresses_by_interface, meet
from ccbench.cases.axes import UNEVEN, Case
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import CPU_DTYPES
from ccbench.runner.measure import RankResult
from tests.backends import measuring
from tests.backends.measuring import REFUSED

from .team import PipedExchange, measured, on_ranks

torch_missing = BACKEND.unavailable()
needs_torch = pytest.mark.skipif(torch_missing is not None, reason=str(torch_missing))

ELEMENTS = 129
HALVES, COLUMNS = "rank // 2", "rank % 2"


def case_of(collective: str, ranks: int, count: int = ELEMENTS, **changes: Any) -> Case:
    return measuring.case_of("gloo", collective, ranks=ranks, count=count, **changes)


def every_case(ranks: int) -> list[Case]:
    cases = []
    for name, row in COLLECTIVES.items():
        cases += [case_of(name, ranks, in_place=in_place) for in_place in (False, True)]
        cases.append(case_of(name, ranks, count=0))
        if row.reduces:
            everything = product(REDUCE_OPS, (False, True), ("float32", "int32"))
            cases += [
                case_of(name, ranks, op=op, in_place=in_place, dtype=dtype)
                for op, in_place, dtype in everything
            ]
        if ranks == 2 and row.moves_data:
            cases += [case_of(name, ranks, dtype=dtype) for dtype in CPU_DTYPES]
    return [case for case in cases if BACKEND.unsupported(case) is None]


def all_right(ranks: int, cases: list[Case]) -> list[list[RankResult]]:
    for case in cases:
        assert BACKEND.unsupported(case) is None, case.label
    by_case = measured(ranks, cases)
    for case, results in zip(cases, by_case, strict=True):
        for result in results:
            assert result.mismatch is None, f"{case.label}: {result.mismatch}"
            assert result.stamps.shape[1] >= 2
    return by_case


@needs_torch
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_case_that_is_offered_gives_the_right_result(ranks: int) -> None:
    all_right(ranks, every_case(ranks))


@needs_torch
def test_groups_and_pairs_communicate_among_themselves() -> None:
    cases = [
        case_of("all_reduce", 4, groups="rank // 2"),
        case_of("all_gather", 4, groups="rank % 2"),
        case_of("broadcast", 4, groups="rank % 2", root=1),
        case_of("reduce_scatter", 4, groups="rank % 2", op="min", in_place=True),
        case_of("send_recv", 4, pair="0>3"),
        case_of("send_recv", 4, pair="2<>1"),
    ]
    all_right(4, cases)


@needs_torch
def test_uneven_blocks_arrive() -> None:
    draw = random.Random(9)
    matrices = [
        [[draw.choice((0, 0, 1, 2, 7)) for _ in range(3)] for _ in range(3)] for _ in range(6)
    ]
    traffics = [
        "",
        "zipf:1.2",
        "hot:1",
        *(str(matrix) for matrix in matrices if any(map(any, matrix))),
    ]
    cases = [
        case_of(UNEVEN, 3, traffic=traffic, count=count)
        for traffic in traffics
        for count in (1, 37)
    ]
    all_right(3, [*cases, case_of(UNEVEN, 3, traffic="hot:0.5", dtype="bfloat16")])


@needs_torch
def test_one_group_runs_while_the_others_stand_by() -> None:
    cases = [
        case_of(
            name,
            4,
            groups=COLUMNS,
            active_group=alone,
            root=1 if COLLECTIVES[name].rooted else -1,
        )
        for name, alone in (
            ("all_reduce", 0),
            ("all_to_all_v", 1),
            ("reduce", 0),
            ("send_recv", 1),
            ("barrier", 0),
        )
    ]
    cases.append(case_of("all_reduce", 4, groups="[[2, 0]]"))
    all_right(4, cases)


@needs_torch
def test_ranks_with_clocks_of_their_own_measure_how_long_and_not_when() -> None:
    ((first, second),) = measured(2, [case_of("all_reduce", 2)], one_clock=False)
    assert first.stamps.shape[1] >= 2
    for result in (first, second):
        assert (result.stamps[:, :, 0] == 0).all()
        assert (result.stamps == first.stamps).all()


@needs_torch
def test_a_missing_interface_is_named_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    (answer,) = on_ranks(1, lambda exchange: str(meet(exchange)))
    assert answer.startswith("BackendUnavailable: gloo: GLOO_SOCKET_IFNAME=nosuch0")
    assert "lo" in answer.splitlines()[0]


@needs_torch
def test_ranks_of_one_host_listen_on_loopback_alone() -> None:
    def work(exchange: PipedExchange) -> tuple[str, list[str]]:
        route = meet(exchange)
        port = route.store.port
        exchange.barrier()
        with open("/proc/net/tcp") as table, open("/proc/net/tcp6") as table6:
            rows = [line.split()[1:4] for line in (*table, *table6)]
        # 0A is TCP_LISTEN; addresses are hexadecimal words in the byte order of the host.
        listening_at = [
            address
            for address, _, state in rows
            if state == "0A" and address.endswith(f":{port:04X}")
        ]
        exchange.barrier()
        return str(route), listening_at

    for route, listening in on_ranks(2, work):
        assert route == "gloo over tcp, lo (127.0.0.1)"
        assert [address.split(":")[0] for address in listening] == ["0100007F"]


def test_loopback_comes_last_among_the_interfaces() -> None:
    addresses = list(addresses_by_interface().values())
    assert "127.0.0.1" in addresses
    assert addresses[-1].startswith("127.")


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("all_reduce", {"dtype": "uint32"}, "no dtype uint32"),
        ("all_gather", {"dtype": "uint32"}, "no dtype uint32"),
        ("all_reduce", {"dtype": "float8_e4m3"}, "no dtype float8_e4m3"),
        ("all_reduce", {"op": "premulsum"}, "no op premulsum"),
        ("all_reduce", {"op": "avg", "dtype": "int64"}, "no avg of int64: torch divides"),
        ("all_reduce", {"algorithm": "ring"}, "cannot be chosen"),
        *REFUSED,
    ],
)
def test_what_gloo_lacks_is_refused_with_a_reason(
    name: str, changes: dict[str, Any], reason: str
) -> None:
    assert reason in (BACKEND.unsupported(case_of(name, 2, **changes)) or "")


def test_looking_at_the_backend_loads_no_torch() -> None:
    import subprocess
    import sys

    program = (
        "import sys\n"
        "from ccbench.backends.gloo import BACKEND\n"
        "BACKEND.unavailable(), BACKEND.version(), BACKEND.algorithms('all_reduce')\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], env=dict(os.environ)).returncode == 0
