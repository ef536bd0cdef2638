from collections import Counter
from typing import Any

import pytest

from ccbench.readers.machines.nccl_xml import PcieLink, read
from ccbench.topology.graph import DeviceKind, LinkKind, Topology, TopologyClass
from tests.topology.dumps import entries, names, needs_dumps, text_of
from tests.topology.graphs import the_link

DUMPS = entries("nccl_xml")


A, B, C = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"


def cpu(*inside: str, numa: str = "0", more: str = "") -> str:
    return f'<cpu numaid="{numa}" {more}>\n' + "\n".join(inside) + "\n</cpu>\n"


def system(*inside: str) -> str:
    return '<system version="1">\n' + "".join(inside) + "</system>\n"


def pci(
    bus: str, pci_class: str, *inside: str, speed: str = "16.0 GT/s PCIe", width: str = "16"
) -> str:
    about = f'busid="{bus}" class="{pci_class}" link_speed="{speed}" link_width="{width}"'
    return f"<pci {about}>\n" + "\n".join(inside) + "\n</pci>"


def gpu(bus: str, *links: str, dev: int = 0, sm: str = "80", gcn: str = "", **pcie: str) -> str:
    arch = f' gcn="{gcn}"' if gcn else ""
    return pci(bus, "0x030200", f'<gpu dev="{dev}" sm="{sm}"{arch}>', *links, "</gpu>", **pcie)


def nvlink(target: str, count: int | str = 1, target_class: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{target_class}"/>'


def xgmi(target: str, count: int = 1) -> str:
    return f'<xgmi target="{target}" count="{count}" tclass="0x038000"/>'


def noticed(topology: Topology) -> list[tuple[str, int | None]]:
    return [(warning.kind, warning.line) for warning in topology.warnings]


def is_two_way(topology: Topology) -> bool:
    ends = Counter((li.source, li.target, li.kind, li.count) for li in topology.links)
    return ends == Counter(
        (target, source, kind, count) for source, target, kind, count in ends.elements()
    )


# Real files


@needs_dumps
@pytest.mark.parametrize("entry", DUMPS, ids=names(DUMPS))
def test_a_real_file_gives_a_sound_graph(entry: dict[str, Any]) -> None:
    topology = read(text_of(entry))
    devices = {device.name: device for device in topology.devices}
    assert len(devices) == len(topology.devices)
    assert all(link.source in devices and link.target in devices for link in topology.links)
    assert all(link.source != link.target for link in topology.links)
    assert is_two_way(topology)
    assert all(link.origin for link in topology.links)
    assert all(
        link.bytes_per_second is None or link.bytes_per_second > 0 for link in topology.links
    )
    attached = {link.source for link in topology.links}
    assert all(gpu.name in attached for gpu in topology.gpus)
    assert all(
        warning.line
        for warning in topology.warnings
        if "the file does not tell" not in warning.text
    )


# The tree


def test_gpus_and_nics_hang_below_switches_with_the_rates_the_file_states() -> None:
    text = system(
        cpu(
            pci(
                "0000:01:00.0",
                "0x060400",
                gpu("0000:02:00.0"),
                pci(
                    "0000:03:00.0",
                    "0x020700",
                    '<nic><net name="mlx5_0" speed="200000"/></nic>',
                    width="8",
                ),
                speed="32.0 GT/s PCIe",
            ),
            more='affinity="0000000f,000000ff" arch="x86_64"',
        )
    )
    topology = read(text)
    assert [device.name for device in topology.devices] == ["cpu0", "pcie0", "gpu0", "nic0"]
    assert topology.device("cpu0").attributes["cores"] == 12
    assert all(device.numa_node == 0 for device in topology.devices)
    switch, nic = ("cpu0", "pcie0", LinkKind.PCIE), ("pcie0", "nic0", LinkKind.PCIE)
    assert the_link(topology, *switch).bytes_per_second == pytest.approx(63.015e9, rel=1e-4)
    assert the_link(topology, *nic).bytes_per_second == pytest.approx(15.754e9, rel=1e-4)
    above_gpu = the_link(topology, "gpu0", "pcie0", LinkKind.PCIE)
    assert above_gpu.bytes_per_second == pytest.approx(31.508e9, rel=1e-4)
    assert above_gpu.attributes == {
        "link_speed": "16.0 GT/s PCIe",
        "link_width": "16",
        "gigatransfers": 16.0,
        "width": 16,
    }
    assert topology.warnings == ()
    assert topology.topology_class is TopologyClass.SINGLE_GPU


def test_a_gpu_has_the_name_of_its_pci_ids_and_none_where_they_are_not_listed() -> None:
    ids = 'class="0x030200" vendor="0x10DE" device="{}"'
    text = system(
        *(
            cpu(f'<pci busid="{bus}" {ids.format(device)}/>')
            for bus, device in ((A, "0x2330"), (B, "0x0"))
        )
    )
    first, second = read(text).gpus
    assert first.attributes["model"] == "H100 80GB SXM5"
    assert "model" not in second.attributes


def test_a_nic_keeps_name_rate_gdr_and_latency_of_all_its_ports() -> None:
    nets = (
        '<nic><net name="mlx5_0" speed="100000" port="1" latency="1.5" gdr="1"/>'
        '<net name="mlx5_1" speed="100000" port="2" latency="1.5" gdr="0"/></nic>'
    )
    nic = read(system(cpu(pci("0000:03:00.0", "0x020000", nets)))).device("nic0")
    assert nic.attributes["name"] == "mlx5_0"
    assert nic.attributes["net_bytes_per_second"] == 25e9
    assert nic.attributes["gdr"] is True
    assert nic.attributes["latency_seconds"] == pytest.approx(1.5e-6)
    assert [net["name"] for net in nic.attributes["nets"]] == ["mlx5_0", "mlx5_1"]


def test_a_wifi_card_is_a_device_and_not_counted_as_a_nic() -> None:
    topology = read(system(cpu(pci("0000:01:00.0", "0x028000"))))
    assert topology.device("nic0").kind is DeviceKind.NIC
    assert topology.facts["nic_count"] == 0


def test_numa_nodes_of_one_host_are_joined_at_a_rate_nobody_states() -> None:
    topology = read(system(cpu(numa="0"), cpu(numa="2")))
    assert [device.name for device in topology.devices] == ["cpu0", "cpu2"]
    assert the_link(topology, "cpu0", "cpu2", LinkKind.INTER_SOCKET).bytes_per_second is None
    assert is_two_way(topology)


@pytest.mark.parametrize(
    ("speed", "rate", "kind"),
    [
        ("8 GT/s", 15.754e9, None),
        ("8.0 GT/s PCIe", 15.754e9, None),
        ("64.0 GT/s PCIe", 121e9, None),
        ("32.0 GT/s", 63.015e9, "unknown_spelling"),
        ("16GT/s", 31.508e9, "unknown_spelling"),
        ("17 GT/s", None, "unknown_spelling"),
        ("fast", None, "unknown_spelling"),
        ("", None, "not_visible"),
        ("Unknown speed", None, "not_visible"),
    ],
)
def test_a_speed_is_read_where_it_plainly_is_one_and_noticed_where_nccl_would_not(
    speed: str, rate: float | None, kind: str | None
) -> None:
    topology = read(system(cpu(gpu("0000:01:00.0", speed=speed))))
    found = the_link(topology, "cpu0", "gpu0", LinkKind.PCIE).bytes_per_second
    assert found == (None if rate is None else pytest.approx(rate, rel=1e-4))
    assert noticed(topology) == ([(kind, 3)] if kind else [])


@pytest.mark.parametrize(
    ("speed", "width", "below"),
    [
        ("16.0 GT/s PCIe", "1", "64.0 GT/s PCIe"),
        ("2.5 GT/s PCIe", "16", "2.5 GT/s PCIe"),
        ("5.0 GT/s PCIe", "16", "32.0 GT/s PCIe"),
    ],
)
def test_a_hop_above_a_gpu_that_is_hard_to_believe_is_kept_and_noticed(
    speed: str, width: str, below: str
) -> None:
    text = system(
        cpu(
            pci(
                "0000:01:00.0",
                "0x060400",
                gpu("0000:02:00.0", speed=below),
                speed=speed,
                width=width,
            )
        )
    )
    topology = read(text)
    assert ("contradiction", 3) in noticed(topology)
    assert the_link(topology, "cpu0", "pcie0", LinkKind.PCIE).attributes["link_width"] == width


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        (system(cpu(numa="-1")), "not_visible", 2),
        (system(cpu(), cpu()), "contradiction", 5),
        (system(cpu('<pci busid="0000:01:00.0"/>')), "not_visible", 3),
        (system(cpu(pci("0000:01:00.0", "0x010802"))), "unsupported", 3),
        (system(cpu(gpu("0000:01:00.0"), gpu("0000:01:00.0"))), "repeated_bus_id", 7),
        (system(cpu("<tpu/>")), "unsupported", 3),
        (system('<pci busid="0000:01:00.0"/>\n'), "damaged_line", 2),
        (
            system(cpu(pci("a", "0x02", '<nic><net name="x" speed="-1"/></nic>'))),
            "not_visible",
            4,
        ),
        (
            system(cpu(pci("a", "0x02", '<nic><net name="x" speed="99999999"/></nic>'))),
            "contradiction",
            4,
        ),
        (system(cpu(gpu("0000:01:00.0", width="0"))), "not_visible", 3),
    ],
)
def test_what_looks_wrong_in_the_tree_is_noticed_with_its_line(
    text: str, kind: str | None, line: int
) -> None:
    assert (kind, line) in noticed(read(text))


# Links between GPUs


def test_nvlinks_between_gpus_have_the_rate_of_their_generation_times_their_count() -> None:
    text = system(cpu(gpu(A, nvlink(B, 4), sm="90"), gpu(B, nvlink(A.upper(), 4), sm="90")))
    topology = read(text)
    link = the_link(topology, "gpu0", "gpu1", LinkKind.NVLINK)
    assert (link.count, link.bytes_per_second) == (4, 100e9)
    assert "compute capability 9.0" in link.origin
    assert is_two_way(topology)
    assert topology.topology_class is TopologyClass.NVLINK_BRIDGE
    assert topology.facts["nvlinks_per_gpu"] == [4, 4]
    assert topology.warnings == ()


def test_switches_are_devices_shared_by_the_gpus_that_name_them() -> None:
    first, second = (nvlink(bus, 6, "0x068000") for bus in ("0000:c4:00.0", "0000:c5:00.0"))
    topology = read(system(cpu(gpu(A, first, second), gpu(B, second, first))))
    assert [device.name for device in topology.of_kind(DeviceKind.NVSWITCH)] == [
        "nvswitch0",
        "nvswitch1",
    ]
    assert the_link(topology, "gpu1", "nvswitch1", LinkKind.NVLINK).count == 6
    assert is_two_way(topology)
    assert topology.topology_class is TopologyClass.NVSWITCH
    assert topology.facts["nvswitch_count"] == 2
    assert topology.facts["nvlinks_per_gpu"] == [12, 12]


def test_a_switch_that_is_not_shown_has_no_number_and_a_warning() -> None:
    topology = read(system(cpu(gpu(A, nvlink("fffffff:ff:ff.0", 18, "0x068000")))))
    assert topology.topology_class is TopologyClass.NVSWITCH
    assert topology.facts["nvswitch_count"] is None
    assert topology.device("nvswitch0").attributes["visible"] is False
    assert noticed(topology) == [("not_visible", 5)]


def test_nvlinks_to_the_processor_end_at_the_gpus_own_cpu_and_are_no_links_between_gpus() -> (
    None
):
    bridge = nvlink("0004:00:01.0", 3, "0x068001")
    topology = read(
        system(cpu(gpu(A, bridge, nvlink(B, 3)), gpu(B, bridge, nvlink(A, 3)), numa="8"))
    )
    assert the_link(topology, "gpu1", "cpu8", LinkKind.NVLINK).count == 3
    assert topology.facts["nvlinks_per_gpu"] == [3, 3]
    assert is_two_way(topology)


def test_c2c_joins_a_gpu_to_its_cpu_at_the_stated_rate() -> None:
    topology = read(system(cpu(gpu(A, '<c2c bw="44712" count="5"/>', sm="103"))))
    link = the_link(topology, "cpu0", "gpu0", LinkKind.C2C)
    assert link.count == 5
    assert link.bytes_per_second == pytest.approx(223.56e9)
    assert topology.topology_class is TopologyClass.SINGLE_GPU


@pytest.mark.parametrize(
    ("gcn", "per_link"),
    [
        *(("gfx942", 64e9), ("940", 64e9), ("gfx950", 76.8e9), ("910", 50e9), ("908", 46e9)),
        *(("906", 24e9), ("x", None)),
    ],
)
def test_xgmi_has_the_rate_of_its_architecture(gcn: str, per_link: float | None) -> None:
    topology = read(system(cpu(gpu(A, xgmi(B, 2), gcn=gcn), gpu(B, xgmi(A, 2), gcn=gcn))))
    link = the_link(topology, "gpu0", "gpu1", LinkKind.XGMI)
    assert (link.count, link.bytes_per_second) == (
        2,
        None if per_link is None else 2 * per_link,
    )
    assert topology.topology_class is TopologyClass.XGMI_MESH


def test_links_to_gpus_that_are_not_in_the_file_leave_the_class_open() -> None:
    topology = read(system(cpu(gpu(A, nvlink(B), nvlink(C)), gpu(B, nvlink(A), nvlink(C)))))
    assert noticed(topology)[:2] == [("missing_peer", 6), ("missing_peer", 12)]
    assert topology.topology_class is TopologyClass.UNKNOWN
    assert the_link(topology, "gpu0", "gpu1", LinkKind.NVLINK).count == 1


def test_a_link_that_only_one_side_states_is_drawn_both_ways_and_noticed() -> None:
    topology = read(system(cpu(gpu(A, nvlink(B, 2)), gpu(B))))
    assert the_link(topology, "gpu1", "gpu0", LinkKind.NVLINK).count == 2
    assert "contradiction" in [kind for kind, _ in noticed(topology)]


@pytest.mark.parametrize("count", ["0", "-3", "many", "99999999999999999999", "37"])
def test_a_count_that_cannot_be_is_left_out_and_noticed(count: str) -> None:
    topology = read(system(cpu(gpu(A, nvlink(B, count)), gpu(B))))
    assert ("damaged_line", 5) in noticed(topology)
    assert not [link for link in topology.links if link.kind is LinkKind.NVLINK]


def test_gpus_without_links_are_a_pcie_machine_only_where_the_file_is_a_dump() -> None:
    assert read(system(cpu(gpu(A), gpu(B)))).topology_class is TopologyClass.PCIE
    written = read(system(cpu(pci(A, "0x030200"), pci(B, "0x030200"))))
    assert written.topology_class is TopologyClass.UNKNOWN
    assert [kind for kind, _ in noticed(written)] == ["not_visible"]


# Several hosts


def test_hosts_of_one_file_share_the_hidden_switch_and_nothing_else() -> None:
    switch = nvlink("fffffff:ff:ff.0", 18, "0x068000")
    hosts = [
        cpu(gpu(A, switch), gpu(B, switch, dev=1), more=f'host_hash="{host}"')
        for host in ("0xb", "0xa")
    ]
    topology = read(system(*hosts))
    gpus = [("n0.gpu0", 0, A), ("n0.gpu1", 0, B), ("n1.gpu0", 1, A), ("n1.gpu1", 1, B)]
    assert [(gpu.name, gpu.node, gpu.bus_id) for gpu in topology.gpus] == gpus
    (shared,) = topology.of_kind(DeviceKind.NVSWITCH)
    assert shared.node == -1
    assert Counter(
        link.source for link in topology.links if link.target == shared.name
    ) == Counter(gpu.name for gpu in topology.gpus)
    assert [kind for kind, _ in noticed(topology)] == ["several_hosts", "not_visible"]
    assert [gpu.node for gpu in topology.gpus] == [0, 0, 1, 1]


def test_a_direct_link_never_crosses_hosts() -> None:
    hosts = [
        cpu(gpu(A, nvlink(B)), more='host_hash="1"'),
        cpu(gpu(B, nvlink(A)), more='host_hash="2"'),
    ]
    topology = read(system(*hosts))
    assert [kind for kind, _ in noticed(topology)].count("missing_peer") == 2
    assert not [link for link in topology.links if link.kind is LinkKind.NVLINK]


# Any text


def test_parts_of_one_device_are_several_gpus() -> None:
    parts = '<gpu dev="0" sm="90" rank="0"/><gpu dev="1" sm="90" rank="1"/>'
    topology = read(system(cpu(pci(A, "0x120000", parts), gpu(B, dev=2))))
    gpus = [(gpu.name, gpu.bus_id, gpu.attributes["dev"]) for gpu in topology.gpus]
    assert gpus == [("gpu0", A, "0"), ("gpu1", A, "1"), ("gpu2", B, "2")]
    assert topology.facts["gpu_count"] == 3
    assert ("repeated_bus_id", 3) in noticed(topology)
    assert is_two_way(topology)


def test_every_port_of_a_card_is_a_nic_and_virtual_ones_are_none() -> None:
    net = '<nic><net name="mlx5_{0}" speed="100000"/></nic>'
    cards = [pci(f"0000:03:00.{port}", "0x020000", net.format(port)) for port in (0, 1)]
    topology = read(system(cpu(*cards, '<nic><net name="docker0"/><net name="bond0"/></nic>')))
    assert topology.facts["nic_count"] == 2


@pytest.mark.parametrize(
    ("speed", "width"),
    [
        ("", "16"),
        ("8 GT/s", "0"),
        ("8 GT/s", "255"),
        ("8 GT/s", "x"),
        ("9 GT/s", "16"),
        ("", ""),
    ],
)
def test_a_speed_or_width_that_is_none_gives_no_rate(speed: str, width: str) -> None:
    link = PcieLink({"link_speed": speed, "link_width": width})
    assert link.bytes_per_second is None
    assert (link.speed, link.width) == (speed, width)


def provided(vendor: str, device: str, count: int) -> str:
    """A provider's file: PCI devices without ``<gpu>``, as NCCL adds the links itself."""
    gpus = "".join(
        f'<pci busid="0000:{16 + gpu:02x}:00.0" class="0x030200" vendor="{vendor}" device="{device}" '
        'link_speed="16 GT/s" link_width="16"/>'
        for gpu in range(count)
    )
    return f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>'


@pytest.mark.parametrize(
    ("vendor", "device", "count", "expected"),
    [
        ("0x10de", "0x20b0", 8, "nvswitch"),
        ("0x10de", "0x20B2", 8, "nvswitch"),
        ("0x10de", "0x20b0", 4, "unknown"),
        ("0x10de", "0x2330", 8, "nvswitch"),
        ("0x10de", "0x2335", 8, "nvswitch"),
        ("0x10de", "0x2901", 8, "nvswitch"),
        ("0x10de", "0x1db5", 8, "nvlink-cube-mesh"),
        ("0x10de", "0x1db5", 4, "unknown"),
        ("0x10de", "0x26b9", 8, "pcie"),
        ("0x10de", "0x2bb5", 8, "pcie"),
        ("0x10de", "0x20f1", 2, "unknown"),
        ("0x10de", "0x2204", 2, "unknown"),
        ("0x1002", "0x74a1", 8, "xgmi-mesh"),
        ("0x1002", "0x74a1", 2, "unknown"),
        ("0x10de", "0xbeef", 8, "unknown"),
    ],
)
def test_pci_ids_give_a_class_where_a_file_states_no_links(
    vendor: str, device: str, count: int, expected: str
) -> None:
    topology = read(provided(vendor, device, count))
    assert topology.topology_class.value == expected
    inferred = expected != "unknown"
    assumed = [warning.text for warning in topology.warnings if warning.kind == "assumed"]
    assert len(assumed) == inferred
    assert not inferred or f"the class {expected} is inferred from the PCI ids" in assumed[0]


def test_pci_ids_of_two_models_give_no_class() -> None:
    text = provided("0x10de", "0x20b0", 8).replace("0x20b0", "0x2330", 1)
    assert read(text).topology_class is TopologyClass.UNKNOWN


def test_links_that_a_file_leaves_out_of_gpu_elements_are_not_inferred() -> None:
    text = provided("0x10de", "0x20b0", 8).replace("/>", '><gpu dev="0" sm="80"/></pci>')
    assert read(text).topology_class is TopologyClass.PCIE
