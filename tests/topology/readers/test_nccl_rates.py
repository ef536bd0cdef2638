import pytest

from ccbench.topology.classes import nvlink_rate, xgmi_rate
from ccbench.topology.readers.nccl_xml_tree import PcieLink


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [
        ("2.5 GT/s", "16", 4.0e9),
        ("5.0 GT/s PCIe", "16", 8.0e9),
        ("8 GT/s", "16", 15.753846e9),
        ("16.0 GT/s PCIe", "16", 31.507692e9),
        ("32.0 GT/s PCIe", "8", 31.507692e9),
        ("64.0 GT/s PCIe", "16", 121e9),
    ],
)
def test_pcie_is_raw_rate_times_lanes_less_the_coding(speed: str, width: str, rate: float | None) -> None:
    link = PcieLink({"link_speed": speed, "link_width": width})
    assert link.bytes_per_second == pytest.approx(rate, rel=1e-6)
    assert speed in link.origin


@pytest.mark.parametrize(
    ("speed", "width"),
    [("", "16"), ("8 GT/s", "0"), ("8 GT/s", "255"), ("8 GT/s", "x"), ("9 GT/s", "16"), ("", "")],
)
def test_a_speed_or_width_that_is_none_gives_no_rate(speed: str, width: str) -> None:
    link = PcieLink({"link_speed": speed, "link_width": width})
    assert link.bytes_per_second is None
    assert (link.speed, link.width) == (speed, width)


def test_the_rate_of_an_nvlink_follows_the_compute_capability_and_says_so() -> None:
    assert nvlink_rate("70")[0] == 25e9
    assert nvlink_rate("103") == (50e9, "datasheet rate of one NVLink at compute capability 10.3")
    assert nvlink_rate("121") == (None, "rate not stated")
    assert nvlink_rate("") == (None, "rate not stated")


def test_architectures_are_known_by_name_by_number_and_by_the_old_decimal() -> None:
    assert xgmi_rate("gfx90a") == xgmi_rate("90a") == xgmi_rate("910")
    assert xgmi_rate("gfx941") == xgmi_rate("942")
    assert xgmi_rate("gfx1100")[0] is None
    assert xgmi_rate("")[0] is None
