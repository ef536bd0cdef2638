"""Rates of point-to-point transfers: perftest (ib_write_bw and the like), nixlbench, DeepEP's tests.

perftest prints Gb/sec of 1e9 bits with --report_gbits, else MB/sec of 2^20 bytes; a bidirectional test prints
both directions together. nixlbench and DeepEP print GB/s of 1e9 bytes. Sources: src/perftest_resources.c and
perftest_parameters.h of github.com/linux-rdma/perftest; benchmark/nixlbench of github.com/ai-dynamo/nixl;
tests/test_intranode.py, test_internode.py and test_low_latency.py of github.com/deepseek-ai/DeepEP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import decimal, plain_lines, without_tags
from ccbench.readers.statements import LONGEST_QUOTE, Statement

FORM = "rates of transfers"

OWNED = re.compile(
    r"^\s*(?:RDMA_|Send (?:Bi|BW)|Dual-port|Number of qps|Connection type|PCIe relax|ibv_wr|[TR]X depth|CQ M|CQE P|Mtu "
    r"|Link type|GID|Max inline|Outstand|rdma_cm|Data ex|local address|remote address|#bytes|-{20}|\*{20}|\d+\s+\d+\s"
    r"|NIXLBench|Block Size \(B\)|[\w ]+\(--\w+=.{0,120}\)\s*: |\[(?:tuning|testing|config|layout|rank \d+)\])"
)

_TITLE = re.compile(
    r"^\s*(?P<test>RDMA_Write|RDMA_Read|Send|Atomic \w+)(?: Post List)?(?P<both> Bidirectional)? BW Test"
)
_DEVICE = re.compile(r"\bDevice\s+:\s+(?P<device>[\w.\-]{1,60})")
_LINK = re.compile(r"^\s*Link type\s+:\s+(?P<link>\w{1,20})")
_PERFTEST = re.compile(
    r"^\s*#bytes\s+#iterations\s+(?P<peak>BW peak\[\S{1,10}\]\s+)?BW average\[(?P<unit>Gb/sec|MB/sec)\]"
)
_GIGABYTES = {"Gb/sec": 1 / 8, "MB/sec": 2**20 / 1e9}
_NIXL = re.compile(r"^\s*Block Size \(B\)\s+Batch Size\s.*B/W \(GB/Sec\)")
_NIXL_STATED = re.compile(
    r"^\s*(?P<name>Backend|Op type) \(--\w+=.{0,200}\)\s*: (?P<value>\w{1,20})\s*$"
)
_END = re.compile(r"^\s*(?:[#$]|Count\s+Size|Running |memcpy )")
"""Headers of other tables, whose rows may look alike."""
_ROW = re.compile(r"^\s*(?P<bytes>\d{1,18})((?:\s+\d[\d.]*){2,16})\s*$")
_BEST = re.compile(r"\[tuning\] Best (?P<test>(?:dispatch|combine)(?: \(\w{1,10}\))?):")
_BEST_RATE = re.compile(r"(\d[\d.]{0,20}) GB/s \((\w{1,10})\)")
_LOW_LATENCY = re.compile(r"\[rank (?P<rank>\d{1,6})\] (?=(?:Dispatch|Combine))")
_BANDWIDTH = re.compile(
    r"(Dispatch \+ combine|Dispatch|Combine) bandwidth: (\d[\d.]{0,20}) GB/s"
)


def read(text: str) -> Iterator[Statement]:
    """Yield a ``transfer_rate`` for each row or result, in GB/s (1e9 bytes per second).

    values: tool, test, rate, bytes ("" where not printed), link, directions (1 or 2, together). speaker: device
    or rank.
    """
    table = _Table()
    for number, tagged in enumerate(plain_lines(text), start=1):
        line = without_tags(tagged[:600]).rstrip()
        quote = line.strip()[:LONGEST_QUOTE]
        for speaker, values in (*table.taken(line), *_deep_ep(line)):
            yield Statement("transfer_rate", number, quote, values, speaker)


class _Table:
    """Settings that lines above a row of perftest or nixlbench state."""

    def __init__(self) -> None:
        self._stated: dict[str, str] = {}
        self._device = ""
        self._column, self._gigabytes = -1, 1.0

    def taken(self, line: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Take ``line``; yield (speaker, values) where it is a row."""
        if match := _TITLE.match(line):
            both = "2" if match["both"] else "1"
            self._stated = {"tool": "perftest", "test": match["test"], "directions": both}
            self._device, self._column = "", -1
        elif match := _PERFTEST.match(line):
            self._stated = {"test": "bandwidth", "directions": "1"} | self._stated
            self._stated["tool"] = "perftest"
            self._column = 2 if match["peak"] else 1
            self._gigabytes = _GIGABYTES[match["unit"]]
        elif _NIXL.match(line):
            columns = re.split(r"\s{2,}", line.strip())
            test = " ".join(self._stated.get(name, "") for name in ("Backend", "Op type"))
            self._stated |= {"tool": "nixlbench", "test": test.strip(), "directions": "1"}
            self._device, self._gigabytes = "", 1.0
            self._column = (
                columns.index("B/W (GB/Sec)") - 1 if "B/W (GB/Sec)" in columns else -1
            )
        elif match := _NIXL_STATED.match(line):
            self._stated[match["name"]] = match["value"]
        elif match := _LINK.match(line):
            self._stated["link"] = match["link"]
        elif self._column >= 0 and (match := _ROW.match(line)):
            figures = match[2].split()
            rate = decimal(figures[self._column]) if self._column < len(figures) else None
            if rate:
                values = {
                    name: self._stated.get(name, "")
                    for name in ("tool", "test", "directions", "link")
                }
                values |= {"bytes": match["bytes"], "rate": f"{rate * self._gigabytes:.6g}"}
                yield self._device, values
        elif _END.match(line):
            self._column = -1
        if match := _DEVICE.search(line):
            self._device = match["device"]


def _deep_ep(line: str) -> Iterator[tuple[str, dict[str, str]]]:
    rates = []
    speaker = ""
    if match := _BEST.search(line):
        rates = [(f"{match['test']}, {path}", rate) for rate, path in _BEST_RATE.findall(line)]
    elif match := _LOW_LATENCY.search(line):
        speaker = f"rank {match['rank']}"
        rates = [
            (f"low latency, {test.lower()}", rate) for test, rate in _BANDWIDTH.findall(line)
        ]
    for test, rate in rates:
        if decimal(rate):
            named = {"tool": "DeepEP", "test": test, "directions": "1", "link": "", "bytes": ""}
            yield speaker, {**named, "rate": rate}
