"""Bandwidth between pairs of GPUs: p2pBandwidthLatencyTest of the CUDA samples, and nvbandwidth."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import decimal, plain_lines, without_tags
from ccbench.readers.statements import LONGEST_QUOTE, Statement

FORM = "bandwidth of pairs"

OWNED = re.compile(
    r"^\s*(?:\[P2P|Device: ?\d+,|Device=\d+ CAN|\*\*\*NOTE|P2P Connectivity|(?:Uni|Bi)directional P2P|P2P=|D\\D"
    r"|[GC]PU\s+0\s|nvbandwidth|Running \w+|memcpy |SUM |COEFFICIENT|NOTE:|CUDA (?:Runtime|Driver) Version|Driver V"
    r"|Built from Git|\d{1,3}(?:\s+(?:\d[\d.]*|N/A))+\s*$|0\s+1\s)"
)

_GPU = re.compile(r"^\s*Device: ?(?P<gpu>\d{1,3}), (?P<model>[^,]{1,60}),")
_ACCESS = re.compile(
    r"^\s*Device=(?P<first>\d{1,3}) (?P<can>CAN|CANNOT) Access Peer Device=(?P<second>\d{1,3})"
)
_HEADING = re.compile(
    r"(?P<direction>Uni|Bi)directional P2P=(?P<enabled>Enabled|Disabled)\b.{0,40}Bandwidth.{0,20}Matrix \(GB/s\)"
)
_RUNNING = re.compile(r"^\s*Running (?P<test>device_to_device_\w{1,60})\b")
_OTHER = re.compile(r"^\s*(?:Running |P2P=|P2P Connectivity|SUM )")
_ROW = re.compile(r"^\s*(?P<row>\d{1,3})((?:\s+(?:\d[\d.]*|N/A))+)\s*$")
_COLUMNS = re.compile(r"^(?:\s*(?:D\\D|GPU|CPU))?((?:\s+\d{1,3}(?!\d))+)\s*$")


def read(text: str) -> Iterator[Statement]:
    """Yield ``peer_gpu``, ``peer_access`` and, of every pair in a matrix, ``peer_bandwidth`` in GB/s.

    direction: Uni or Bi: of both directions together. enabled: whether copies were peer to peer.
    """
    matrix: dict[str, str] = {}
    columns: list[int] = []
    for number, tagged in enumerate(plain_lines(text), start=1):
        line = without_tags(tagged[:4000]).rstrip()
        quote = line.strip()[:LONGEST_QUOTE]
        if match := _GPU.match(line):
            yield Statement("peer_gpu", number, quote, match.groupdict())
        elif match := _ACCESS.match(line):
            yield Statement("peer_access", number, quote, match.groupdict())
        elif match := _HEADING.search(line):
            matrix, columns = match.groupdict(), []
        elif match := _RUNNING.match(line):
            both = "Bi" if "bidirectional" in match["test"] else "Uni"
            matrix, columns = {"direction": both, "enabled": "Enabled"}, []
        elif _OTHER.match(line):
            matrix, columns = {}, []
        elif matrix and not columns and (match := _COLUMNS.match(line)):
            columns = [int(word) for word in match[1].split()]
        elif matrix and (match := _ROW.match(line)) and len(match[2].split()) == len(columns):
            for column, word in zip(columns, match[2].split(), strict=True):
                if column != int(match["row"]) and decimal(word) is not None:
                    pair = {"first": match["row"], "second": str(column), "rate": word}
                    yield Statement("peer_bandwidth", number, quote, {**matrix, **pair})
