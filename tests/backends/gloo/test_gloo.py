"""Gloo on this machine: every collective, type and op that the backend offers, each result checked."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product

import pytest

from ccbench.backends.gloo import BACKEND
from ccbench.backends.gloo.endpoint import REDUCE_OPS
from ccbench.backends.gloo.groups import addresses_by_interface, meet
from ccbench.cases import NO_OP, NO_ROOT, Case
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import CPU_DTYPES, item_bytes

from .team import PipedExchange, measured, on_ranks

torch_missing = BACKEND.unavailable()
needs_torch = pytest.mark.skipif(torch_missing is not None, reason=str(torch_missing))

ELEMENTS = 129


def case_of(collective: str, ranks: int, **changes: object) -> Case:
    row = COLLECTIVES[collective]
    dtype = str(changes.get("dtype", "float32"))
    plain = Case(
        suite="test",
        backend="gloo",
        collective=collective,
        algorithm="default",
        dtype=dtype,
        op="sum" if row.reduces else NO_OP,
        size_bytes=row.size_bytes(ELEMENTS, ranks, item_bytes(dtype)),
        count=ELEMENTS if row.moves_data else 0,
        ranks=ranks,
        root=ranks - 1 if row.rooted else NO_ROOT,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def every_case(ranks: int) -> list[Case]:
    cases = []
    for name, row in COLLECTIVES.items():
        cases += [case_of(name, ranks, in_place=in_place) for in_place in (False, True)]
        cases.append(case_of(name, ranks, count=0, size_bytes=0))
        if row.reduces:
            everything = product(REDUCE_OPS, (False, True), ("float32", "int32"))
            cases += [
                case_of(name, ranks, op=op, in_place=in_place, dtype=dtype)
                for op, in_place, dtype in everything
            ]
        if ranks == 2 and row.moves_data:
            cases += [case_of(name, ranks, dtype=dtype) for dtype in CPU_DTYPES]
    return [case for case in cases if BACKEND.unsupported(case) is None]


@needs_torch
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_case_that_is_offered_gives_the_right_result(ranks: int) -> None:
    cases = every_case(ranks)
    for case, results in zip(cases, measured(ranks, cases), strict=True):
        for result in results:
            assert result.mismatch is None, f"{case.label}: {result.mismatch}"
            assert result.stamps.shape[1] >= 2


@needs_torch
def test_groups_and_pairs_communicate_among_themselves() -> None:
    cases = [
        case_of("all_reduce", 4, groups="rank // 2"),
        case_of("all_gather", 4, groups="rank % 2", size_bytes=2 * 4 * ELEMENTS),
        case_of("broadcast", 4, groups="rank % 2", root=1),
        case_of("reduce_scatter", 4, groups="rank % 2", op="min", in_place=True),
        case_of("send_recv", 4, pair="0>3"),
        case_of("send_recv", 4, pair="2<>1"),
    ]
    for case, results in zip(cases, measured(4, cases), strict=True):
        for result in results:
            assert result.mismatch is None, f"{case.label}: {result.mismatch}"


@needs_torch
def test_ranks_with_clocks_of_their_own_measure_how_long_and_not_when() -> None:
    ((first, second),) = measured(2, [case_of("all_reduce", 2)], one_clock=False)
    assert first.stamps.shape[1] >= 2
    for result in (first, second):
        assert (result.stamps[:, :, 0] == 0).all()
        assert (result.stamps == first.stamps).all()


@needs_torch
def test_a_missing_interface_is_named_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
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
        found = [address for address, _, state in rows if state == "0A" and address.endswith(f":{port:04X}")]
        exchange.barrier()
        return str(route), found

    for route, listening in on_ranks(2, work):
        assert route == "gloo over tcp, lo (127.0.0.1)"
        assert [address.split(":")[0] for address in listening] == ["0100007F"]


def test_loopback_comes_last_among_the_interfaces() -> None:
    found = list(addresses_by_interface().values())
    assert "127.0.0.1" in found
    assert found[-1].startswith("127.")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "uint32"}, "no dtype uint32"),
        ({"dtype": "float8_e4m3"}, "no dtype float8_e4m3"),
        ({"op": "premulsum"}, "no op premulsum"),
        ({"op": "avg", "dtype": "int64"}, "no avg of int64: torch divides"),
        ({"algorithm": "ring"}, "cannot be chosen"),
        ({"mode": "graph"}, "no mode graph"),
        ({"aggregation": 2}, "no aggregation 2; there is on nccl"),
        ({"channels": 2}, "no channels 2"),
        ({"registration": "local"}, "no registration local"),
        ({"transport": "host"}, "no transport host"),
        ({"misalignment_bytes": 4}, "no misalignment 4"),
        ({"protocol": "ll"}, "no protocol ll"),
    ],
)
def test_what_gloo_lacks_is_refused_with_a_reason(changes: dict[str, object], reason: str) -> None:
    said = BACKEND.unsupported(case_of("all_reduce", 2, **changes))
    assert said is not None
    assert reason in said


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
