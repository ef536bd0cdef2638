"""The words with which people name the network of a run, as NICs of one node.

``<kind>-<Gb/s>x<NICs>`` is the form to write (topology.networks); people also write ``ib-ndr-400 per GPU``,
``efa (25-50 Gb/s class)`` or ``tcp-over-ipoib (sockets)``. What leaves the rate open is refused in words.
"""

from __future__ import annotations

import re

from ccbench.errors import MachineError
from ccbench.model.library.system import Generation, NetworkPorts
from ccbench.topology.networks import MOST_GIGABITS, MOST_NICS, PORT_GIGABITS
from ccbench.units import shown

_KIND = re.compile(
    r"\b(ib-(?:fdr|edr|hdr|ndr|xdr)|ib|infiniband|roce|efa|tcpxo?|tcp|ethernet|slingshot|omnipath|opa)\b",
    re.IGNORECASE,
)
_SAME: dict[str, str] = {"infiniband": "ib", "ethernet": "tcp", "opa": "omnipath"}

_RATE_AND_COUNT = re.compile(
    r"(?<![\d.])([0-9]{1,5}(?:\.[0-9]{1,3})?)\s?(?:G(?:b/s|bps|bE)?)?\s?x\s?([0-9]{1,4})\b"
)
_PER_GPU = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)\s?(?:Gb(?:/s|ps))?\s+per GPU", re.IGNORECASE)
_CLASS = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)(?:\s?-\s?([0-9]{1,5}))?\s?Gb(?:/s|ps|it)", re.IGNORECASE)
_BARE = re.compile(r"-([0-9]{1,5}(?:\.[0-9]{1,3})?)(?![\w.])")

_NO_NETWORK = re.compile(r"(?:none|no|n/a|-)?(?:\s*\(.*\))?", re.IGNORECASE)
_UNREACHABLE = re.compile(r"reachable|loopback|posing|\bSHM\b|wrongly|misconfigured", re.IGNORECASE)

_USUAL_PORT: dict[Generation, int] = {
    Generation.PASCAL: 100,
    Generation.VOLTA: 100,
    Generation.AMPERE: 200,
    Generation.HOPPER: 400,
    Generation.BLACKWELL: 400,
}
"""Gb/s of the InfiniBand ports that makers put beside boards of a generation (DGX user guides)."""


def ports_of(words: str, ranks_per_node: int, generation: Generation) -> tuple[NetworkPorts | None, str]:
    """NICs of one node and where they are from; None where the words say that there is no network.

    Raises MachineError where they name one whose kind or rate stays open, or that is said not to work.
    """
    text = words.strip()
    if _UNREACHABLE.search(text):
        raise MachineError(f"network: {shown(words)} is said not to be a network that works as it should")
    if _NO_NETWORK.fullmatch(text):
        return None, "none"
    kind = _KIND.search(text.replace("/", " "))
    if kind is None:
        raise MachineError(f"network: {shown(words)} names no kind; write for example ib-ndr-400x8")
    word = _SAME.get(kind[1].lower(), kind[1].lower())
    if re.search(r"\bipoib\b|\bsockets?\b", text, re.IGNORECASE):
        word = "tcp"
    gigabits, count, origin = _rate(text, word, ranks_per_node, generation)
    if not 0 < gigabits <= MOST_GIGABITS or not 0 < count <= MOST_NICS * max(1, ranks_per_node):
        raise MachineError(f"network: {shown(words)} is out of range; write for example ib-ndr-400x8")
    reduces = re.search(r"\bSHARP\b", text) is not None and not re.search(r"(?:no|without|off) SHARP", text)
    return NetworkPorts(word, gigabits * 1e9 / 8, count, reduces), origin


def _rate(text: str, word: str, ranks_per_node: int, generation: Generation) -> tuple[float, int, str]:
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
    bare = _BARE.search(text)
    if bare is not None:
        return float(bare[1]), 1, "as written; one NIC assumed"
    if word in PORT_GIGABITS:
        return float(PORT_GIGABITS[word]), 1, f"a port of {word}; one NIC assumed"
    if re.search(r"ipoib", text, re.IGNORECASE) and generation in _USUAL_PORT:
        gigabits = _USUAL_PORT[generation]
        return (
            float(gigabits),
            1,
            f"assumed: an InfiniBand port of {gigabits} Gb/s beside {generation.value}",
        )
    raise MachineError(f"network: {shown(text)} does not say how fast it is; write for example {word}-100x1")
