"""Text workloads of SimAI and ASTRA-sim: groups of each phase, bytes, what is not said, files that are cut."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ccbench.errors import UsageError
from ccbench.readers.traces import simulator_workloads
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.fold import fold
from ccbench.readers.traces.reading import read_traces

SIMAI = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 2 pp: 2 vpp: 16 ga: 8 all_gpus: 64 \
checkpoints: 0 checkpoint_initiates: 0 pp_comm 4194304
7
grad_gather\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER\t67108864\t100
grad_param_comm\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tREDUCESCATTER\t134217728\t100
moe_grad_norm1\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER_DP_EP\t33554432\t100
embedding_layer\t-1\t541000\tALLREDUCE\t8388608\t1\tNONE\t0\t1200\tNONE\t0\t100
attention_column\t-1\t1250000\tALLGATHER\t8388608\t640000\tREDUCESCATTER\t0\t640000\tNONE\t0\t100
attention_row\t-1\t1250000\tREDUCESCATTER\t8388608\t640000\tALLGATHER\t8388608\t640000\tNONE\t0\t100
mlp_moelayer\t-1\t1\tALLTOALL_EP\t25165824.0\t1\tALLTOALL_EP\t25165824.0\t1\tNONE\t0\t100
"""

ASTRA = """\
HYBRID_DLRM\t3\t\t\t\t\t
3\t\t\t\t\t
Embedding\t-1\t310\tALLTOALL\t65536\t310\tALLTOALL\t65536\t310\tNONE\t0\t65
MLP_Bottom_0\t-1\t1410\tNONE\t\t0\t820\tNONE\t0\t905\tALLREDUCE\t14336\t14
MLP_Top_0\t-1\t6100\tALLGATHER\t4096\t6100\tNONE\t0\t4200\tALLREDUCE\t1048576\t1024
"""


def trace_of(text: str) -> Trace:
    data = text.encode()
    assert simulator_workloads.recognises(data)
    return simulator_workloads.read(TraceFile("workload.txt", data, io.BytesIO(data)))


def calls_of(trace: Trace) -> list[tuple[str, str, int, int | None, int | None]]:
    return [
        (call.collective, call.group.name, call.group.size, call.input_bytes, call.output_bytes)
        for call in trace.communications
    ]


def test_a_call_has_the_group_of_its_phase_or_of_its_suffix() -> None:
    trace = trace_of(SIMAI)
    # 64 ranks by 4 tensor-parallel and 2 stages are 8 data-parallel, by 2 of experts are 4.
    assert calls_of(trace) == [
        ("all_gather", "dp", 8, 8388608, 67108864),
        ("reduce_scatter", "dp", 8, 134217728, 16777216),
        ("all_gather", "dp_ep", 4, 8388608, 33554432),
        ("all_reduce", "tp", 4, 8388608, 8388608),
        ("all_gather", "tp", 4, 2097152, 8388608),
        ("reduce_scatter", "tp", 4, 8388608, 2097152),
        ("all_gather", "tp", 4, 2097152, 8388608),
        ("all_to_all", "ep", 2, 25165824, 25165824),
        ("all_to_all", "ep", 2, 25165824, 25165824),
    ]
    assert (trace.world_size, trace.not_taken) == (64, {simulator_workloads.SENDS_NOTHING: 1})
    assert {call.duration_seconds for call in trace.communications} == {None}


def test_messages_between_stages_are_no_rows_and_a_remark_says_so() -> None:
    trace = trace_of(SIMAI)
    assert trace.facts["between pipeline stages"] == "4194304 bytes"
    assert [(warning.kind, "4194304" in warning.text) for warning in trace.warnings] == [
        ("not_visible", True)
    ]
    assert trace_of(SIMAI.replace("pp: 2", "pp: 1")).warnings == ()


@pytest.mark.parametrize("change", [("ep: 2", "ep: 3"), (" all_gpus: 64", "")])
def test_a_group_that_does_not_divide_has_no_size(change: tuple[str, str]) -> None:
    trace = trace_of(SIMAI.replace(*change))
    (call,) = (call for call in trace.communications if call.group.name == "dp_ep")
    assert call.group.size == 0
    assert any("makes no case" in warning.text for warning in trace.warnings)


def test_astra_sim_names_no_ranks_and_the_block_of_an_all_gather(tmp_path: Path) -> None:
    path = tmp_path / "DLRM.txt"
    path.write_text(ASTRA)
    trace = read_traces([path])
    assert calls_of(trace) == [
        ("all_to_all", "tp", 0, 65536, 65536),
        ("all_to_all", "tp", 0, 65536, 65536),
        ("all_reduce", "dp", 0, 14336, 14336),
        ("all_gather", "tp", 0, 4096, None),
        ("all_reduce", "dp", 0, 1048576, 1048576),
    ]
    assert trace.kinds == ("simulator-workload",)
    assert [warning.kind for warning in trace.warnings] == ["assumed", "not_visible"]
    assert fold(trace).cases == ()
    assert {(job.case.collective, job.case.size_bytes) for job in fold(trace, 16).cases} == {
        ("all_to_all", 65536),
        ("all_reduce", 14336),
        ("all_reduce", 1048576),
        ("all_gather", 16 * 4096),
    }


def test_older_workloads_of_aicb_name_no_ranks_but_count_the_whole_all_gather() -> None:
    header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD\tmodel_parallel_NPU_group: 8 checkpoints: 0"
    row = "attention\t-1\t9\tALLGATHER\t4096\t9\tNONE\t0\t9\tALLREDUCE\t64\t100"
    trace = trace_of(f"{header}\n1\n{row}\n")
    assert calls_of(trace) == [
        ("all_gather", "tp", 8, 512, 4096),
        ("all_reduce", "dp", 0, 64, 64),
    ]
    assert [warning.kind for warning in trace.warnings] == ["not_visible"]


def test_a_row_may_end_in_a_parallelism_of_its_own() -> None:
    row = "layer_0\t-1\t7488\tALLGATHER\t65536\t7488\tREDUCESCATTER\t65536\t7488\tALLREDUCE\t128\t749  MODEL"
    trace = trace_of(f"HYBRID_CUSTOMIZED\n1\n{row}\n")
    assert [call.collective for call in trace.communications] == [
        "all_gather",
        "reduce_scatter",
        "all_reduce",
    ]


@pytest.mark.parametrize(
    "dress",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "".join(f"    {line}\n" for line in text.splitlines()),
        lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
        lambda text: "\ufeff\n" + text,
    ],
)
def test_a_pasted_workload_is_the_same(dress: object) -> None:
    assert callable(dress)
    assert calls_of(trace_of(dress(SIMAI))) == calls_of(trace_of(SIMAI))


def test_a_cut_workload_says_where_it_ends() -> None:
    trace = trace_of(SIMAI[: SIMAI.index("\t640000\tALLGATHER")])
    assert len(trace.communications) == 5
    kinds = [warning.kind for warning in trace.warnings]
    assert kinds.count("truncated") == 2
    assert any("after 5 of the 7 layers" in warning.text for warning in trace.warnings)


def test_a_damaged_row_and_an_unknown_collective_are_kept_apart() -> None:
    text = SIMAI.replace("\tALLREDUCE\t8388608", "\tALLREDUCE\tmany").replace(
        "NONE\t0\t1\tALLGATHER\t67108864", "NONE\t0\t1\tALLREDUCEALLTOALL\t67108864"
    )
    trace = trace_of(text)
    assert [(w.kind, w.line) for w in trace.warnings if w.line] == [("damaged_line", 6)]
    unknown = [call for call in trace.communications if not call.collective]
    assert [call.name for call in unknown] == ["ALLREDUCEALLTOALL"]
    reasons = fold(trace).not_folded
    assert reasons["ALLREDUCEALLTOALL: no collective that ccbench measures"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "DATA\n",
        "MODEL 3\n3\nlayer one\n",
        "DATA\n4\n1 2 3\n",
        "HYBRID\n6\n",
        "MODELS\n1\n" + ASTRA,
    ],
)
def test_other_texts_are_no_workload(text: str, tmp_path: Path) -> None:
    assert not simulator_workloads.recognises(text.encode())
    (tmp_path / "text.txt").write_text(text)
    with pytest.raises(UsageError, match="text workloads of SimAI"):
        read_traces([tmp_path / "text.txt"])
