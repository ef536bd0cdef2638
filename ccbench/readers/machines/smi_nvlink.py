"""Reads ``nvidia-smi nvlink``: status (``-s``) and remote devices (``-R``, ``-p``).

The output says which links of a GPU are up and how fast each is, in one direction; only ``-R`` and ``-p``
say where they lead, by PCI address, and none says the GPUs' own addresses. The class rests on far ends where
there are any (a link number above 17 is a port of an NVSwitch, because no GPU up to Blackwell has more than
18 links), else on the model's name and the GPUs' numbers, with a warning wherever that is not certain.

Facts: nvlinks_per_gpu and faults (by GPU: the numbers of links that are down, or "all").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.readers.lines import plain_lines, searches
from ccbench.topology.classes import (
    MOST_LINKS,
    ClassVerdict,
    class_of_model,
    is_card,
    is_module,
)
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)
from ccbench.units import shown

SOURCE = "nvidia-smi nvlink"
_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]"
_SEEN = re.compile(
    r"^[ \t>|#]*Link [0-9]{1,2}(?:: (?:[0-9.]{1,10} GB/s|<inactive>|Remote Device |"
    + _ADDRESS
    + r")"
    r"|, (?:P2P|Access to system|System memory|SLI|Link) )"
    r"|Unable to retrieve NVLink information as all links are in",
    re.ASCII | re.MULTILINE | re.IGNORECASE,
)
_GPU = re.compile(r"[\s>|#]*GPU ([0-9]{1,3}): ?([^()]{0,100}?)\s*(?:\(.*)?", re.ASCII)
_LINK = re.compile(r"[\s>|#]*Link ([0-9]{1,2})\s*[:,]\s*(.*?)\s*", re.ASCII)
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,6})?) ?GB/s", re.ASCII)
_REMOTE = re.compile(
    r"(?:Remote Device )?(" + _ADDRESS + r")(?:: Link ([0-9]{1,3}))?", re.ASCII
)
_CAPABILITY = re.compile(r"[A-Za-z0-9 ]{3,60}: ?(?:true|false)", re.IGNORECASE)
_INACTIVE = "all links are inactive"
_HIDDEN = "FFFFFF"
"""Beginning of the address that stands for NVSwitches which a container or VM does not show (as in NCCL's
src/graph/xml.cc)."""


@dataclass
class _Link:
    """One link of one GPU; rate in GB/s and one direction."""

    index: int
    rate: float | None = None
    is_inactive: bool = False
    remote: str = ""
    remote_link: int | None = None


@dataclass
class _Listing:
    """One GPU's part of the text; index None where the text does not say which GPU."""

    index: int | None
    model: str
    line: int | None = None
    links: dict[int, _Link] = field(default_factory=dict)
    all_inactive: bool = False
    is_cut: bool = False

    @property
    def name(self) -> str:
        """Return the name that topo -m gives it."""
        return "GPU" if self.index is None else f"GPU{self.index}"

    @property
    def has_state(self) -> bool:
        """True if the text says which links are up."""
        return self.all_inactive or any(
            link.is_inactive or link.rate is not None for link in self.links.values()
        )

    @property
    def active(self) -> int:
        """Links that have a rate."""
        return sum(link.rate is not None for link in self.links.values())

    @property
    def remotes(self) -> set[str]:
        """PCI addresses of the far ends."""
        return {link.remote for link in self.links.values() if link.remote}


recognises = searches(_SEEN)


def read(text: str) -> Topology:
    """Return the GPUs and NVLinks of an output; MachineError when it holds no GPU's link."""
    warnings: list[SourceWarning] = []
    listings = [
        _joined(sections, warnings)
        for sections in _sections(plain_lines(text), warnings).values()
    ]
    if not any(listing.links or listing.all_inactive for listing in listings):
        raise MachineError(
            f"{SOURCE}: no link of a GPU in {shown(text.strip())}; expected lines such as "
            "'Link 0: 26.562 GB/s'; give it the whole output of 'nvidia-smi nvlink -s'"
        )
    # The text does not print the GPUs' own addresses. Among directly linked GPUs each address is missing from
    # exactly one list, its own; where that works out for all of them, the far ends are the listed GPUs.
    addresses = sorted({remote for listing in listings for remote in listing.remotes})
    lacking = [
        [remote for remote in addresses if remote not in listing.remotes]
        for listing in listings
    ]
    peers = {
        remotes[0]: position for position, remotes in enumerate(lacking) if len(remotes) == 1
    }
    if not len(peers) == len(addresses) == len(listings) > 1:
        peers = {}
    verdict = _class_of(listings, len(peers))
    # GPUs of one model have as many links each: a shorter listing was cut, or the driver hides links.
    most = max(len(listing.links) for listing in listings)
    for listing in listings:
        if listing.all_inactive:
            reason = f"how many links {listing.name} has: all are inactive"
            warnings.append(SourceWarning("not_visible", reason, listing.line))
        elif len(listing.links) < most:
            listing.is_cut = listing is listings[-1]
            kind = "truncated" if listing.is_cut else "contradiction"
            reason = f"{listing.name} lists {len(listing.links)} links, others {most}"
            warnings.append(SourceWarning(kind, reason, listing.line))
    if not verdict.certain or verdict.topology_class is TopologyClass.UNKNOWN:
        warnings.append(
            SourceWarning("not_visible", f"the GPUs' links: {verdict.reason}", listings[0].line)
        )
    devices, links = _graph(listings, verdict.topology_class, peers, warnings)
    return Topology(
        name="",
        devices=devices,
        links=links,
        topology_class=verdict.topology_class,
        source=SOURCE,
        warnings=tuple(warnings),
        facts=_facts(listings, verdict),
    )


def _sections(
    lines: list[str], warnings: list[SourceWarning]
) -> dict[int | None, list[_Listing]]:
    """GPU -> its listings, one for each command in the text; None: links before any GPU line."""
    sections: dict[int | None, list[_Listing]] = {}
    current: _Listing | None = None
    for number, line in enumerate(lines, 1):
        if len(line) > 1000:
            continue
        gpu = _GPU.fullmatch(line)
        if gpu:
            current = _Listing(int(gpu[1]), gpu[2], number)
            sections.setdefault(current.index, []).append(current)
            continue
        match = _LINK.fullmatch(line)
        inactive = _INACTIVE in line.lower()
        if not match and not inactive:
            continue
        if current is None:
            current = _Listing(None, "")
            sections[None] = [current]
            warnings.append(
                SourceWarning("not_visible", "the first links follow no GPU line", number)
            )
        if inactive or not match:
            current.all_inactive = True
            continue
        # One line about one link: a rate, a state, a remote device or a capability.
        link, detail = current.links.get(int(match[1]), _Link(int(match[1]))), match[2]
        if rate := _RATE.fullmatch(detail):
            link.rate = float(rate[1])
        elif detail.lower() == "<inactive>":
            link.is_inactive = True
        elif remote := _REMOTE.fullmatch(detail):
            link.remote, link.remote_link = (
                remote[1].upper(),
                int(remote[2]) if remote[2] else None,
            )
        elif not _CAPABILITY.fullmatch(detail):
            cut = any(word.startswith(detail) for word in ("<inactive>", "Remote Device "))
            text = f"{current.name} link {link.index}: {detail[:60]!r} is not read"
            warnings.append(SourceWarning("truncated" if cut else "damaged_line", text, number))
            continue
        current.links[link.index] = link
    return sections


def _joined(sections: list[_Listing], warnings: list[SourceWarning]) -> _Listing:
    """One listing of a GPU, put together from the outputs of several commands.

    ``-R`` may number the active links only, one after the other, while ``-s`` counts the inactive ones too: a
    pair of H100 PCIe cards prints links 0-3, 6-9 and 12-15 of 18 in the one and 0-11 in the other.
    """
    main = next((section for section in sections if section.has_state), sections[0])
    further = [section for section in sections if section is not main]
    twice = [section for section in further if section.has_state]
    if any(section.links != main.links for section in twice):
        text = f"{main.name} is listed twice, differently: the first counts"
        warnings.append(SourceWarning("contradiction", text, twice[0].line))
    for section in further:
        if section.has_state:
            continue
        active = sorted(index for index, link in main.links.items() if not link.is_inactive)
        ends = [link for _, link in sorted(section.links.items()) if link.remote]
        if ends and main.has_state and len(ends) != len(active):
            text = f"{main.name} has {len(active)} active links and {len(ends)} far ends: these are not used"
            warnings.append(SourceWarning("contradiction", text, section.line))
        elif ends:
            indexes = active if main.has_state else [end.index for end in ends]
            for index, end in zip(indexes, ends, strict=True):
                link = main.links.setdefault(index, _Link(index))
                link.remote, link.remote_link = end.remote, end.remote_link
    return main


def _class_of(listings: list[_Listing], listed_peers: int) -> ClassVerdict:
    """The class as far as far ends, models and GPU numbers tell it."""
    ports = [link.remote_link for listing in listings for link in listing.links.values()]
    if any(port is not None and port >= MOST_LINKS for port in ports):
        return ClassVerdict(TopologyClass.NVSWITCH, "links lead to ports that no GPU has")
    if any(remote.startswith(_HIDDEN) for listing in listings for remote in listing.remotes):
        return ClassVerdict(
            TopologyClass.NVSWITCH, "the far ends are NVSwitches that this system does not show"
        )
    if listed_peers > 2:
        return ClassVerdict(
            TopologyClass.NVLINK_MESH, "the far ends are the listed GPUs themselves"
        )
    model = listings[0].model
    if not model or any(listing.model != model for listing in listings):
        return ClassVerdict(TopologyClass.UNKNOWN, "the text does not say one model")
    if is_module(model):
        return class_of_model(model, max(listing.index or 0 for listing in listings))
    if not is_card(model):
        return ClassVerdict(
            TopologyClass.UNKNOWN, f"{model} is not known as a card or a module"
        )
    if any(listing.active or listing.remotes for listing in listings):
        return ClassVerdict(
            TopologyClass.NVLINK_BRIDGE, f"{model} is a card, its links are bridges"
        )
    if len(listings) > 1 and all(listing.all_inactive for listing in listings):
        return ClassVerdict(TopologyClass.PCIE, f"{model} is a card and no link is active")
    return ClassVerdict(
        TopologyClass.UNKNOWN, f"one {model} without active links may have sisters"
    )


def _facts(listings: list[_Listing], verdict: ClassVerdict) -> dict[str, Any]:
    stated = any(listing.has_state for listing in listings)
    faults: list[dict[str, Any]] = []
    for listing in listings:
        down = [index for index, link in sorted(listing.links.items()) if link.is_inactive]
        if is_module(listing.model) and (down or listing.all_inactive):
            # The driver may say no more than that all are.
            faults.append(
                {"gpu": listing.name, "down": ["all"] if listing.all_inactive else down}
            )
    return {
        **({"gpu_count": None} if listings[0].index is None else {}),
        # A list that the text ends in may have more links.
        "nvlinks_per_gpu": [None if listing.is_cut else listing.active for listing in listings]
        if stated
        else None,
        "nic_count": None,
        "cpu_count": None,
        "nvswitch_count": 0 if verdict.nvswitch is False else None,
        "faults": faults,
    }


def _graph(
    listings: list[_Listing],
    topology_class: TopologyClass,
    peers: dict[str, int],
    warnings: list[SourceWarning],
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """Devices and links; peers: PCI address -> position of the listed GPU that has it."""
    gpus = []
    switches: dict[str, Device] = {}
    links: list[Link] = []
    unseen: dict[str, int | None] = {}
    for index, listing in enumerate(listings):
        stated = {"name": listing.name, "model": listing.model}
        attributes = {key: value for key, value in stated.items() if value}
        gpus.append(Device(f"gpu{index}", DeviceKind.GPU, attributes=attributes))
        # Links by far end, which is empty where the text does not say it.
        bundles: dict[str, list[_Link]] = {}
        for _, link in sorted(listing.links.items()):
            if link.is_inactive or link.rate is not None or link.remote:
                bundles.setdefault(link.remote, []).append(link)
        for remote, bundle in bundles.items():
            if remote in peers:
                target = f"gpu{peers[remote]}"
            elif topology_class is TopologyClass.NVSWITCH:
                name = f"nvswitch{len(switches)}"
                switch = Device(name, DeviceKind.NVSWITCH, bus_id=remote.lower())
                target = switches.setdefault(remote, switch).name
            elif topology_class is TopologyClass.NVLINK_BRIDGE and len(listings) == 2:
                target = f"gpu{1 - index}"
            else:
                unseen.setdefault(listing.name, listing.line)
                continue
            links += _links(f"gpu{index}", target, bundle, listing)
    if unseen:
        text = f"where the links of {', '.join(unseen)} lead: 'topo -m' or 'nvlink -R' says it"
        warnings.append(SourceWarning("not_visible", text, next(iter(unseen.values()))))
    return (*gpus, *switches.values()), tuple(links)


def _links(source: str, target: str, bundle: list[_Link], listing: _Listing) -> Iterator[Link]:
    """One bundle by state, and the other direction too, unless the other GPU's listing brings it."""
    ways = ((source, target), (target, source))[: 1 if target.startswith("gpu") else 2]
    # A card's inactive link has no bridge on it: it is not there rather than down.
    for state in (
        (LinkState.UP, LinkState.DOWN) if is_module(listing.model) else (LinkState.UP,)
    ):
        chosen = [link for link in bundle if link.is_inactive == (state is LinkState.DOWN)]
        rates = [link.rate for link in chosen if link.rate is not None]
        total = sum(rates) * 1e9 if len(rates) == len(chosen) else None
        origin = f"{SOURCE} -s: rate per link and direction" if total else SOURCE
        attributes = {"list_cut": True} if listing.is_cut else {}
        for start, end in ways if chosen else ():
            yield Link(
                start, end, LinkKind.NVLINK, total, None, len(chosen), state, origin, attributes
            )
