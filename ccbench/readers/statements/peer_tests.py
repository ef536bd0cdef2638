"""Bandwidth of GPUs with each other and with hosts: p2pBandwidthLatencyTest, nvbandwidth.

Sources: cuda-samples; README.md of github.com/NVIDIA/nvbandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ccbench.readers.lines import decimal, plain_lines, without_tags
from ccbench.readers.statements import Statement

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
_RUNNING = re.compile(
    r"^\s*Running (?P<test>(?:device|host)_to_(?:device|host)_(?:bidirectional_)?memcpy_\w{1,40})\b"
)
_OTHER = re.compile(r"^\s*(?:Running |P2P=|P2P Connectivity|SUM )")
_ROW = re.compile(r"^\s*(?P<row>\d{1,3})(?P<cells>(?:\s+(?:\d[\d.]*|N/A))+)\s*$")
_COLUMNS = re.compile(r"^(?:\s*(?:D\\D|GPU|CPU))?((?:\s+\d{1,3}(?!\d))+)\s*$")


def read(text: str) -> Iterator[Statement]:
    """Yield ``peer_gpu``, ``peer_access`` and, of pairs in a matrix, ``peer_bandwidth`` in GB/s.

    direction: Uni or Bi: of both directions together. enabled: whether copies were peer to peer. Of copies
    between a GPU and a host there are ``host_bandwidth``: test, gpu, rate.
    """
    matrix: dict[str, str] = {}
    columns: list[str] = []
    for number, tagged in enumerate(plain_lines(text), start=1):
        line = without_tags(tagged[:4000]).rstrip()
        if match := _GPU.match(line):
            yield Statement("peer_gpu", number, line, match.groupdict())
        elif match := _ACCESS.match(line):
            yield Statement("peer_access", number, line, match.groupdict())
        elif match := _HEADING.search(line):
            matrix, columns = match.groupdict(), []
        elif match := _RUNNING.match(line):
            matrix, columns = _of_test(match["test"]), []
        elif _OTHER.match(line):
            matrix, columns = {}, []
        elif matrix and not columns and (match := _COLUMNS.match(line)):
            columns = match[1].split()
        elif matrix and (match := _ROW.match(line)):
            words = match["cells"].split()
            if len(words) == len(columns):
                cells = dict(zip(columns, words, strict=True))
                for kind, values in _cells(matrix, match["row"], cells):
                    yield Statement(kind, number, line, values)


def _of_test(name: str) -> dict[str, str]:
    """Direction and ends that the name of a test of nvbandwidth gives its matrix."""
    direction = "Bi" if "bidirectional" in name else "Uni"
    return {"test": name, "direction": direction, "enabled": "Enabled"}


def _cells(
    matrix: Mapping[str, str], row: str, cells: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """(kind, values) of each rate in a row, which is a host where the test names one."""
    test = matrix.get("test", "")
    for column, word in cells.items():
        if decimal(word) is None:
            continue
        if "host" in test:
            yield "host_bandwidth", {"test": test, "gpu": column, "rate": word}
        elif column != row:
            yield "peer_bandwidth", {**matrix, "first": row, "second": column, "rate": word}
