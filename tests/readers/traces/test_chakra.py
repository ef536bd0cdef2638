"""Chakra host execution traces: records of NCCL, operators of Gloo, groups, ranks and what is left out."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pytest

from ccbench.readers.traces import chakra
from ccbench.readers.traces.events import Communication, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.recorded import expected, needs_traces, path_of

TENSOR = "GenericList[Tensor(float)]"
WORLD = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4}


def tensor(elements: int, each: int = 4) -> list[Any]:
    return [7, 8, 0, elements, each, "cuda:0"]


def node(
    name: str, values: list[Any], number: int, types: list[str] | None = None, **more: Any
) -> dict[str, Any]:
    attributes = [
        {"name": key, "type": "", "value": value}
        for key, value in more.pop("attrs", {}).items()
    ]
    return {
        "id": number,
        "name": name,
        "ctrl_deps": more.get("caller", 1),
        "inputs": {"values": values, "shapes": [], "types": types or [TENSOR]},
        "outputs": {"values": more.get("outputs", []), "shapes": [], "types": []},
        "attrs": attributes,
    }


def groups(*listing: dict[str, Any]) -> dict[str, Any]:
    return node("## process_group:init ##", [json.dumps(listing)], 3, ["String"])


def record(
    name: str, number: int, rank: int, elements: int, group: str = "0", **more: Any
) -> dict[str, Any]:
    """A record_param_comms as schema 1.1.0 writes it, of a group of 4."""
    splits = more.pop("splits", ([], []))
    values = [
        [tensor(elements)],
        more.pop("sequence", number),
        [group, ""],
        rank,
        name,
        *splits,
        0,
        1,
        4,
    ]
    outputs = [[tensor(more.pop("received", elements))]]
    return node("record_param_comms", values, number, outputs=outputs, **more)


GROUP = "__torch__.torch.classes.c10d.ProcessGroup process_group"
LAST = "bool async_op=True, int timeout=-1"
SIGNATURES = {
    "c10d::allreduce_": f"Tensor[] tensors, {GROUP}, __torch__.torch.classes.c10d.ReduceOp reduce_op, "
    f"Tensor? sparse_indices, {LAST}",
    "c10d::_reduce_scatter_base_": f"Tensor output_tensor, Tensor input_tensor, {GROUP}, {LAST}",
    "c10d::alltoall_base_": f"Tensor output, Tensor input, {GROUP}, int[] output_split_sizes, "
    f"int[] input_split_sizes, {LAST}",
    "c10d::send": f"Tensor[] tensors, {GROUP}, int dst, int tag",
    "c10d::broadcast_": f"Tensor[] tensors, {GROUP}, int root_rank, int root_tensor, {LAST}",
}


def operator(name: str, values: list[Any], number: int) -> dict[str, Any]:
    schema = f"{name}({SIGNATURES[name]}) -> (Tensor[], __torch__.torch.classes.c10d.Work)"
    return node(name, values, number, attrs={"op_schema": schema})


def trace_of(*nodes: dict[str, Any], place: str = "trace.json") -> Trace:
    document = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": list(nodes), "finish_ts": 2}
    data = json.dumps(document).encode()
    assert chakra.recognises(data)
    return chakra.read(TraceFile(place, data[:65536], io.BytesIO(data)))


def only(trace: Trace) -> Communication:
    (call,) = trace.communications
    return call


# -- records ------------------------------------------------------------------------------------------------


def test_a_record_has_its_group_rank_and_sequence_number() -> None:
    call = only(trace_of(groups(WORLD), record("allreduce", 9, 2, 1000)))
    assert (call.collective, call.name, call.dtype) == ("all_reduce", "allreduce", "float32")
    assert (call.input_bytes, call.output_bytes) == (4000, 4000)
    assert (call.rank, call.sequence, call.line) == (2, 9, 9)
    assert (call.group.name, call.group.size, call.group.ranks) == ("0", 4, (0, 1, 2, 3))
    assert call.start_seconds is call.duration_seconds is None


def test_named_attributes_come_before_positions() -> None:
    attributes = {
        "collective_name": "_allgather_base",
        "dtype": "BFloat16",
        "in_msg_nelems": 10,
        "out_msg_nelems": 40,
    }
    call = only(trace_of(record("allreduce", 9, 2, 1000, attrs=attributes)))
    assert (call.collective, call.dtype, call.input_bytes, call.output_bytes) == (
        "all_gather",
        "bfloat16",
        20,
        80,
    )


def test_elements_of_an_unknown_type_are_counted_by_their_tensors() -> None:
    call = only(
        trace_of(record("allreduce", 9, 2, 1000, attrs={"dtype": "QInt", "in_msg_nelems": 7}))
    )
    assert (call.dtype, call.input_bytes) == ("QInt", 4000)


def test_a_rank_is_its_place_in_a_group_of_listed_ranks() -> None:
    dp = {"pg_name": "3", "pg_desc": "dp", "ranks": [1, 5, 9, 13], "group_size": 4}
    trace = trace_of(
        groups(WORLD | {"group_size": 16}, dp), record("allreduce", 9, 2, 10, group="3")
    )
    assert (trace.ranks, trace.world_size, only(trace).group.description) == ((9,), 16, "dp")


def test_roots_and_partners_are_global_ranks_and_not_the_own() -> None:
    dp = {"pg_name": "3", "pg_desc": "dp", "ranks": [1, 5, 9, 13], "group_size": 4}
    own = record("allreduce", 9, 2, 10, group="3")
    calls = [
        record("broadcast", 10, 0, 10, group="3"),
        record("send", 11, 3, 10, group="3", sequence=[4, True]),
        record("recv", 12, 1, 10, group="3", sequence=[5, True]),
    ]
    trace = trace_of(groups(dp), own, *calls)
    assert [
        (communication.rank, communication.root, communication.peer)
        for communication in trace.communications[1:]
    ] == [
        (9, 1, None),
        (9, None, 13),
        (9, None, 5),
    ]
    assert [communication.sequence for communication in trace.communications] == [9, 10, 4, 5]


def test_uneven_splits_are_bytes_and_even_ones_none() -> None:
    uneven = record("all_to_allv", 9, 0, 40, splits=([1, 3, 4, 2], [2, 2, 2, 2]))
    call = only(trace_of(uneven))
    assert call.collective == "all_to_all"
    assert (call.input_splits, call.output_splits) == ((16, 48, 64, 32), ())


def test_places_in_groups_of_no_listed_ranks_are_taken_for_ranks_and_told() -> None:
    values = [[tensor(8)], 5, 93891384002768, 2, "all_to_allv", [2, 2, 2, 2], [2, 2, 2, 2]]
    plain = [[tensor(3)], 6, 93891384002768, 2, "allreduce", [], []]
    trace = trace_of(
        *(
            node("record_param_comms", inputs, i)
            for i, inputs in enumerate((values, plain), start=5)
        )
    )
    assert trace.ranks == (2,)
    assert [warning.kind for warning in trace.warnings] == ["assumed"]
    # What one record tells of the group holds for all of the same address, which is no name.
    assert [
        (communication.group.name, communication.group.size)
        for communication in trace.communications
    ] == [("", 4), ("", 4)]


def test_a_trace_that_says_to_be_of_two_ranks_is_told() -> None:
    trace = trace_of(
        groups(WORLD),
        *(record("allreduce", 9 + i, rank, 8) for i, rank in enumerate((1, 3, 3))),
    )
    assert trace.ranks == (3,)
    assert [(warning.kind, warning.text[:24]) for warning in trace.warnings] == [
        ("contradiction", "says to be of ranks 1, 3")
    ]


def test_waits_are_counted_and_not_taken() -> None:
    trace = trace_of(
        record("wait", 5, 0, 0), record("init", 6, 0, 0), record("frobnicate", 7, 0, 1)
    )
    assert trace.communications == ()
    assert trace.not_taken == {chakra.SENDS_NOTHING: 2, chakra.UNKNOWN: 1}


def test_a_record_is_the_call_of_its_operator_which_says_whether_it_was_asynchronous() -> None:
    called = operator(
        "c10d::allreduce_", [[tensor(8)], "<Object>", "<Object>", None, True, -1], 8
    )
    call = only(trace_of(groups(WORLD), record("allreduce", 9, 2, 8, caller=8), called))
    assert (call.line, call.asynchronous, call.rank) == (9, True, 2)


# -- operators ----------------------------------------------------------------------------------------------


def test_an_operator_without_a_record_is_read_by_its_signature() -> None:
    called = operator(
        "c10d::_reduce_scatter_base_", [tensor(10), tensor(40), "<Object>", False, -1], 8
    )
    call = only(trace_of(called))
    assert (call.collective, call.input_bytes, call.output_bytes, call.group.size) == (
        "reduce_scatter",
        160,
        40,
        4,
    )
    assert call.asynchronous is False


def test_the_only_group_that_an_operator_can_mean_is_taken_and_told() -> None:
    half = {"pg_name": "1", "pg_desc": "tp", "ranks": [2, 3], "group_size": 2}
    called = operator(
        "c10d::_reduce_scatter_base_", [tensor(10), tensor(40), "<Object>", False, -1], 8
    )
    open_ = operator(
        "c10d::allreduce_", [[tensor(8)], "<Object>", "<Object>", None, True, -1], 9
    )
    trace = trace_of(groups(WORLD, half), called, open_, place="rank2.json")
    assert [communication.group.name for communication in trace.communications] == ["0", ""]
    assert "'0' (default_pg)" in trace.warnings[0].text
    alone = trace_of(groups(WORLD), open_, place="rank2.json")
    assert only(alone).group.ranks == (0, 1, 2, 3)


def test_the_rank_that_is_in_all_listed_groups_is_the_traces() -> None:
    half = {"pg_name": "1", "pg_desc": "tp", "ranks": [2, 3], "group_size": 2}
    replicas = {"pg_name": "3", "pg_desc": "dp", "ranks": [1, 3], "group_size": 2}
    called = operator("c10d::send", [[tensor(8)], "<Object>", 1, 0], 8)
    trace = trace_of(groups(WORLD, half, replicas), called)
    assert (trace.ranks, trace.warnings) == ((3,), ())
    assert (only(trace).collective, only(trace).peer) == ("send", None)


def test_the_rank_of_the_files_name_is_told() -> None:
    called = operator("c10d::broadcast_", [[tensor(8)], "<Object>", 1, 0, True, -1], 8)
    trace = trace_of(groups(WORLD), called, place="et_rank3.json.gz")
    assert (trace.ranks, only(trace).root) == ((3,), 1)
    assert ("assumed", "its rank is taken from the file's name") in [
        (warning.kind, warning.text) for warning in trace.warnings
    ]
    assert trace_of(called).warnings[0].kind == "not_visible"


def test_splits_of_rows_are_bytes() -> None:
    values = [tensor(40), tensor(40), "<Object>", [2, 2], [1, 3], False, -1]
    call = only(trace_of(operator("c10d::alltoall_base_", values, 8)))
    assert (call.group.size, call.input_splits, call.output_splits) == (2, (40, 120), ())


def test_operators_without_their_signature_are_counted() -> None:
    assert trace_of(node("c10d::allreduce_", [[tensor(8)]], 8)).not_taken == {
        chakra.NO_SIGNATURE: 1
    }


# -- real traces --------------------------------------------------------------------------------------------


@needs_traces
def test_each_record_of_a_real_trace_of_nccl_is_a_collective_or_a_wait() -> None:
    name = "chakra/resnet_2gpu_1.1.0.json.gz"
    trace = read_traces([path_of(name)])
    waits = trace.not_taken[chakra.SENDS_NOTHING]
    assert trace.versions == {"chakra": expected(name)["schema"]}
    assert (trace.backend, trace.world_size, trace.ranks) == ("nccl", 2, (1,))
    assert len(trace.communications) + waits == expected(name)["record_param_comms"]
    cases = {
        (
            communication.collective,
            communication.dtype,
            communication.input_bytes,
            communication.group,
        )
        for communication in trace.communications
    }
    assert len(cases) + 1 == expected(name)["distinct_cases"]  # the waits are one more
    assert Counter(communication.collective for communication in trace.communications) == {
        "broadcast": 6,
        "all_reduce": 15,
    }
    assert {communication.group.ranks for communication in trace.communications} == {(0, 1)}
    assert [warning.kind for warning in trace.warnings] == ["not_visible"]  # rank 0's file


@needs_traces
@pytest.mark.parametrize("rank", range(4))
def test_gloo_leaves_operators_and_its_groups_say_whose_trace_it_is(rank: int) -> None:
    name = "chakra/gloo_4ranks_rank{0,1,2,3}.json.gz"
    trace = read_traces([path_of(f"chakra/gloo_4ranks_rank{rank}.json.gz")])
    assert (trace.ranks, trace.world_size, trace.backend) == (
        (rank,),
        expected(name)["ranks"],
        "gloo",
    )
    assert trace.versions == {"chakra": expected(name)["schema"]}
    partner = {0: ["send"], 1: ["recv"]}.get(rank, [])
    collectives = (
        ["broadcast"] * 3
        + ["all_reduce"] * 3
        + ["all_gather", "all_to_all", "reduce_scatter", "barrier"]
    )
    assert Counter(
        communication.collective for communication in trace.communications
    ) == Counter(collectives + partner)
    gathered = next(
        communication
        for communication in trace.communications
        if communication.collective == "all_gather"
    )
    assert (gathered.input_bytes, gathered.output_bytes, gathered.group.ranks) == (
        4000,
        16000,
        (0, 1, 2, 3),
    )


@needs_traces
def test_four_ranks_are_one_job() -> None:
    trace = read_traces(
        [path_of(f"chakra/gloo_4ranks_rank{rank}.json.gz") for rank in range(4)]
    )
    assert (trace.ranks, trace.world_size) == ((0, 1, 2, 3), 4)
    assert {group.name: group.ranks for group in trace.groups} == {
        "0": (0, 1, 2, 3),
        "1": (0, 1),
        "2": (2, 3),
        "3": (0, 2),
        "4": (1, 3),
    }
