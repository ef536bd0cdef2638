"""Bandwidth of GPUs with each other and with hosts: p2pBandwidthLatencyTest, nvbandwidth, TransferBench p2p.

nvbandwidth is read as text and as JSON (-j). Sources: cuda-samples; json_output.cpp and README.md of
github.com/NVIDIA/nvbandwidth; src/client/Presets/PeerToPeer.hpp of github.com/ROCm/TransferBench.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from ccbench.readers.lines import decimal, plain_lines, without_tags
from ccbench.readers.statements import LONGEST_QUOTE, Statement
from ccbench.readers.traces.words import listed, members

FORM = "bandwidth of pairs"

OWNED = re.compile(
    r"^\s*(?:\[P2P|Device: ?\d+,|Device=\d+ CAN|\*\*\*NOTE|P2P Connectivity|(?:Uni|Bi)directional P2P|P2P=|D\\D"
    r"|[GC]PU\s+0\s|nvbandwidth|Running \w+|memcpy |SUM |COEFFICIENT|NOTE:|CUDA (?:Runtime|Driver) Version|Driver V"
    r"|Built from Git|\d{1,3}(?:\s+(?:\d[\d.]*|N/A))+\s*$|0\s+1\s"
    r"|(?:Uni|Bi)directional copy|SRC(?:\+EXE)?\\DST|[CG]PU \d{1,3}\s+<?->?\s"
    r"|Averages \(|TransferBench v|Bytes Per D|CPU->CPU|[\[\]{}],?$|\"[\w. -]{1,60}\"(?:,?$| ?:))"
)

_GPU = re.compile(r"^\s*Device: ?(?P<gpu>\d{1,3}), (?P<model>[^,]{1,60}),")
_ACCESS = re.compile(
    r"^\s*Device=(?P<first>\d{1,3}) (?P<can>CAN|CANNOT) Access Peer Device=(?P<second>\d{1,3})"
)
_HEADING = re.compile(
    r"(?P<direction>Uni|Bi)directional (?:P2P=(?P<enabled>Enabled|Disabled)\b.{0,40}Bandwidth.{0,20}Matrix \(GB/s\)"
    r"|copy peak bandwidth GB/s)"
)
_RUNNING = re.compile(
    r"^\s*Running (?P<test>(?:device|host)_to_(?:device|host)_(?:bidirectional_)?memcpy_\w{1,40})\b"
)
_ENCODED = re.compile(r'\{\s*"nvbandwidth"\s*:')
_OTHER = re.compile(r"^\s*(?:Running |P2P=|P2P Connectivity|SUM )")
_ROW = re.compile(
    r"^\s*(?P<row>(?:[CG]PU )?\d{1,3})(?:\s+(?P<arrow><->|->|<-))?(?P<cells>(?:\s+(?:\d[\d.]*|N/A))+)\s*$"
)
_COLUMNS = re.compile(
    r"^(?:\s*(?:D\\D|GPU|CPU|SRC(?:\+EXE)?\\DST(?:\+EXE)?))?((?:\s+(?:[CG]PU )?\d{1,3}(?!\d))+)\s*$"
)
_LABEL = re.compile(r"(?P<host>CPU )?(?:GPU )?0*(?P<number>\d+)")
_ARROWS = {"Uni": "->", "Bi": "<->"}
"""Of TransferBench's rows the one that is the whole of its table: of both directions the sum."""


def read(text: str) -> Iterator[Statement]:
    """Yield ``peer_gpu``, ``peer_access`` and, of pairs in a matrix, ``peer_bandwidth`` in GB/s.

    direction: Uni or Bi: of both directions together. enabled: whether copies were peer to peer. Of copies
    between a GPU and a host there are ``host_bandwidth``: test, gpu, host, rate.
    """
    yield from _encoded(text)
    matrix: dict[str, str] = {}
    columns: list[str] = []
    for number, tagged in enumerate(plain_lines(text), start=1):
        line = without_tags(tagged[:4000]).rstrip()
        quote = line.strip()[:LONGEST_QUOTE]
        if match := _GPU.match(line):
            yield Statement("peer_gpu", number, quote, match.groupdict())
        elif match := _ACCESS.match(line):
            yield Statement("peer_access", number, quote, match.groupdict())
        elif match := _HEADING.search(line):
            matrix, columns = match.groupdict("Enabled"), []
        elif match := _RUNNING.match(line):
            matrix, columns = _of_test(match["test"]), []
        elif _OTHER.match(line):
            matrix, columns = {}, []
        elif matrix and not columns and (match := _COLUMNS.match(line)):
            columns = _labels(match[1])
        elif matrix and (match := _ROW.match(line)):
            words = match["cells"].split()
            whole = match["arrow"] in (None, _ARROWS[matrix["direction"]])
            if whole and len(words) == len(columns):
                cells = dict(zip(columns, words, strict=True))
                for kind, values in _cells(matrix, _labels(match["row"])[0], cells):
                    yield Statement(kind, number, quote, values)


def _labels(text: str) -> list[str]:
    return [f"{host}{number}" for host, number in _LABEL.findall(text)]


def _of_test(name: str) -> dict[str, str]:
    """Direction and ends that the name of a test of nvbandwidth gives its matrix."""
    direction = "Bi" if "bidirectional" in name else "Uni"
    return {"test": name, "direction": direction, "enabled": "Enabled"}


def _cells(
    matrix: Mapping[str, str], row: str, cells: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """(kind, values) of each rate in a row, of which hosts begin with CPU or have a test that names them."""
    test = matrix.get("test", "")
    row = f"CPU {row}" if "host" in test else row
    for column, word in cells.items():
        hosts = [end for end in (row, column) if end.startswith("CPU")]
        if decimal(word) is None or column == row or len(hosts) == 2:
            continue
        if hosts:
            from_host = "host to GPU" if hosts[0] == row else "GPU to host"
            named = test or f"{matrix['direction'].lower()}directional copies from {from_host}"
            gpu = column if hosts[0] == row else row
            yield "host_bandwidth", {"test": named, "gpu": gpu, "host": hosts[0], "rate": word}
        else:
            pair = {"first": row, "second": column, "rate": word}
            yield "peer_bandwidth", {**matrix, **pair}


def _encoded(text: str) -> Iterator[Statement]:
    """The matrices of nvbandwidth's JSON; nothing where it is damaged."""
    begin = _ENCODED.search(text)
    try:
        document, _ = json.JSONDecoder().raw_decode(text, begin.start()) if begin else ({}, 0)
    except (ValueError, RecursionError):
        return
    for test in map(
        members, listed(members(members(document).get("nvbandwidth")).get("testcases"))
    ):
        name = str(test.get("name"))
        if not _RUNNING.match(f"Running {name}"):
            continue
        place = text.find(f'"{name}"')
        for row, words in enumerate(listed(test.get("bandwidth_matrix"))):
            named = {str(column): str(word) for column, word in enumerate(listed(words))}
            quote = f"{name}: {' '.join(named.values())}"[:LONGEST_QUOTE]
            for kind, values in _cells(_of_test(name), str(row), named):
                yield Statement(kind, text.count("\n", 0, place) + 1, quote, values)
