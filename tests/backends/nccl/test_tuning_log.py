"""Lines of NCCL's tuning log, as versions from 2.6 on write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.nccl.diagnostics import Choice, read_choice

NAMED = "node-0:42:99 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{{}..{}}}"


@pytest.mark.parametrize(
    ("line", "collective", "choice"),
    [
        (NAMED.format("RING", "LL", 0, 1), "all_reduce", Choice("ring", "ll", 2)),
        (NAMED.format("Tree", "Simple", 2, 2), "barrier", Choice("tree", "simple", 1)),
        (NAMED.format("NVLS_TREE", "SIMPLE", 0, 15), "all_reduce", Choice("nvlstree", "simple", 16)),
        (NAMED.format("COLLNET_DIRECT", "SIMPLE", 0, 3), "all_reduce", Choice("collnetdirect", "simple", 4)),
        (
            "NCCL INFO AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008",
            "all_gather",
            Choice("ring", "simple", 0),
        ),
        ("NCCL INFO 8 Bytes -> Algo 0 proto 0 time 4.4", "all_reduce", Choice("tree", "ll", 0)),
        (
            "NCCL INFO ReduceScatter: 8 Bytes -> Algo 6 proto 2 time 4.4",
            "reduce_scatter",
            Choice("pat", "simple"),
        ),
        (
            "AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1",
            "all_reduce",
            Choice("symmetric", "agxll_r", 8),
        ),
        (NAMED.format("RING", "LL", 0, 1), "all_gather", Choice()),
        (NAMED.format("RING", "LL", 0, 1), "send_recv", Choice()),
        ("AllReduce: 4096 Bytes -> Algo 99 proto 99 time 1", "all_reduce", Choice()),
        ("", "all_reduce", Choice()),
    ],
)
def test_every_known_form_is_read(line: str, collective: str, choice: Choice) -> None:
    assert read_choice(line, collective) == choice


def test_of_several_lines_the_first_counts_with_the_most_channels() -> None:
    text = "\n".join(
        [
            NAMED.format("RING", "LL", 0, 0),
            "unrelated",
            NAMED.format("RING", "LL", 0, 7),
            NAMED.format("TREE", "LL", 3, 4),
        ]
    )
    assert read_choice(text, "all_reduce") == Choice("ring", "ll", 8)


@given(st.text(alphabet="Bytes->Algo protchanel{LoHi.}=0123456789:[] \n", max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    choice = read_choice(text, "all_reduce")
    assert choice.channels >= 0 or choice.algorithm
