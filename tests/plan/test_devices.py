"""The table of devices: every machine of the catalog has one, every number its source."""

from __future__ import annotations

import pytest

from ccbench.errors import UsageError
from ccbench.plan.memory import named_device, named_devices
from ccbench.topology.catalog import catalog_names, load_catalog


def test_a_device_is_found_by_its_name_and_by_what_machines_call_it() -> None:
    assert named_device("H100") is named_device("NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("name", "tflops", "gigabytes"),
    # Data sheets, without sparsity.
    [("v100", 125, 32), ("a100", 312, 80), ("h100", 989, 80), ("h200", 989, 141), ("mi300x", 1307, 192)],
)
def test_rates_are_those_of_the_data_sheets(name: str, tflops: float, gigabytes: int) -> None:
    device = named_device(name)
    assert device.peak(device.usual_dtype) == tflops * 1e12
    assert device.memory_bytes == gigabytes * 10**9


def test_devices_are_plausible_and_have_sources() -> None:
    for name, device in named_devices().items():
        assert device.source, name
        assert device.achieved_source, name
        assert 0.4 < device.achieved < 1, name
        assert 1e9 < device.memory_bytes < 1e12, name
        assert 5e11 < device.memory_bytes_per_second < 1e13, name
        assert all(1e13 < flops < 1e16 for _, flops in device.peak_flops), name


def test_models_belong_to_one_device() -> None:
    models = [model for device in named_devices().values() for model in (device.name, *device.models)]
    assert len(models) == len(set(models))


@pytest.mark.parametrize("name", catalog_names())
def test_every_accelerator_of_the_catalog_has_a_device(name: str) -> None:
    models = {str(device.attributes.get("model", "any")) for device in load_catalog(name).devices}
    for model in models:
        if not model.startswith("any"):
            assert named_device(model)


def test_stated_rates_replace_those_of_the_table() -> None:
    stated = named_device("h100").with_rates(tflops=500, memory_bytes=10**10)
    assert (stated.peak("bfloat16"), stated.memory_bytes) == (500e12, 10**10)
    assert named_device("h100").with_rates() == named_device("h100")


def test_an_unknown_device_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="mi300x"):
        named_device("abacus")
