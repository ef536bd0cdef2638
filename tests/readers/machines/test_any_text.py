"""What every reader owes to any text: a sound topology or a MachineError of one line, in linear time."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.readers.machines import READERS, reader
from tests.clocks import within
from tests.readers.machines import (
    amd_smi_texts,
    nccl_xml_texts,
    npu_smi_texts,
    rocm_smi_texts,
    test_nccl_log,
    test_smi_nvlink,
    test_smi_topo,
)
from tests.topology.damage import changed, read_or_refused

xml = nccl_xml_texts
TEXTS = {
    "nccl_xml": xml.system(
        xml.cpu(xml.gpu(xml.A, xml.nvlink(xml.B, 4)), xml.gpu(xml.B, xml.nvlink(xml.A)))
    ),
    "nccl_log": test_nccl_log.prefixed(test_nccl_log.BOX, "host0:1:1 [0] NCCL INFO ")
    + test_nccl_log.ring_lines(4, 4)
    + test_nccl_log.tree_log(3),
    "npu_smi": npu_smi_texts.TEXT,
    "rocm_smi": rocm_smi_texts.TEXT,
    "amd_smi": amd_smi_texts.TEXT,
    "amd_smi json": amd_smi_texts.JSON,
    "smi_topo": test_smi_topo.PAIR,
    "smi_nvlink": test_smi_nvlink.status(
        "NVIDIA A100-SXM4-40GB", [["25 GB/s", "<inactive>"]] * 2
    ),
}


@pytest.mark.parametrize("name", TEXTS)
@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, 20_000), st.characters() | st.sampled_from('019afx,.:- >/"\n[]')
        ),
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


@given(
    st.text(alphabet="GPUNICXVSY019 \t\n-,/:_[m", max_size=300)
    | st.text(alphabet="GPULinkB/s 0192:,.<>ative\n\t()", max_size=300)
)
@example("GPU0")
@example("\tGPU0\n")
@example("GPU0\tX")
@example("GPU0 GPU0 GPU0 CPU Affinity\nGPU0 X X X 0")
@example("GPU0\tCPU Affinity\nGPU9\tX\t0")
@example("The GPUs that have an affinity with CPU 3 are:")
@example("Link 0: 25 GB/s")
@example("GPU 0: \nLink 99: <inactive>")
@example("NVML: Unable to retrieve NVLink information as all links are inActive")
def test_any_words_of_nvidia_smi_are_read_or_refused(text: str) -> None:
    for name in ("smi_topo", "smi_nvlink"):
        assert reader(name).recognises(text) in (True, False)
        read_or_refused(reader(name).read, text)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " \n",
            "hello",
            "hello\n+ world\n",
            "{",
            "{}",
            '{"a": 1}',
            "[" * 100_000,
            '{"a":' * 100_000,
        ),
        *("<html></html>", "<systems/>", "<graph/>", "ring <0> of <graphs>"),
        *(
            "\x00\x01\x02" * 100,
            "\ufffd" * 50,
            "NPU0",
            "hello NPU",
            "Package arrived\n",
            "nvidia-smi",
        ),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_text_of_no_tool_is_recognised_by_no_reader_and_refused_in_one_line(
    name: str, text: str
) -> None:
    assert not reader(name).recognises(text)
    with pytest.raises(MachineError) as caught:
        reader(name).read(text)
    assert "\n" not in str(caught.value)


MEGABYTE = 2**20
GPU_IN_XML = (
    '<cpu><pci busid="0" class="0x03"><gpu><nvlink target="0" count="1"/></gpu></pci></cpu>'
)
LARGE = [
    *(
        ("smi_topo", test_smi_topo.PAIR, line, "")
        for line in (
            *(
                "GPU0 " * 5,
                "GPU0\tX\tNV1\t0-1\n",
                "0-1,2-3,",
                "GPU0GPU1GPU2",
                "GPU1 NV4 X 1,2,3,5-9 0\n",
            ),
            *("NVNV", "\x1b[4"),
        )
    ),
    *(
        ("smi_nvlink", "GPU 0: A100\n\t Link 0: 25 GB/s\n", line, "")
        for line in (
            "Link 1: 25 GB/s\n",
            "GPU 1: " + "(" * 80 + "\n",
            "Link 1: ",
            " \t" * 40,
            "GPU 0: a",
        )
    ),
    *(
        ("nccl_log", "NCCL INFO start\n", line, "")
        for line in (
            "NCCL INFO + PCI[1.0] - PCI/1\n",
            "NCCL INFO + NET[1.0] - NET/{0}\n",
            "a" * 125 + " NCCL INFO Trees [0] 1/-1\n",
            "NCCL INFO Trees [0] {0}/-1/-1->{0}->1\n",
            "NCCL INFO Channel 00/99 :" + " 1" * 50 + "\n",
            " " * 300 + "+ NVL[1.0] - GPU/{0}\n",
            "NCCL INFO GPU/{0} :GPU/1 (1/1.0/NVL) GPU/2\n",
        )
    ),
    *(
        ("nccl_xml", "<system>", unit, "</system>")
        for unit in (
            '<cpu numaid="0"/>',
            '<cpu numaid="-1"/>',
            '<cpu host_hash="{0}" numaid="{0}"><pci class="0x03" busid="1"><gpu/></pci></cpu>',
            '<cpu numaid="{0}"/>',
            '<cpu><pci busid="x"/></cpu>',
            GPU_IN_XML,
        )
    ),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "begin", "unit", "end"), LARGE)
def test_a_megabyte_is_read_in_linear_time(name: str, begin: str, unit: str, end: str) -> None:
    units = (unit.replace("{0}", f"{number:x}") for number in range(MEGABYTE // len(unit)))
    text = begin + "".join(units) + end

    def read() -> None:
        reader(name).recognises(text)
        read_or_refused(reader(name).read, text)

    within(4, read)  # 1 s alone; other work may share the machine


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "line", ["<", "GPU0", "<system ", "NCCL INFO ", "\t", "[0] ", "Link 0", "0-1,", "\n", "  "]
)
def test_a_megabyte_of_anything_is_sorted_out_in_seconds(line: str) -> None:
    text = line * (MEGABYTE // len(line))
    for name in READERS:
        within(2, partial(reader(name).recognises, text))
