"""``<kind>-<Gb/s>x<NICs>``: what joins the nodes of a cluster, in one word."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ccbench.errors import MachineError
from ccbench.topology.graph import LinkKind
from ccbench.units import shown

KINDS: dict[str, LinkKind] = {
    "ib": LinkKind.INFINIBAND,
    "ib-fdr": LinkKind.INFINIBAND,
    "ib-edr": LinkKind.INFINIBAND,
    "ib-hdr": LinkKind.INFINIBAND,
    "ib-ndr": LinkKind.INFINIBAND,
    "ib-xdr": LinkKind.INFINIBAND,
    "roce": LinkKind.ROCE,
    "efa": LinkKind.EFA,
    "tcp": LinkKind.ETHERNET,
    "slingshot": LinkKind.ETHERNET,
}
"""Words before the rate. Slingshot is Ethernet with its own transport, tcp is Ethernet with the kernel's."""

MOST_GIGABITS = 10_000
MOST_NICS = 256

PORT_GIGABITS: dict[str, int] = {"ib-fdr": 56, "ib-edr": 100, "ib-hdr": 200, "ib-ndr": 400, "ib-xdr": 800}
"""What a port of four lanes carries, as the InfiniBand Trade Association's roadmap names the generations."""

_TEXT = re.compile(r"([a-z]+(?:-[a-z]+)?)-([0-9]{1,6}(?:\.[0-9]{1,3})?)x([0-9]{1,4})", re.ASCII)


@dataclass(frozen=True)
class Network:
    """NICs of each node and the fabric they are of.

    word: the kind as written; bytes_per_second: nominal rate of one NIC in one direction.
    """

    word: str
    kind: LinkKind
    bytes_per_second: float
    nics: int

    def __str__(self) -> str:
        return f"{self.word}-{self.bytes_per_second * 8 / 1e9:g}x{self.nics}"

    @property
    def contradiction(self) -> str:
        """What kind and rate say against each other, as ib-ndr-100 does; empty where they agree.

        Ports of two lanes (HDR100, NDR200) have half the rate of their generation, so those agree.
        """
        whole, gigabits = PORT_GIGABITS.get(self.word), self.bytes_per_second * 8 / 1e9
        if whole is None or round(gigabits, 3) in (whole, whole / 2):
            return ""
        fitting = [word for word, rate in PORT_GIGABITS.items() if rate == round(gigabits, 3)]
        cure = f"{fitting[0]}-{gigabits:g} is such a port" if fitting else f"write {self.word}-{whole}"
        return f"{self}: {self.word} ports carry {whole} or {whole / 2:g} Gb/s; {gigabits:g} is taken; {cure}"


def is_other_network(declared: str, said: str) -> bool:
    """Whether ``said`` does not begin with a network of the declared kind and rate of a node.

    Nothing is other where nothing is declared, and everything is that cannot be read where something is: a
    log over sockets would else pass for what InfiniBand gives.
    """
    return bool(declared) and _kind_and_rate(declared) != _kind_and_rate(said)


def _kind_and_rate(text: str) -> tuple[str, float] | None:
    try:
        network = parse_network(text.partition(" ")[0])
    except MachineError:
        return None
    return network.word.partition("-")[0], network.bytes_per_second * network.nics


def parse_network(text: str) -> Network:
    """``ib-ndr-400x8``: eight InfiniBand NDR NICs of 400 Gb/s per node. Raises MachineError."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) and len(text) <= 40 else None
    if match is None and isinstance(text, str) and _TEXT.fullmatch(text.lower()[:40]) and len(text) <= 40:
        raise MachineError(f"network: {shown(text)} is read in lower case only; write {text.lower()}")
    if match is None:
        raise MachineError(
            f"network: {shown(text)} is not <kind>-<Gb/s>x<NICs per node>; write for example ib-ndr-400x8 "
            "('ccbench list networks')"
        )
    word, gigabits, nics = match[1], float(match[2]), int(match[3])
    if word not in KINDS:
        near = difflib.get_close_matches(word, KINDS, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]}" if near else f"one of {', '.join(KINDS)}"
        raise MachineError(f"network: kind {word!r} in {shown(text)} is not known; {cure}")
    if not 0 < gigabits <= MOST_GIGABITS or not 0 < nics <= MOST_NICS:
        raise MachineError(
            f"network: {shown(text)} is out of range; write up to {MOST_GIGABITS} Gb/s and {MOST_NICS} NICs"
        )
    return Network(word, KINDS[word], gigabits * 1e9 / 8, nics)
