from ccbench.topology.graph import Topology
from tests.topology.dumps import entries

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
