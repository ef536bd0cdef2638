"""Small texts of every format with characters in other characters' places; needs no dumps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.topology.readers import reader
from tests.topology.damage import changed, read_or_refused
from tests.topology.readers import (
    test_hwloc,
    test_lstopo_text,
    test_nccl_graph_xml,
    test_nccl_log,
    test_nccl_xml,
    test_npu_smi,
    test_rocm_smi,
    test_smi_nvlink,
    test_smi_topo,
)

xml = test_nccl_xml
TEXTS = {
    "nccl_xml": xml.system(xml.cpu(xml.gpu(xml.A, xml.nvlink(xml.B, 4)), xml.gpu(xml.B, xml.nvlink(xml.A)))),
    "nccl_graph_xml": test_nccl_graph_xml.graph('pattern="4" nchannels="1"', test_nccl_graph_xml.ring(0, 1)),
    "hwloc": test_hwloc.TWO,
    "hwloc text": test_lstopo_text.TEXT,
    "nccl_log": test_nccl_log.prefixed(test_nccl_log.BOX, "host0:1:1 [0] NCCL INFO ")
    + test_nccl_log.ring_lines(4, 4)
    + test_nccl_log.tree_log(3),
    "npu_smi": test_npu_smi.TEXT,
    "rocm_smi": test_rocm_smi.TEXT,
    "smi_topo": test_smi_topo.PAIR,
    "smi_nvlink": test_smi_nvlink.status("NVIDIA A100-SXM4-40GB", [["25 GB/s", "<inactive>"]] * 2),
}


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=120, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 20_000), st.characters() | st.sampled_from('019afx,.:- >/"\n[]')),
        min_size=1,
        max_size=12,
    )
)
def test_flipped_characters_never_raise_anything_but_a_machine_error(
    name: str, changes: list[tuple[int, str]]
) -> None:
    text = changed(TEXTS[name], changes)
    found = reader(name.partition(" ")[0])
    assert found.recognises(text) in (True, False)
    read_or_refused(found.read, text)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_cut_anywhere_is_read_or_refused(name: str) -> None:
    for length in range(0, len(TEXTS[name]), 16):
        read_or_refused(reader(name.partition(" ")[0]).read, TEXTS[name][:length])
