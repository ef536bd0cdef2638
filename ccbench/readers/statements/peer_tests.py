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
    r"(?P<direction>Uni|Bi)directional P2P=(?P<enabled>Enabled|Disabled)\b.{0,40}Bandwidth.{0,20}Matrix \(GB/s\)"
)
_RUNNING = re.compile(
    r"^\s*Running (?P<test>(?:device|host)_to_(?:device|host)_(?:bidirectional_)?memcpy_\w{1,40})\b"
)
_COPY = re.compile(r"^\s*(?P<direction>Uni|Bi)directional copy peak bandwidth GB/s")
_COPY_COLUMNS = re.compile(r"^\s*SRC(?:\+EXE)?\\DST(?:\+EXE)?((?:\s+[CG]PU \d{1,3})+)\s*$")
_COPY_ROW = re.compile(
    r"^\s*(?P<row>[CG]PU \d{1,3})\s+(?P<arrow><->|->|<-)((?:\s+(?:\d[\d.]*|N/A))+)\s*$"
)
_COPY_CELL = re.compile(r"[CG]PU \d{1,3}")
_ARROWS = {"Uni": "->", "Bi": "<->"}
_ENCODED = re.compile(r'\{\s*"nvbandwidth"\s*:')
_OTHER = re.compile(r"^\s*(?:Running |P2P=|P2P Connectivity|SUM )")
_ROW = re.compile(r"^\s*(?P<row>\d{1,3})((?:\s+(?:\d[\d.]*|N/A))+)\s*$")
_COLUMNS = re.compile(r"^(?:\s*(?:D\\D|GPU|CPU))?((?:\s+\d{1,3}(?!\d))+)\s*$")


def read(text: str) -> Iterator[Statement]:
    """Yield ``peer_gpu``, ``peer_access`` and, of pairs in a matrix, ``peer_bandwidth`` in GB/s.

    direction: Uni or Bi: of both directions together. enabled: whether copies were peer to peer. Of copies
    between a GPU and a host there are ``host_bandwidth``: test, gpu, host, rate.
    """
    yield from _encoded(text)
    yield from _copies(text)
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
            matrix, columns = {"test": match["test"]}, []
        elif _OTHER.match(line):
            matrix, columns = {}, []
        elif matrix and not columns and (match := _COLUMNS.match(line)):
            columns = [int(word) for word in match[1].split()]
        elif matrix and (match := _ROW.match(line)) and len(match[2].split()) == len(columns):
            cells = dict(zip(map(str, columns), match[2].split(), strict=True))
            for kind, values in _cells(matrix, match["row"], cells):
                yield Statement(kind, number, quote, values)


def _cells(
    matrix: Mapping[str, str], row: str, cells: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """(kind, values) of each rate in a row. matrix: its heading, or the name of nvbandwidth's test."""
    test = matrix.get("test", "")
    heading = dict(matrix)
    if test:
        both = "Bi" if "bidirectional" in test else "Uni"
        heading = {"direction": both, "enabled": "Enabled"}
    for column, word in cells.items():
        if decimal(word) is None:
            continue
        if "host" in test:
            yield "host_bandwidth", {"test": test, "gpu": column, "host": row, "rate": word}
        elif column != row:
            yield "peer_bandwidth", {**heading, "first": row, "second": column, "rate": word}


def _encoded(text: str) -> Iterator[Statement]:
    """The matrices of nvbandwidth's JSON; nothing where it is damaged."""
    begin = _ENCODED.search(text)
    if not begin:
        return
    try:
        document, _ = json.JSONDecoder().raw_decode(text, begin.start())
        tests = [
            (test["name"], test["bandwidth_matrix"])
            for test in document["nvbandwidth"]["testcases"]
            if "bandwidth_matrix" in test and _RUNNING.match(f"Running {test['name']}")
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    for name, rows in tests:
        place = text.find(f'"{name}"')
        for row, words in enumerate(rows):
            named = {str(column): str(word) for column, word in enumerate(words)}
            quote = f"{name}: {' '.join(named.values())}"[:LONGEST_QUOTE]
            for kind, values in _cells({"test": name}, str(row), named):
                yield Statement(kind, text.count("\n", 0, place) + 1, quote, values)


def _copies(text: str) -> Iterator[Statement]:
    """Yield the rates of TransferBench's p2p tables; of both directions at once their sum alone."""
    direction, columns = "", list[str]()
    for number, tagged in enumerate(plain_lines(text), start=1):
        line = without_tags(tagged[:4000]).rstrip()
        if match := _COPY.match(line):
            direction, columns = match["direction"], []
        elif direction and (match := _COPY_COLUMNS.match(line)):
            columns = _COPY_CELL.findall(match[1])
        elif (
            (match := _COPY_ROW.match(line))
            and match["arrow"] == _ARROWS.get(direction)
            and len(words := match[3].split()) == len(columns)
        ):
            quote = line.strip()[:LONGEST_QUOTE]
            for kind, values in _copy(
                direction, match["row"], dict(zip(columns, words, strict=True))
            ):
                yield Statement(kind, number, quote, values)


def _copy(
    direction: str, row: str, cells: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    source, number = row.split()
    gpus = {name[4:].lstrip("0") or "0": word for name, word in cells.items() if name[0] == "G"}
    hosts = {name: word for name, word in cells.items() if name[0] == "C"}
    matrix = {"direction": direction, "enabled": "Enabled"}
    if source == "GPU":
        yield from _cells(matrix, number.lstrip("0") or "0", gpus)
    if direction != "Uni":
        return
    pairs = [(gpu, row, word) for gpu, word in gpus.items() if source == "CPU"]
    pairs += [
        (number.lstrip("0") or "0", host, word)
        for host, word in hosts.items()
        if source == "GPU"
    ]
    for gpu, host, word in pairs:
        if decimal(word) is not None:
            test = "copies from host to GPU" if source == "CPU" else "copies from GPU to host"
            yield "host_bandwidth", {"test": test, "gpu": gpu, "host": host, "rate": word}
