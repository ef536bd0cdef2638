"""Names in traces: collectives, element types, buffers from one size, the rank in a file's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.collectives import COLLECTIVES
from ccbench.readers.traces.words import buffers, collective_of, dtype_of, rank_named, uneven

# PyTorch's spellings: names of record_param_comms, operators of c10d, names in a flight recorder's dump.
SPELLINGS = {
    "all_reduce": "allreduce c10d::allreduce_ nccl:all_reduce allreduce_coalesced AllReduce",
    "all_gather": "_allgather_base c10d::_allgather_base_ allgather_into_tensor_coalesced nccl:all_gather",
    "reduce_scatter": "_reduce_scatter_base reduce_scatter_tensor_coalesced gloo:reduce_scatter",
    "all_to_all": "all_to_allv all_to_all c10d::alltoall_base_ nccl:all_to_all AlltoAll",
    "broadcast": "broadcast c10d::broadcast_ _broadcast_oop gloo:broadcast",
    "reduce": "reduce _reduce_oop c10d::reduce_",
    "gather": "c10d::gather_",
    "scatter": "c10d::scatter_",
    "barrier": "barrier c10d::monitored_barrier_ nccl:all_reduce_barrier",
    "send": "send c10d::send isend",
    "recv": "recv_any_source_ c10d::recv_",
    "": "wait init coalesced epoch_end computation nccl:coalesced aten::add <script> 你",
}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [(word, name) for name, words in SPELLINGS.items() for word in words.split()],
)
def test_spellings_of_a_collective_have_one_name(spelling: str, name: str) -> None:
    assert collective_of(spelling) == name


def test_ranks_of_a_send_are_no_part_of_its_name() -> None:
    assert (collective_of("nccl:send 0->1"), collective_of("nccl:recv 0<-1")) == (
        "send",
        "recv",
    )


@given(st.text(max_size=300))
def test_any_text_is_a_collective_or_none(text: str) -> None:
    assert collective_of(text) in {*COLLECTIVES, "send", "recv", ""}


@pytest.mark.parametrize(
    ("word", "name", "size"),
    [
        ("Float", "float32", 4),
        ("Long", "int64", 8),
        ("long int", "int64", 8),
        ("c10::BFloat16", "bfloat16", 2),
        ("unsigned char", "uint8", 1),
        ("Float8_e4m3fn", "float8_e4m3", 1),
        ("torch.float16", "float16", 2),
        ("Bool", "Bool", 1),
        ("ComplexDouble", "ComplexDouble", 16),
        ("QInt32x", "QInt32x", None),
    ],
)
def test_element_types_have_names_and_sizes(word: str, name: str, size: int | None) -> None:
    assert dtype_of(word) == (name, size)


def test_even_splits_are_none() -> None:
    assert (uneven([5, 5]), uneven([5, 6]), uneven([])) == ((), (5, 6), ())


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(ranks=st.integers(1, 64), count=st.integers(1, 10**6))
def test_one_buffer_is_the_size_and_the_other_what_the_collective_makes_of_it(
    collective: str, ranks: int, count: int
) -> None:
    row = COLLECTIVES[collective]
    size = row.size_bytes(count, ranks, 1)
    both = buffers(collective, size, ranks)
    assert both == (row.input_count(count, ranks, 0, 0), row.output_count(count, ranks, 0, 0))
    assert max(both) == size
    assert size in buffers(collective, size, 0)


def test_the_smaller_buffer_needs_the_number_of_ranks() -> None:
    assert buffers("all_gather", 64, 4) == (16, 64)
    assert buffers("all_gather", 64, 0) == (None, 64)
    assert buffers("reduce_scatter", 64, 0) == (64, None)
    assert buffers("all_reduce", 64, 0) == buffers("", 64, 0) == (64, 64)


@pytest.mark.parametrize(
    ("place", "rank"),
    [
        ("kineto/gloo_4ranks_rank3.json.gz", 3),
        ("/tmp/nccl_trace_rank_12", 12),
        ("dumps/nccl_trace_rank_container-node00_11", 11),
        ("dumps/nccl_trace_rank_10.0.0.7_3", 3),
        ("dumps/nccl_trace_rank_rank0-host_5.json", 5),
        ("dumps/fr-host07_6", 6),
        ("run_20260102_123456.json", None),
        ("job/rank-4/trace.json", 4),
        ("flight_3.json", 3),
        ("resnet_2gpu_1.1.0.json.gz", None),
        ("node01-pid123.log", None),
        ("4ranks/trace.json", None),
        ("", None),
    ],
)
def test_the_rank_in_the_name_of_a_file(place: str, rank: int | None) -> None:
    assert rank_named(place) == rank
