"""Traces of the PyTorch profiler: kernels with records or operators alone, other devices, other libraries."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ccbench.readers.traces.events import Communication, Trace
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.recorded import expected, needs_traces, path_of

INFO = {
    "backend": "nccl",
    "rank": 1,
    "world_size": 4,
    "pg_count": 2,
    "pg_config": [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": 4,
            "ranks": [],
        },
        {
            "pg_name": "1",
            "pg_desc": "tp",
            "backend_config": "cuda:nccl",
            "pg_size": 2,
            "ranks": [0, 1],
        },
    ],
    "nccl_version": "2.27.5",
}
GIVEN = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 4,
    "dtype": "BFloat16",
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1, 2, 3]",
}
NCCL_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(
    category: str, name: str, start: float, duration: float, tid: object = 7, **args: Any
) -> dict[str, Any]:
    """An event of category ``category``; microseconds."""
    times = {"ts": start, "dur": duration}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 5,
        "tid": tid,
        **times,
        "args": args,
    }


def launched(
    calls: list[tuple[str, dict[str, Any]]],
    kernel: str,
    start: float = 100,
    duration: float = 50,
    correlation: int = 11,
    launch: tuple[str, str] = ("cuda_runtime", "cudaLaunchKernelExC"),
    **args: Any,
) -> list[dict[str, Any]]:
    """A kernel, its launch and the calls around that, the outermost first."""
    around = [
        event("cpu_op", name, start - 50 + place, 60 - 2 * place, **words)
        for place, (name, words) in enumerate(calls)
    ]
    begun = event(*launch, start - 20, 5, correlation=correlation)
    ran = event(
        "kernel",
        kernel,
        start,
        duration,
        20,
        correlation=correlation,
        device=1,
        stream=20,
        **args,
    )
    return [*around, begun, ran]


def trace_of(
    tmp_path: Path, events: list[Any], info: Any = INFO, name: str = "trace.json"
) -> Trace:
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU"}],
        "distributedInfo": info,
    }
    (tmp_path / name).write_text(json.dumps({**document, "traceEvents": events}))
    return read_traces([tmp_path / name])


def only(trace: Trace) -> Communication:
    (call,) = trace.communications
    return call


def summary(call: Communication) -> tuple[str, str, int | None, int | None, int]:
    return call.collective, call.dtype, call.input_bytes, call.output_bytes, call.group.size


# -- kernels of NCCL ----------------------------------------------------------------------------------------


def test_a_kernel_has_what_its_own_arguments_say(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [event("kernel", NCCL_KERNEL, 100, 50, 20, **GIVEN, Seq=3)])
    call = only(trace)
    assert summary(call) == ("all_reduce", "bfloat16", 2000, 2000, 4)
    assert (call.rank, call.group.ranks, call.sequence) == (1, (0, 1, 2, 3), 3)
    assert (call.start_seconds, call.duration_seconds) == pytest.approx((1e-4, 5e-5))
    assert (trace.backend, trace.world_size, trace.ranks) == ("nccl", 4, (1,))
    assert trace.versions == {"NCCL": "2.27.5"}
    assert trace.facts == {"devices": "1 x GPU"}


def test_a_kernel_has_what_the_record_around_its_launch_says(tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("c10d::allreduce_", {"Concrete Inputs": ["", "", "", "", "True", "-1"]}),
        ("record_param_comms", GIVEN),
    ]
    call = only(trace_of(tmp_path, launched(calls, NCCL_KERNEL)))
    assert summary(call) == ("all_reduce", "bfloat16", 2000, 2000, 4)
    assert (call.asynchronous, call.stream) == (True, "1:20")


def test_several_kernels_of_one_call_are_one(tmp_path: Path) -> None:
    first = launched([("record_param_comms", GIVEN)], NCCL_KERNEL)
    second = event("kernel", NCCL_KERNEL, 160, 40, 20, correlation=11)
    call = only(trace_of(tmp_path, [*first, second]))
    assert call.duration_seconds == pytest.approx(1e-4)


def test_sends_and_receives_that_one_kernel_ran_are_one_of_both_ways(tmp_path: Path) -> None:
    def message(name: str, peer: str) -> dict[str, Any]:
        return {**GIVEN, "Collective name": name, peer: 3}

    calls = [
        event("cpu_op", "record_param_comms", 10, 5, **message("send", "Dst Rank")),
        event("cpu_op", "record_param_comms", 20, 5, **message("recv", "Src Rank")),
    ]
    kernel = launched([], "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    call = only(trace_of(tmp_path, calls + kernel))
    assert (call.collective, call.peer, call.input_bytes, call.output_bytes) == (
        "send_recv",
        3,
        2000,
        2000,
    )


def test_uneven_splits_are_bytes_and_those_that_are_cut_are_told(tmp_path: Path) -> None:
    arguments = {
        **GIVEN,
        "Collective name": "all_to_allv",
        "In split size": "[100, 300, 200, 400]",
    }
    call = only(trace_of(tmp_path, [event("kernel", NCCL_KERNEL, 1, 5, **arguments)]))
    assert call.input_splits == (200, 600, 400, 800)
    cut = {**arguments, "In split size": "[100, 300, ..., 400]"}
    trace = trace_of(tmp_path, [event("kernel", NCCL_KERNEL, 1, 5, **cut)])
    assert only(trace).input_splits == ()
    assert any(
        "1 list of splits cut after 30 ranks" in warning.text for warning in trace.warnings
    )


def test_a_list_of_ranks_that_is_cut_is_continued_where_its_last_rank_fits(
    tmp_path: Path,
) -> None:
    arguments = {
        **GIVEN,
        "Process Group Name": "9",
        "Group size": 64,
        "Process Group Ranks": "[0, 8, 16, ..., 504]",
    }
    trace = trace_of(
        tmp_path,
        [event("kernel", NCCL_KERNEL, 1, 5, **arguments)],
        {"rank": 0, "world_size": 512},
    )
    assert only(trace).group.ranks == tuple(range(0, 512, 8))
    arguments["Process Group Ranks"] = "[0, 8, 16, ..., 505]"
    trace = trace_of(
        tmp_path,
        [event("kernel", NCCL_KERNEL, 1, 5, **arguments)],
        {"rank": 0, "world_size": 512},
    )
    assert (only(trace).group.ranks, only(trace).group.size) == ((), 64)


def test_what_was_asked_for_without_a_kernel_is_counted(tmp_path: Path) -> None:
    requested = event("cpu_op", "record_param_comms", 10, 5, **GIVEN)
    trace = trace_of(tmp_path, [requested, event("kernel", "gemm", 20, 5)])
    assert trace.communications == ()
    assert trace.not_taken == {"asked for on the host, no kernel in the trace": 1}


def test_computing_is_that_of_other_kernels_and_steps_are_marked(tmp_path: Path) -> None:
    kernels = [
        event("kernel", name, start, 10)
        for name, start in (("gemm", 0), ("small_reduce", 5), ("b", 40))
    ]
    step = event("user_annotation", "ProfilerStep#3", 0, 60)
    trace = trace_of(tmp_path, [*kernels, step])
    assert trace.computing[1].ravel() * 1e6 == pytest.approx([0, 15, 40, 50])
    assert trace.steps[1].ravel() * 1e6 == pytest.approx([0, 60])


# -- other versions, devices and libraries ------------------------------------------------------------------

SHAPES = {
    "Input Dims": [[[256, 4]], [], [], [], [], []],
    "Input type": ["TensorList", "", "", "", "", ""],
}


def test_operators_tell_by_their_shapes_what_no_record_says(tmp_path: Path) -> None:
    typed = {
        **SHAPES,
        "Input type": ["float", "", "", "", "", ""],
        "Input Dims": [[256, 4], [], [], [], [], []],
    }
    calls = [
        ("c10d::allreduce_", SHAPES),
        ("record_param_comms", {}),
        ("nccl:all_reduce", typed),
    ]
    call = only(
        trace_of(
            tmp_path, launched(calls, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)")
        )
    )
    assert summary(call)[:4] == ("all_reduce", "float32", 4096, 4096)


def test_a_trace_of_torch_1_has_other_categories_and_no_record(tmp_path: Path) -> None:
    events = [
        {
            "ph": "X",
            "cat": "Operator",
            "name": "nccl:all_reduce",
            "pid": 5,
            "tid": "9",
            "ts": 50,
            "dur": 60,
            "args": {
                "Device": 5,
                "External id": 12,
                "Input Dims": [[1024]],
                "Input type": ["float"],
            },
        },
        {
            "ph": "X",
            "cat": "Runtime",
            "name": "cudaLaunchKernel",
            "pid": 5,
            "tid": "9",
            "ts": 60,
            "dur": 5,
            "args": {"cbid": 211, "correlation": 3, "external id": 12, "external ts": 50},
        },
        {
            "ph": "X",
            "cat": "Kernel",
            "name": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
            "pid": 0,
            "tid": "stream 21",
            "ts": 70,
            "dur": 30,
            "args": {"device": 0, "stream": 21, "correlation": 3},
        },
    ]
    call = only(trace_of(tmp_path, events, None, "rank2.json"))
    assert (call.collective, call.dtype, call.input_bytes, call.rank) == (
        "all_reduce",
        "float32",
        4096,
        2,
    )


def test_kernels_of_rccl_are_launched_by_hip(tmp_path: Path) -> None:
    kernel = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    events = launched(
        [("record_param_comms", GIVEN)], kernel, launch=("cuda_runtime", "hipExtLaunchKernel")
    )
    assert summary(only(trace_of(tmp_path, events))) == (
        "all_reduce",
        "bfloat16",
        2000,
        2000,
        4,
    )


def test_kernels_of_oneccl_are_launched_by_the_runtime_of_xpu(tmp_path: Path) -> None:
    kernel = "oneccl_allreduce_kernel<sycl::half>"
    calls = [("c10d::allreduce_", {}), ("record_param_comms", GIVEN)]
    info = {**INFO, "backend": "xccl"}
    trace = trace_of(
        tmp_path, launched(calls, kernel, launch=("xpu_runtime", "urEnqueueKernelLaunch")), info
    )
    assert (only(trace).collective, trace.backend) == ("all_reduce", "xccl")


@pytest.mark.parametrize(
    ("operator", "kernel"),
    [
        (
            "_C_custom_ar::all_reduce",
            "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        ),
        (
            "sgl_kernel::all_reduce",
            "void sglang::cross_device_reduce_2stage<half, 8>(RankData*, RankSignals)",
        ),
        (
            "trtllm::allreduce",
            "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8>(Params)",
        ),
        (
            "trtllm::allreduce",
            "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<X>",
        ),
        ("symm_mem::multimem_all_reduce_", "multimem_all_reduce_kernel"),
        (
            "symm_mem::two_shot_all_reduce_",
            "void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>()",
        ),
    ],
)
def test_all_reduces_of_inference_engines_are_known(
    tmp_path: Path, operator: str, kernel: str
) -> None:
    shapes = {"Input Dims": [[16, 8192], []], "Input type": ["c10::BFloat16", ""]}
    call = only(trace_of(tmp_path, launched([(operator, shapes)], kernel)))
    assert (call.collective, call.dtype, call.input_bytes) == (
        "all_reduce",
        "bfloat16",
        16 * 8192 * 2,
    )


def test_a_kernel_that_nothing_describes_is_taken_by_its_name(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        [
            event("kernel", "ncclDevKernel_AllGather_RING_LL(x)", 5, 5),
            event("kernel", "mscclKernel_Sum", 9, 1),
        ],
    )
    assert [
        (communication.collective, communication.input_bytes)
        for communication in trace.communications
    ] == [
        ("all_gather", None),
        ("", None),
    ]


def test_kernels_that_inductor_names_by_what_is_near_compute(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path, [event("kernel", "triton_poi_fused_all_gather_into_tensor_0", 5, 5)]
    )
    assert (trace.communications, len(trace.computing[1])) == ((), 1)


# -- forms of the file --------------------------------------------------------------------------------------


def test_numbers_may_be_texts(tmp_path: Path) -> None:
    events = launched(
        [("record_param_comms", {**GIVEN, "In msg nelems": "1000", "Group size": "4"})],
        NCCL_KERNEL,
    )
    for each in events:
        each |= {key: str(each[key]) for key in ("ts", "dur", "pid")}
    call = only(trace_of(tmp_path, events))
    assert (summary(call)[2], call.group.size) == (2000, 4)
    assert call.duration_seconds == pytest.approx(5e-5)


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf", b"\n\n  "])
def test_events_may_be_the_whole_file(tmp_path: Path, prefix: bytes) -> None:
    data = json.dumps(launched([("record_param_comms", GIVEN)], NCCL_KERNEL)).encode()
    (tmp_path / "rank3.json").write_bytes(prefix + data)
    assert only(read_traces([tmp_path / "rank3.json"])).rank == 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_other_encodings_are_refused_by_name(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.json").write_bytes(json.dumps({"traceEvents": []}).encode(encoding))
    with pytest.raises(Exception, match="UTF-16 or UTF-32; save it as UTF-8"):
        read_traces([tmp_path / "a.json"])


@pytest.mark.parametrize(
    "config",
    [
        INFO["pg_config"],
        {
            "0": {"pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
            "1": {"pg_size": 2, "ranks": "[0, 1]"},
        },
        [
            {"pg_name": 0, "pg_size": "4", "ranks": []},
            {"pg_name": 1, "pg_size": "2", "ranks": [0, 1]},
        ],
    ],
)
def test_process_groups_are_listed_in_rows_or_by_name(tmp_path: Path, config: Any) -> None:
    trace = trace_of(tmp_path, [], {**INFO, "pg_config": config})
    assert {group.name: group.ranks for group in trace.groups} == {
        "0": (0, 1, 2, 3),
        "1": (0, 1),
    }


@pytest.mark.parametrize(
    "info",
    [None, [], "x", {"rank": -1}, {"rank": 1e308}, {"world_size": 2**63, "pg_config": 5}],
)
def test_hostile_words_about_the_job_leave_the_file_name(tmp_path: Path, info: Any) -> None:
    trace = trace_of(
        tmp_path, [event("kernel", NCCL_KERNEL, 1, 5, **GIVEN)], info, "rank3.json"
    )
    assert trace.ranks == (3,)


# -- real traces --------------------------------------------------------------------------------------------


@needs_traces
def test_a_real_trace_of_nccl_has_its_kernels_with_their_records() -> None:
    name = "kineto/a100x2_ddp_metadata.json.gz"
    trace, expectation = read_traces([path_of(name)]), expected(name)
    assert (trace.world_size, trace.backend) == (expectation["ranks"], "nccl")
    assert len(trace.communications) == expectation["communication_kernels"]
    assert (
        sum(
            communication.group.ranks == (0, 1) and communication.dtype != ""
            for communication in trace.communications
        )
        == expectation["with_metadata"]
    )
    seconds = sum(
        communication.duration_seconds or 0.0 for communication in trace.communications
    )
    assert round(seconds * 1e3, 2) == expectation["kernel_milliseconds"]
    cases = Counter(
        (
            communication.collective,
            communication.dtype,
            communication.input_bytes,
            communication.group,
        )
        for communication in trace.communications
    )
    assert len(cases) == expectation["distinct_cases"]


@needs_traces
def test_a_real_trace_without_kernels_has_its_groups() -> None:
    name = "kineto/gloo_world300_groups_only.json.gz"
    trace, expectation = read_traces([path_of(name)]), expected(name)
    assert (trace.world_size, trace.backend) == (expectation["ranks"], expectation["backend"])
    # The all_reduces of Gloo that it has ran on threads of the host.
    kernels = [
        communication
        for communication in trace.communications
        if not communication.stream.startswith("thread")
    ]
    assert len(kernels) == expectation["communication_kernels"]
    assert sum(group.name.isdigit() for group in trace.groups) == 10
    assert all(len(group.ranks) == group.size for group in trace.groups)


@needs_traces
@pytest.mark.parametrize("rank", range(4))
def test_a_real_trace_of_gloo_says_whose_it_is(rank: int) -> None:
    trace = read_traces([path_of(f"kineto/gloo_4ranks_rank{rank}.json.gz")])
    expectation = expected("kineto/gloo_4ranks_rank{0,1,2,3}.json.gz")
    assert (trace.ranks, trace.world_size, trace.backend) == (
        (rank,),
        expectation["ranks"],
        expectation["backend"],
    )
    assert all(communication.duration_seconds for communication in trace.communications)
