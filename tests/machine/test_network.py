"""What sysfs says about network interfaces, on laid-out trees of real machines' shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.machine.files import Files
from ccbench.machine.sysfs import INFINIBAND, LOOPBACK, ROCE, Interface, read_interfaces
from tests.machine.laid_out import lay_out


def read(root: Path, files: dict[str, str]) -> tuple[Interface, ...]:
    return read_interfaces(
        Files(lay_out(root, {name: f"{text}\n" for name, text in files.items()}))
    )


def interface(name: str, **files: str) -> dict[str, str]:
    plain = {"mtu": "1500", "type": "1", "operstate": "up", **files}
    return {f"sys/class/net/{name}/{file}": text for file, text in plain.items()}


def card(name: str, ports: dict[str, dict[str, str]], *interfaces: str) -> dict[str, str]:
    found = {f"sys/class/infiniband/{name}/device/net/{one}/mtu": "1500" for one in interfaces}
    for port, files in ports.items():
        plain = {
            "link_layer": "Ethernet",
            "rate": "100 Gb/sec (4X EDR)",
            "state": "4: ACTIVE",
            **files,
        }
        found |= {
            f"sys/class/infiniband/{name}/ports/{port}/{file}": text
            for file, text in plain.items()
        }
    return found


def test_an_ethernet_port_of_an_rdma_card_is_roce(tmp_path: Path) -> None:
    files = interface("ens1", speed="100000", mtu="9000", **{"device/vendor": "0x15b3"})
    (found,) = read(tmp_path, files | card("mlx5_0", {"1": {}}, "ens1"))
    assert (found.kind, found.rdma_device, found.mtu_bytes) == (ROCE, "mlx5_0:1", 9000)
    assert str(found) == "ens1, RoCE, 100 Gb/s, MTU 9000, card mlx5_0:1"


def test_a_port_without_an_interface_is_listed_by_its_card(tmp_path: Path) -> None:
    port = {"link_layer": "InfiniBand", "rate": "200 Gb/sec (4X HDR)", "state": "1: DOWN"}
    (found,) = read(tmp_path, card("mlx5_1", {"1": port}))
    assert found == Interface(
        "mlx5_1:1", INFINIBAND, 200e9, None, "mlx5_1:1", up=False, virtual=False
    )
    assert str(found) == "mlx5_1:1, InfiniBand, 200 Gb/s, down"


def test_ports_of_one_card_go_to_the_interfaces_that_name_them(tmp_path: Path) -> None:
    files = card("mlx4_0", {"1": {}, "2": {"rate": "40 Gb/sec (4X QDR)"}}, "a", "b")
    files |= interface("a", **{"device/vendor": "x"}) | interface("b", **{"device/vendor": "x"})
    files |= {
        f"sys/class/infiniband/mlx4_0/device/net/{name}/dev_port": port
        for name, port in ("a0", "b1")
    }
    found = {one.name: one for one in read(tmp_path, files)}
    assert {name: one.rdma_device for name, one in found.items()} == {
        "a": "mlx4_0:1",
        "b": "mlx4_0:2",
    }
    assert found["b"].rate_bits_per_second == 40e9


@pytest.mark.parametrize("speed", ["-1", "0", "", "fast"])
def test_an_unknown_rate_is_none(tmp_path: Path, speed: str) -> None:
    (found,) = read(tmp_path, interface("veth0", speed=speed))
    assert found.rate_bits_per_second is None
    assert found.virtual
    assert str(found) == "veth0, TCP, rate unknown, MTU 1500, virtual"


def test_loopback_is_named_as_such_and_files_beside_interfaces_are_none(tmp_path: Path) -> None:
    files = interface("lo", type="772", operstate="unknown", mtu="65536")
    (found,) = read(tmp_path, files | {"sys/class/net/bonding_masters": "bond0"})
    assert (found.name, found.kind, found.up) == ("lo", LOOPBACK, True)


def test_this_machine_can_be_read() -> None:
    assert all(
        read_interface.mtu_bytes is None or read_interface.mtu_bytes > 0
        for read_interface in read_interfaces()
    )
