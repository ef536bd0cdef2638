from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccbench.results.importers.same_machine import bare_model, cure, difference, is_other_model, machines_with
from ccbench.topology.catalog import catalog_names, load_catalog

MODELS = tuple(
    str(load_catalog(name).gpus[0].attributes["model"]) for name in catalog_names() if load_catalog(name).gpus
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H20", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H20", "NVIDIA H200"),
        ("NVIDIA B300 SXM6 AC", "NVIDIA B200"),
        ("NVIDIA A10", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA B200", "NVIDIA GB200"),
    ],
)
def test_different_models_are_told_apart(one: str, other: str) -> None:
    assert is_other_model(one, other)
    assert is_other_model(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3"),
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("Ascend 910B3", "Ascend 910B"),
        ("Graphics Device", "NVIDIA H100"),
        ("gfx942", "AMD Instinct MI300X"),
        ("NVIDIA L40S", "any PCIe 4 x16 card"),
        ("", "NVIDIA H100"),
    ],
)
def test_what_may_be_the_same_is_not_called_different(one: str, other: str) -> None:
    assert not is_other_model(one, other)
    assert not is_other_model(other, one)


@example(MODELS[0], "NVIDIA_")
@example(MODELS[0], "40 nvidia gb")
@given(st.sampled_from(MODELS), st.text(max_size=30))
def test_a_model_never_differs_from_itself_and_order_does_not_matter(model: str, words: str) -> None:
    assert not is_other_model(model, model)
    assert is_other_model(model, words) is is_other_model(words, model)
    assert bare_model(bare_model(words)) == bare_model(words)


def test_a_board_is_not_the_machine_of_cards_and_the_cure_names_one_that_is() -> None:
    found = difference(load_catalog("hgx-h100"), ("NVIDIA H100 80GB HBM3", "NVIDIA L40S"))
    assert found is not None
    assert not found.same_links
    assert str(found) == "hgx-h100 has NVIDIA H100 80GB HBM3, and the devices listed are NVIDIA L40S"
    assert cure(found.listed) == "name --machine l40s"
    assert "a file that describes it" in cure("NVIDIA GeForce RTX 5090")


def test_cards_on_the_same_kind_of_slot_have_the_same_links() -> None:
    other_slot = difference(load_catalog("rtx-pcie"), ("NVIDIA GeForce RTX 5090",))
    same_slot = difference(load_catalog("rtx-pcie"), ("NVIDIA GeForce RTX 3090",))
    module = difference(load_catalog("rtx-pcie"), ("NVIDIA A100-SXM4-80GB",))
    assert same_slot is not None
    assert same_slot.same_links
    assert other_slot is not None
    assert not other_slot.same_links
    assert module is not None
    assert not module.same_links


@pytest.mark.parametrize(
    ("model", "machine"), [("NVIDIA H20", "hgx-h20"), ("NVIDIA B300", "hgx-b300"), ("NVIDIA L40S", "l40s")]
)
def test_the_catalog_has_machines_for_models_that_people_measure(model: str, machine: str) -> None:
    assert machines_with(model) == (machine,)
    assert difference(load_catalog(machine), (model,)) is None
