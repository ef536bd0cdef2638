from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.model.library import Generation
from ccbench.model.library.clusters import (
    generation_of_capability,
    generations_in,
    nic_port,
    nvlink_rate,
    nvlinks_of,
    pcie_generation,
    pcie_rate,
    xgmi_rate,
)

NAMES = {
    "Tesla P100-SXM2-16GB": Generation.PASCAL,
    "GeForce GTX 1080 Ti": Generation.PASCAL,
    "V100-SXM2-32GB (p3dn.24xlarge)": Generation.VOLTA,
    "NVIDIA TITAN V": Generation.VOLTA,
    "Tesla T4": Generation.TURING,
    "RTX 2080 Ti": Generation.TURING,
    "Quadro RTX 8000": Generation.TURING,
    "NVIDIA A100-SXM4-80GB": Generation.AMPERE,
    "A100SXM4": Generation.AMPERE,
    "A10G": Generation.AMPERE,
    "NVIDIA RTX A6000": Generation.AMPERE,
    "GeForce RTX 3090 Ti": Generation.AMPERE,
    "NVIDIA L40S": Generation.ADA,
    "L4": Generation.ADA,
    "RTX 6000 Ada Generation": Generation.ADA,
    "GeForce RTX 4090 D": Generation.ADA,
    "H100 80GB HBM3": Generation.HOPPER,
    "H800 (8 NVLinks kept)": Generation.HOPPER,
    "GH200 120GB": Generation.HOPPER,
    "H20-3e": Generation.HOPPER,
    "NVIDIA GB200": Generation.BLACKWELL,
    "B300": Generation.BLACKWELL,
    "RTX PRO 6000 Blackwell": Generation.BLACKWELL,
    "AMD Instinct MI250X": Generation.CDNA2,
    "MI300X (BM.GPU.MI300X.8)": Generation.CDNA3,
    "gfx942": Generation.CDNA3,
    "Ascend 910B": Generation.ASCEND,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_name_says_its_generation(name: str) -> None:
    assert generations_in(name) == (NAMES[name],)


def test_words_that_look_like_a_model_inside_others_are_none() -> None:
    assert generations_in("p4d.24xlarge") == ()
    assert generations_in("BM.GPU.B4.8") == ()
    assert generations_in("A1000000") == ()


def test_two_generations_are_both_named_oldest_first() -> None:
    assert generations_in("H100 PCIe + A100 PCIe (mixed)") == (Generation.AMPERE, Generation.HOPPER)


@given(st.text(max_size=60))
def test_any_words_give_an_answer(words: str) -> None:
    assert len(set(generations_in(words))) == len(generations_in(words))
    assert nvlinks_of(words) is None or nvlinks_of(words)


@given(st.integers(0, 200))
def test_newer_capabilities_are_newer_generations(capability: int) -> None:
    order = [Generation.UNKNOWN, Generation.PASCAL, Generation.VOLTA, Generation.TURING, Generation.AMPERE]
    order += [Generation.ADA, Generation.HOPPER, Generation.BLACKWELL]
    here, above = generation_of_capability(capability), generation_of_capability(capability + 1)
    assert order.index(here) <= order.index(above)


def test_nvlinks_of_boards_and_of_bridged_cards() -> None:
    assert (nvlinks_of("H100 SXM"), nvlinks_of("H100 PCIe"), nvlinks_of("H800")) == (18, 12, 8)
    assert (nvlinks_of("RTX 2080 Ti"), nvlinks_of("RTX A6000"), nvlinks_of("RTX 2080")) == (2, 4, 1)
    assert nvlinks_of("L40S") is None


def test_rates_are_those_of_topology() -> None:
    assert nvlink_rate(Generation.HOPPER, "H100 SXM") == 25e9
    assert nvlink_rate(Generation.BLACKWELL, "B200") == 50e9
    assert nvlink_rate(Generation.AMPERE, "RTX 3090") == 14.0625e9
    assert nvlink_rate(Generation.ADA, "L40S") is None
    xgmi = xgmi_rate("MI300X", Generation.CDNA3)
    assert xgmi is not None
    assert xgmi[0] == 64e9
    assert xgmi_rate("H100", Generation.HOPPER) is None


def test_pcie_rates_follow_from_transfers_and_coding() -> None:
    assert pcie_rate(3) == pytest.approx(15.754e9, rel=1e-4)
    assert pcie_rate(5, 8) == pytest.approx(31.508e9, rel=1e-4)
    assert pcie_rate(9) is None
    assert pcie_generation(Generation.TURING) == 3


@pytest.mark.parametrize(
    ("model", "generation", "gigabytes"),
    [
        ("H100 SXM", Generation.HOPPER, 63.0),
        ("L40S", Generation.ADA, 31.5),
        ("V100-SXM2-32GB", Generation.VOLTA, 15.75),
        ("GH200 120GB", Generation.HOPPER, math.inf),
        ("GB200", Generation.BLACKWELL, math.inf),
        ("Ascend 910B", Generation.ASCEND, math.inf),
        ("something", Generation.UNKNOWN, math.inf),
    ],
)
def test_the_port_towards_nics_is_that_of_the_generation_unless_there_is_none(
    model: str, generation: Generation, gigabytes: float
) -> None:
    rate, origin = nic_port(generation, model)
    assert rate / 1e9 == pytest.approx(gigabytes, rel=1e-3)
    assert origin
