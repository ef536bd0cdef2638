"""The whole way of the nccl backend but the GPU: NCCL's double moves real bytes, everything else is real."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cuda import runtime as modules
from ccbench.backends.cuda.context import CONCURRENT_STREAM, MAIN_STREAM
from ccbench.backends.nccl import diagnostics as hangs
from ccbench.backends.nccl import endpoint as endpoint_module
from ccbench.backends.nccl.device import RankContext
from ccbench.backends.nccl.diagnostics import CollectiveHung
from ccbench.cases.axes import UNEVEN, Case
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.suite.model import IN_PLACE_COLLECTIVES
from tests.backends.cuda.emulated import FakeNvrtc
from tests.backends.measuring import (
    compares_on_the_device,
    launched,
    measured,
    spoilt,
    wrong_elements,
)
from tests.tiers import examples

from .clique import Clique
from .double import Process
from .measuring import bindings, case_of, close_clean, opened
from .process import Group

OPS = ("sum", "prod", "min", "max", "avg", "premulsum")
PLACES: dict[bool, list[dict[str, Any]]] = {
    False: [{}],
    True: [{"root": root} for root in range(4)],
}
"""Of collectives with and without a root."""

CROSSED = ("all_gather on rank % 2", "reduce_scatter on [[0, 1]]", "all_to_all on all")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("version", [22809, 22105])
def test_every_collective_is_exact_in_every_mode(collective: str, version: int) -> None:
    endpoint, process = opened(version=version)
    for mode in ("streaming", "isolated", "graph", "cold"):
        assert wrong_elements(endpoint, case_of(collective, mode=mode)) == 0
    for changes in PLACES[COLLECTIVES[collective].rooted]:
        for in_place in {False, collective in IN_PLACE_COLLECTIVES}:
            assert (
                wrong_elements(endpoint, case_of(collective, in_place=in_place, **changes)) == 0
            )
    close_clean(endpoint, process)


@examples(
    10,
    200,
    collective=st.sampled_from(list(COLLECTIVES)),
    ranks=st.integers(1, 5),
    count=st.integers(0, 9),
    dtype=st.sampled_from([name for name in ITEM_BYTES if not name.startswith("float8")]),
    version=st.sampled_from([21704, 22809]),
)
def test_any_ranks_types_and_counts_are_exact(
    collective: str, ranks: int, count: int, dtype: str, version: int
) -> None:
    endpoint, process = opened(ranks, version)
    assert wrong_elements(endpoint, case_of(collective, ranks, count, dtype=dtype)) == 0
    close_clean(endpoint, process)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("dtype", "op"), list(itertools.product(ITEM_BYTES, OPS)))
def test_every_dtype_and_op_is_exact_but_what_nccl_refuses_of_one_rank(
    dtype: str, op: str, ranks: int
) -> None:
    endpoint, process = opened(ranks)
    for collective in ("all_reduce", "reduce_scatter"):
        case = case_of(
            collective, ranks, 300, dtype=dtype, op=op, in_place=collective == "reduce_scatter"
        )
        if ranks == 1 and dtype.startswith("float8") and op in OPS[4:]:
            with pytest.raises(CannotRun, match="NCCL refuses"):
                endpoint.prepare(case)
        else:
            assert wrong_elements(endpoint, case) == 0
            assert all(not member.ops for member in process.members.values())
    assert not process.exceptions


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", [name for name in ITEM_BYTES if "float" in name])
@pytest.mark.parametrize("in_place", [False, True])
def test_averages_that_nccl_rounds_are_right_and_others_are_not(
    dtype: str, in_place: bool
) -> None:
    endpoint, process = opened(3)
    case = case_of("all_reduce", 3, 3000, dtype=dtype, op="avg", in_place=in_place)
    assert wrong_elements(endpoint, case) == 0
    launched(endpoint, case)
    address, size = bindings(endpoint)[1].outputs()[0]
    process.world.view(address, size, 1)[:] = 0x7F
    assert spoilt(endpoint) == (1, 3000, 0)


def test_memory_that_nccl_knows_from_a_graph_goes_back_after_its_communicators() -> None:
    endpoint, process = opened(2)
    case = case_of("all_gather", 2, mode="graph", registration="local")
    for _ in range(2):
        assert wrong_elements(endpoint, case) == 0
        assert not process.nccl_memory
    close_clean(endpoint, process)


@pytest.mark.parametrize("registration", ["local", "symmetric"])
def test_memory_that_nccl_does_not_register_is_not_measured_as_registered(
    registration: str,
) -> None:
    endpoint, process = opened(2, registers=False)
    for _ in range(2):
        with pytest.raises(
            CannotRun, match=f"registration {registration}: NCCL does not register"
        ):
            endpoint.prepare(case_of("all_gather", 2, registration=registration))
        assert not process.nccl_memory
    assert wrong_elements(endpoint, case_of("all_gather", 2)) == 0


def test_what_runs_beside_starts_when_the_own_collective_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, process = opened(2)
    endpoint.prepare(case_of("reduce_scatter", 2, concurrent="all_gather"))
    waiting: list[int] = []
    monkeypatch.setattr(
        process.runtime,
        "streamWaitEvent",
        lambda stream, event, flags=0: waiting.append(stream),
    )
    endpoint.launch(1)
    beside = [binding for binding in bindings(endpoint) if binding.part.stream != MAIN_STREAM]
    assert waiting == [binding.context.on(binding.part.stream).handle for binding in beside]


@pytest.mark.parametrize("slower", [MAIN_STREAM, CONCURRENT_STREAM])
def test_the_slower_collective_counts_on_the_slowest_device(
    slower: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = opened(3)
    endpoint.prepare(case_of("all_reduce", 3, concurrent="all_gather"))
    monkeypatch.setattr(
        RankContext,
        "elapsed_seconds",
        lambda context, lane, since=None: (2.0, 3.0, 1.0)[context.rank] + (lane == slower),
    )
    endpoint.launch(1)
    assert endpoint.device_seconds() == 4.0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("pair", ["0>3", "3>0", "0<>3", "2<>1"])
def test_a_pair_communicates_alone_and_the_others_keep_still(pair: str) -> None:
    endpoint, process = opened()
    assert wrong_elements(endpoint, case_of("send_recv", pair=pair)) == 0
    per_launch = 4 if "<>" in pair else 2
    assert len(process.log) % per_launch == 0
    assert set(process.log) == {"ncclSend", "ncclRecv"}


@pytest.mark.parametrize("mode", ["streaming", "graph"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_stream_is_let_go_after_the_first_launch_and_a_graph_after_the_last(
    mode: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = opened(ranks)
    blocking = endpoint._launches._blocking = MagicMock(shared=False)
    endpoint.prepare(case_of("all_reduce", ranks, 10, mode=mode))
    opened_at: list[int] = []
    enqueued: list[int] = []
    launches, enqueue, launch_graph = (
        endpoint._launches,
        endpoint._launches.enqueue,
        RankContext.launch_graph,
    )

    def noted_graph(context: RankContext, size: int) -> None:
        enqueued.extend([1] * size if context.rank == 0 else ())
        launch_graph(context, size)

    def noted() -> None:
        enqueued.extend([1] if mode == "streaming" else ())
        enqueue()

    monkeypatch.setattr(launches, "enqueue", noted)
    monkeypatch.setattr(RankContext, "launch_graph", noted_graph)
    blocking.release.side_effect = lambda: opened_at.append(len(enqueued))
    endpoint.launch(64)
    endpoint.device_seconds()
    behind = 1 if mode == "streaming" else 64
    assert opened_at[0] == behind
    assert endpoint.facts().blocked_launches == behind


def test_nccl_runs_without_a_blocking_kernel_where_no_kernel_can_be_compiled_for_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modules, "nvrtc", lambda *_: FakeNvrtc(90, 12, 13, (100,)))
    endpoint, process = opened(2, blocked=True)
    assert wrong_elements(endpoint, case_of("all_reduce", 2)) == 0
    assert wrong_elements(endpoint, case_of("all_reduce", 2, mode="cold")) == 0
    assert "nothing holds devices back" in endpoint.remark()
    assert not process.runtime.pinned


# -- what NCCL chose -----------------------------------------------------------------------------------------


def with_log(process: Process, monkeypatch: pytest.MonkeyPatch, line: str) -> list[int]:
    """Let the double write its tuning log as NCCL does; how often the log was switched."""
    resets: list[int] = []
    launched_group = process.module.groupEnd

    def launched_and_logged() -> None:
        launched_group()
        file = os.environ.get("NCCL_DEBUG_FILE")
        if file and os.environ.get("NCCL_DEBUG_SUBSYS") == "TUNING":
            with open(file, "a") as log:
                log.write(line + "\n")

    switch = MagicMock(side_effect=lambda: resets.append(len(process.log)))
    monkeypatch.setattr(process.native, "ncclResetDebugInit", switch, raising=False)
    monkeypatch.setattr(process.module, "groupEnd", launched_and_logged)
    return resets


def test_what_nccl_chose_comes_from_one_logged_launch_of_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    endpoint, process = opened(2)
    line = "h:1:1 [0] NCCL INFO AllReduce: 3108 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}"
    resets = with_log(process, monkeypatch, line)
    case = case_of("all_reduce", 2)
    assert endpoint.prepare(case) == "nvlstree"
    assert resets == [0, 2]
    facts = endpoint.facts()
    assert (facts.protocol_used, facts.channels_used) == ("simple", 16)
    endpoint.finish()
    assert os.environ["NCCL_DEBUG"] == "WARN"
    assert "NCCL_DEBUG_FILE" not in os.environ
    measured(endpoint, case)
    assert len(resets) == 2


def test_another_algorithm_than_asked_for_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, process = opened(2)
    with_log(
        process, monkeypatch, "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"
    )
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with pytest.raises(CannotRun, match="asked for tree, NCCL ran ring ll"):
        endpoint.prepare(case_of("all_reduce", 2, algorithm="tree"))
    assert endpoint.prepare(case_of("all_reduce", 2, algorithm="ring", protocol="ll")) == "ring"


# -- refusals and troubles -----------------------------------------------------------------------------------


def test_too_little_memory_is_said_and_the_next_case_runs() -> None:
    endpoint, process = opened(2, memory_bytes=16 << 20)
    with pytest.raises(OutOfMemory):
        endpoint.prepare(case_of("all_gather", 2, 8 << 20))
    with pytest.raises(OutOfMemory):
        endpoint.prepare(case_of("all_gather", 2, 8 << 20, registration="symmetric"))
    assert wrong_elements(endpoint, case_of("all_reduce", 2)) == 0
    close_clean(endpoint, process)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hangs are noticed soon, and no service says more of them."""
    monkeypatch.setattr(endpoint_module, "limit_for", lambda case, times: 0.2)
    monkeypatch.setattr(hangs, "ras_report", lambda: "")


@pytest.mark.usefixtures("impatient")
def test_a_device_that_never_ends_is_named_with_what_ras_says_and_the_communicator_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        hangs, "ras_report", lambda: "Errors\n======\n#0-0 rank 1 does not answer\n"
    )
    endpoint, process = opened(2)
    endpoint.prepare(case_of("all_reduce", 2))
    process.world.stopped.add(1)
    endpoint.begin_sample(7)
    with pytest.raises(CollectiveHung) as caught:
        endpoint.launch(3)
    text = str(caught.value)
    assert text.startswith("rank 0 on ")
    assert "all_reduce default float32 sum 3108 B, 2 ranks, nccl did not end in " in text
    assert "(sample 7); still waiting: " in text
    assert "rank 1 (GPU 1, 0000:01:00.0)" in text
    assert "RAS: #0-0 rank 1 does not answer; the communicator was aborted" in text
    assert caught.value.exit_code == 4
    assert all(member.aborted for member in process.members.values()) or not process.members


@pytest.mark.usefixtures("impatient")
def test_graphs_go_before_the_communicators_that_they_know() -> None:
    endpoint, process = opened(2)
    endpoint.prepare(case_of("all_reduce", 2, mode="graph"))
    process.world.stopped.add(1)
    with pytest.raises(CollectiveHung):
        endpoint.launch(3)
    assert not process.world.deadlocks
    endpoint, process = opened(2)
    endpoint.prepare(case_of("all_reduce", 2, mode="graph"))
    close_clean(endpoint, process)


@pytest.mark.usefixtures("impatient")
def test_a_call_that_fails_at_once_is_no_hang_and_no_refusal() -> None:
    endpoint, process = opened(2)
    process.refuse["ncclAllReduce"] = (1, "Cuda failure 2 'out of memory'")
    with pytest.raises(
        CollectiveHung,
        match=r"nccl failed \(warming up\); NCCL says: ncclAllReduce: .*out of memory",
    ):
        endpoint.prepare(case_of("all_reduce", 2))
    assert not process.members


@pytest.mark.usefixtures("impatient")
def test_a_call_that_does_not_return_is_ended_by_the_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, process = opened(2)
    endpoint.prepare(case_of("all_reduce", 2))
    aborted = threading.Event()
    abort, enqueue = endpoint._communicators.abort, endpoint._launches.enqueue

    def stuck() -> None:
        assert aborted.wait(10.0)
        process.refuse["ncclAllReduce"] = (6, "aborted")
        enqueue()

    def abort_and_tell() -> None:
        abort()
        aborted.set()

    endpoint._watchdog._on_expiry = abort_and_tell
    monkeypatch.setattr(endpoint._launches, "enqueue", stuck)
    with pytest.raises(
        CollectiveHung, match=r"did not end in .* NCCL says: .*the communicator was aborted"
    ):
        endpoint.launch(1)
    assert endpoint._watchdog.expired
    endpoint._watchdog.close()


# -- everything together -------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case that a suite may ask for."""
    ranks = 4
    collective = draw(st.sampled_from(list(COLLECTIVES)))
    row = COLLECTIVES[collective]
    pair = draw(st.sampled_from(["", "", "1>2", "0<>3"])) if collective == "send_recv" else ""
    groups = (
        "" if pair else draw(st.sampled_from(["", "", "rank // 2", "rank & 1", "[[3, 0]]"]))
    )
    mode = draw(st.sampled_from(["streaming", "isolated", "graph", "cold"]))
    aligned = not row.moves_data
    kinds = ["none", "none", "local", *([] if pair else ["symmetric"])]
    changes: dict[str, Any] = {
        "mode": mode,
        "in_place": collective in IN_PLACE_COLLECTIVES and draw(st.booleans()),
        "dtype": draw(st.sampled_from(["float32", "int8", "bfloat16", "float64"])),
        "registration": "none" if aligned else draw(st.sampled_from(kinds)),
        "aggregation": draw(st.sampled_from([1, 1, 2, 5])),
        "misalignment_bytes": 0 if aligned else draw(st.sampled_from([0, 0, 8, 40])),
        "pair": pair,
        "groups": groups,
        "concurrent": ""
        if pair or mode == "graph"
        else draw(st.sampled_from(["", "", "all_to_all", "all_reduce", *CROSSED])),
        "active_group": draw(st.sampled_from([-1, -1, 0])) if groups else -1,
        "traffic": draw(st.sampled_from(["", "hot:0.8", "zipf:3"]))
        if collective == UNEVEN
        else "",
    }
    if row.reduces:
        changes["op"] = draw(st.sampled_from(OPS))
    members = 2 if groups else ranks
    if row.rooted:
        changes["root"] = draw(st.integers(0, members - 1))
    return case_of(collective, ranks, draw(st.sampled_from([0, 1, 7, 1000])), **changes)


@examples(
    4,
    40,
    settings(suppress_health_check=[HealthCheck.too_slow]),
    several=st.lists(cases(), min_size=1, max_size=4),
)
def test_any_cases_after_each_other_are_exact_and_leave_nothing(several: list[Case]) -> None:
    endpoint, process = opened()
    for case in several:
        assert wrong_elements(endpoint, case) == 0
    close_clean(endpoint, process)


def test_later_rounds_are_compared_on_the_device_and_a_wrong_one_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, _ = opened(3)
    compares_on_the_device(endpoint, case_of("all_gather", 3, 70_003), monkeypatch)


@pytest.mark.parametrize(
    ("version", "settings_text"), [(23203, '{"NCCL_DEBUG": "WARN"}'), (22809, "")]
)
def test_the_value_in_effect_of_a_variable_is_told_where_the_library_tells_it(
    version: int, settings_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "warn")
    monkeypatch.setenv("NCCL_BUFFSIZE", "8388608")  # one that it reads and does not tell of
    monkeypatch.delenv("NCCL_SET_THREAD_NAME", raising=False)
    endpoint, process = opened(2, version=version)
    assert measured(endpoint, case_of("all_reduce", 2))[1].library_settings == settings_text
    close_clean(endpoint, process)


@pytest.mark.parametrize(
    ("groups", "version"), [("", 23203), ("[[0, 4], [2, 3]]", 23203), ("", 22809)]
)
def test_communicators_are_made_and_split_by_the_hosts_clock_and_given_back(
    groups: str, version: int
) -> None:
    endpoint, process = opened(5, version=version)
    endpoint.connect()
    kept = len(process.members)
    for name in ("comm_init", "comm_split"):
        case = case_of(name, 5, groups=groups, mode="isolated")
        result, _ = measured(endpoint, case)
        assert result.mismatch is None
        assert "the host's time" in endpoint.remark()
    assert len(process.members) == kept + 4 * bool(
        groups
    )  # the groups' own are kept for the next case
    close_clean(endpoint, process)


def test_a_communicator_that_joins_too_many_ranks_is_wrong() -> None:
    endpoint, _ = opened(4)
    endpoint.prepare(case_of("comm_split", 4, mode="isolated"))
    endpoint._setups._made[0].destroy()
    endpoint._setups._made[0] = endpoint._communicators.world()[0]
    mismatch = endpoint.check(0, 1)
    assert mismatch is not None
    assert (mismatch.rank, mismatch.seen, mismatch.expected) == (0, "4 ranks answer", "2 ranks")
    endpoint._setups._made.pop(0)


def test_nothing_is_estimated_of_copy_engines_because_nccl_would_run_it_later() -> None:
    endpoint, process = opened(2, version=23203)
    copied = case_of("all_gather", 2, cta_policy="zero", registration="symmetric")
    assert measured(endpoint, copied)[1].library_estimate_seconds is None
    assert measured(endpoint, case_of("all_gather", 2))[1].library_estimate_seconds is not None
    close_clean(endpoint, process)


def test_an_algorithm_that_nccl_does_not_have_here_is_refused_and_the_next_case_runs() -> None:
    endpoint, _ = opened(2, version=23203)
    with pytest.raises(
        CannotRun, match=r'NCCL refuses: .*algSelection "NVLS_SIMPLE" cannot be honored'
    ):
        measured(endpoint, case_of("all_reduce", 2, algorithm="nvls"))
    assert wrong_elements(endpoint, case_of("all_reduce", 2, algorithm="ring")) == 0


@pytest.mark.parametrize("choice", [{"algorithm": "collnet"}, {"protocol": "ll128"}])
def test_what_nccl_refuses_of_one_size_costs_no_communicator_of_another(
    monkeypatch: pytest.MonkeyPatch, choice: dict[str, Any]
) -> None:
    endpoint, process = opened(2, version=23203)
    join, joined = process.join, []

    def counted(
        clique: Clique, rank: int, device: int, group: Group | None = None
    ) -> tuple[int, int]:
        joined.append(rank)
        return join(clique, rank, device, group)

    monkeypatch.setattr(process, "join", counted)
    words = []
    with monkeypatch.context() as lacking:
        if "protocol" in choice:
            lacking.setitem(
                process.refuse, "ncclAllReduce", (5, "no algorithm/protocol available")
            )
        for count in (1, 1000, 100_000):
            with pytest.raises(CannotRun, match="NCCL refuses: ") as refused:
                endpoint.prepare(case_of("all_reduce", 2, count, **choice))
            words.append(str(refused.value))
    assert words[1:] == 2 * [f"{words[0]}, at 4 B; this size was not tried"]
    assert joined == [0, 1]
    with pytest.raises(CannotRun, match="cannot be honored"):  # of another type it may differ
        endpoint.prepare(case_of("all_reduce", 2, dtype="int32", algorithm="collnet"))
    assert wrong_elements(endpoint, case_of("all_reduce", 2, algorithm="ring")) == 0
