"""The words with which people name the network of a run, as NICs of one node.

``<kind>-<Gb/s>x<NICs>`` is the form to write (topology.networks); people also write ``ib-ndr-400 per GPU``,
``efa (25-50 Gb/s class)`` or ``tcp-over-ipoib (sockets)``. What leaves the rate open is refused in words.
"""

from __future__ import annotations

import re

from ccbench.errors import MachineError
from ccbench.model.library import Generation, NetworkPorts
from ccbench.topology.node_nics import MOST_GIGABITS, MOST_NICS, PORT_GIGABITS
from ccbench.topology.words import said_and_denied, share_said
from ccbench.units import shown

_KIND = re.compile(
    r"\b(ib-(?:fdr|edr|hdr|ndr|xdr)|ib|infiniband|roce|efa|tcpxo?|fastrak|tcp|ethernet|slingshot|omnipath|opa)"
    r"(?:v[12])?\b",
    re.IGNORECASE,
)
_SAME = {"infiniband": "ib", "ethernet": "tcp", "opa": "omnipath", "fastrak": "tcpxo"}

_GENERATION = re.compile(r"\b(FDR|EDR|HDR|NDR|XDR)(100|200)?\b", re.IGNORECASE)
_SLINGSHOT = re.compile(r"slingshot[- ]1([01])\b", re.IGNORECASE)
"""Slingshot 10 has ports of 100, Slingshot 11 of 200 Gb/s (HPE Slingshot interconnect, product page)."""

_NUMBER = r"([0-9]{1,5}(?:\.[0-9]{1,3})?)"
_GIGABITS = r"G(?:b(?:/s|ps|its?(?:/s)?|E)?)?\b"
_COUNT_AND_RATE = re.compile(
    rf"(?<![\w.-])([0-9]{{1,3}})\s?x\s?{_NUMBER}\s?{_GIGABITS}", re.IGNORECASE
)
_RATE_AND_COUNT = re.compile(
    rf"(?<![\d.]){_NUMBER}\s?(?:{_GIGABITS})?\s?x\s?([0-9]{{1,4}})\b", re.IGNORECASE
)
_PER_GPU = re.compile(rf"{_NUMBER}\s?(?:{_GIGABITS})?\s+per GPU", re.IGNORECASE)
_CLASS = re.compile(
    rf"(?<![\d.]){_NUMBER}(?:\s?-\s?([0-9]{{1,5}}))?\s?{_GIGABITS}", re.IGNORECASE
)
_BARE = re.compile(rf"-{_NUMBER}(?![\w.])")

_PARTS = re.compile(r"[,;+&]|\b(?:and|plus)\b", re.IGNORECASE)
_STATED = re.compile(rf"{_NUMBER}\s?(?:{_GIGABITS}|x)|x\s?{_NUMBER}", re.IGNORECASE)
"""What stands between two networks, and a rate of one or its number of NICs."""

_NO_NETWORK = re.compile(r"(?:none|no|n/a|-)?(?:\s*\(.*\))?", re.IGNORECASE)
_UNREACHABLE = re.compile(
    r"reachable|loopback|posing|\bSHM\b|wrongly|misconfigured", re.IGNORECASE
)

_USUAL_PORT: dict[Generation, int] = {
    Generation.PASCAL: 100,
    Generation.VOLTA: 100,
    Generation.AMPERE: 200,
    Generation.HOPPER: 400,
    Generation.BLACKWELL: 400,
}
"""Gb/s of the InfiniBand ports that makers put beside boards of a generation (DGX user guides)."""


def ports_of(
    words: str, ranks_per_node: int, generation: Generation
) -> tuple[NetworkPorts | None, str]:
    """NICs of one node and where they are from; None where the words say that there is no network.

    Raises MachineError where they name one whose kind or rate stays open, or that is said not to work.
    """
    text = said_and_denied(words.strip())[0]
    if _UNREACHABLE.search(words):
        raise MachineError(
            f"network: {shown(words)} is said not to be a network that works as it should"
        )
    if _NO_NETWORK.fullmatch(text):
        return None, "none"
    kind = _KIND.search(text.replace("/", " "))
    if kind is None:
        raise MachineError(
            f"network: {shown(words)} names no kind; write for example ib-ndr-400x8"
        )
    # Of several networks the first counts, with its own rate: "ib-ndr-400x8, 2x25G ethernet".
    named = [part for part in _PARTS.split(text) if _KIND.search(part.replace("/", " "))]
    if len(named) > 1 and _STATED.search(named[0]):
        text = named[0]
    word = _SAME.get(kind[1].lower(), kind[1].lower())
    port = _GENERATION.search(text)
    if word == "ib" and port is not None:
        word = f"ib-{port[1].lower()}"
    if re.search(r"\bipoib\b|\bsockets?\b", text, re.IGNORECASE):
        word = "tcp"
    rated = _rate(text, word, ranks_per_node, generation)
    if rated is None:
        raise MachineError(
            f"network: {shown(words)} does not say how fast it is; write for example {word}-100x1"
        )
    gigabits, count, origin = rated
    if not 0 < gigabits <= MOST_GIGABITS or not 0 < count <= MOST_NICS * max(1, ranks_per_node):
        raise MachineError(
            f"network: {shown(words)} is out of range; write for example ib-ndr-400x8"
        )
    share = share_said(
        words, r"(?:nic|hca|port|rail|adapter|link)s?\b|infiniband\b|ib\b|roce\b"
    )[0]
    if share < 1:
        # Whole NICs, and of one that is left its share.
        whole = max(1, int(count * share))
        gigabits, count, origin = (
            gigabits * count * share / whole,
            whole,
            f"{origin}; {share:.0%} of it",
        )
    return NetworkPorts(word, gigabits * 1e9 / 8, count, switches_add(words)), origin


def switches_add(words: str) -> bool:
    """Whether the words say that switches of the network add (SHARP), and not that they do not."""
    said, denied = said_and_denied(words)
    return re.search(r"\bSHARP\b", said) is not None and "SHARP" not in denied.upper()


def _rate(
    text: str, word: str, ranks_per_node: int, generation: Generation
) -> tuple[float, int, str] | None:
    reversed_ = _COUNT_AND_RATE.search(text)
    if reversed_ is not None:
        return float(reversed_[2]), int(reversed_[1]), f"as written: {reversed_[0].strip()}"
    counted = _RATE_AND_COUNT.search(text)
    if counted is not None:
        return float(counted[1]), int(counted[2]), f"as written: {counted[0].strip()}"
    each = _PER_GPU.search(text)
    if each is not None:
        return float(each[1]), ranks_per_node, f"as written: {each[0].strip()}"
    classed = _CLASS.search(text)
    if classed is not None:
        lower = f", the lower of {classed[0]}" if classed[2] else ""
        return float(classed[1]), 1, f"as written{lower}; one NIC assumed"
    generation_of_ports = _of_generation(text, word)
    if generation_of_ports is not None:
        return generation_of_ports, 1, f"a port of {word}; one NIC assumed"
    bare = _BARE.search(text)
    if bare is not None:
        return float(bare[1]), 1, "as written; one NIC assumed"
    if re.search(r"ipoib", text, re.IGNORECASE) and generation in _USUAL_PORT:
        gigabits = _USUAL_PORT[generation]
        return (
            float(gigabits),
            1,
            f"assumed: an InfiniBand port of {gigabits} Gb/s beside {generation.value}",
        )
    return None


def _of_generation(text: str, word: str) -> float | None:
    """Gb/s of a port whose generation is named and whose rate is not (HDR100 and NDR200 are halves)."""
    slingshot, port = _SLINGSHOT.search(text), _GENERATION.search(text)
    if slingshot is not None:
        return 100.0 if slingshot[1] == "0" else 200.0
    if _BARE.search(text) is not None or word not in PORT_GIGABITS:
        return None
    return float(port[2]) if port is not None and port[2] else float(PORT_GIGABITS[word])
