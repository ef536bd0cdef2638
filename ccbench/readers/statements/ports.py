"""Ports of NICs: ibstat, ibv_devinfo, ibdev2netdev and 'rdma link'.

Forms are those of rdma-core's and MLNX_OFED's tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import plain_lines, without_tags
from ccbench.readers.statements import Statement

FORM = "ports of NICs"

OWNED = re.compile(
    r"^\s*(?:CA '|CA type|Number of ports|Firmware version|Hardware version|Node GUID|System image GUID|Port \d+:$"
    r"|State:|Physical state:|Rate:|Base lid|LMC:|SM lid|Capability mask|Port GUID|Link layer|hca_id:|transport:"
    r"|fw_ver:|node_guid|sys_image_guid|vendor_id|vendor_part_id|hw_ver|board_id|phys_port_cnt|port:\s|state:"
    r"|max_mtu|active_mtu|sm_lid|port_lid|port_lmc|link_layer|active_width|active_speed|phys_state)"
    r"|port\s+\d+\s+(?:\([\w ]+\)\s+)?==>\s|^\s*link \S+/\d+ "
)

_DEVICE = re.compile(
    r"^\s*(?:CA '(?P<ibstat>[\w.\-]{1,60})'|hca_id:\s*(?P<devinfo>[\w.\-]{1,60}))"
)
_PORT = re.compile(r"^\s*(?:Port (?P<ibstat>\d{1,3}):$|port:\s*(?P<devinfo>\d{1,3})\s*$)")
_FIELD = re.compile(
    r"^\s*(?P<name>State|Physical state|Rate|Link layer|state|phys_state|link_layer|active_width|active_speed):"
    r"\s*(?P<value>\S.{0,60})"
)
_NAMES = {
    "State": "state",
    "Physical state": "physical",
    "Rate": "gigabits",
    "Link layer": "layer",
    "phys_state": "physical",
    "link_layer": "layer",
}
_TO_INTERFACE = re.compile(
    r"(?P<device>[\w.\-]{1,60})\s+(?:\(.{0,120}\).{0,120}?)?port\s+(?P<port>\d{1,3})\s+"
    r"(?:\([\w ]{1,20}\)\s+)?==>\s+(?P<interface>[\w.\-]{1,60})\s+\((?P<state>\w{1,20})\)"
)
_RDMA_LINK = re.compile(
    r"^\s*link (?P<device>[\w.\-]{1,60})/(?P<port>\d{1,3}) .{0,60}?state (?P<state>\w{1,20})"
    r"(?: physical_state (?P<physical>\w{1,20}))?(?: netdev (?P<interface>[\w.\-]{1,60}))?"
)


def read(text: str) -> Iterator[Statement]:
    """Yield a ``port`` for every port, or the ``ip_interface`` of one of InfiniBand."""
    device, values, first, quote = "", dict[str, str](), 0, ""
    for number, tagged in enumerate(plain_lines(text), start=1):
        line = without_tags(tagged[:600]).rstrip()
        if match := _DEVICE.match(line) or _PORT.match(line):
            if values:
                yield Statement("port", first, quote, values, device)
            if match.re is _DEVICE:
                device, values = match["ibstat"] or match["devinfo"], {}
            else:
                values = {"device": device, "port": match["ibstat"] or match["devinfo"]}
                first, quote = number, f"{device} port {values['port']}:"
        elif values and (match := _FIELD.match(line)):
            values[_NAMES.get(match["name"], match["name"])] = match["value"].strip()
            quote = f"{quote} {line.strip()}"
        elif match := (_TO_INTERFACE.search if "==>" in line else _RDMA_LINK.match)(line):
            named = match.groupdict()
            # Of an InfiniBand port ibdev2netdev tells the state of IP over it, which may be unused.
            of_ip = match.re is _TO_INTERFACE and named["interface"].startswith("ib")
            kind = "ip_interface" if of_ip else "port"
            yield Statement(kind, number, line, named, named["device"])
    if values:
        yield Statement("port", first, quote, values, device)
