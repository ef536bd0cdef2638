"""Access control services of PCIe bridges, as 'lspci -vvv' prints them: ACS redirects copies between GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import plain_lines
from ccbench.readers.statements import Statement

FORM = "lspci"

OWNED = re.compile(r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] |ACSC(?:tl|ap):|^\t+\S")

_DEVICE = re.compile(
    r"^(?P<address>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<name>.{1,120})"
)
_CONTROL = re.compile(r"ACSCtl:\s*(?P<control>.{1,200})")


def read(text: str) -> Iterator[Statement]:
    """Yield an ``acs`` for every bridge, with ``redirects`` where it sends peers' requests upwards."""
    address = name = ""
    for number, line in enumerate(plain_lines(text), start=1):
        if match := _DEVICE.match(line):
            address, name = match["address"], match["name"]
        elif match := _CONTROL.search(line[:600]):
            redirects = re.search(r"ReqRedir\+|CmpltRedir\+|SrcValid\+", match["control"])
            values = {"address": address, "name": name, "control": match["control"].strip()}
            values |= {"redirects": "yes"} if redirects and "Redir+" in match["control"] else {}
            yield Statement("acs", number, line, values, address)
