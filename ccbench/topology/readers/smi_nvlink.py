"""Reads ``nvidia-smi nvlink``: status (``-s``), capabilities (``-c``), remote devices (``-R``, ``-p``).

The output says which links of a GPU are up and how fast each is, in one direction; only ``-R`` and ``-p``
say where they lead, by PCI address, and none says the GPUs' own addresses. The class therefore rests on the
model's name and on the GPUs' numbers (see ccbench.topology.nvlink_class), with a notice wherever that is not
certain.

Facts: gpu_count and gpu_entries (GPUs in the text), links (by GPU: total, active, GBps_per_link = the
distinct rates; cut where the text ends in the list; total is 0 where the driver only says that all are
inactive, which hides how many there are), faults (by GPU: the numbers of links that are down, or "all"),
nvlinks_per_gpu, links_per_gpu, remote_devices (by GPU: PCI address -> links), the capabilities (p2p, sysmem,
p2p_atomics, sysmem_atomics, sli, link_supported; None where the links differ), gpu_models,
topology_class_reason and topology_class_candidates.
"""

from __future__ import annotations

import re
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.classes import is_module
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    LinkState,
    Notice,
    Topology,
    TopologyClass,
)
from ccbench.topology.nvlink_class import (
    Listing,
    PhysicalLink,
    Verdict,
    class_of_listings,
    is_hidden,
    remote_gpus,
)
from ccbench.topology.text import plain_lines
from ccbench.units import shown

SOURCE = "nvidia-smi nvlink"
_CAPABILITIES = {
    "P2P is supported": "p2p",
    "Access to system memory supported": "sysmem",
    "P2P atomics supported": "p2p_atomics",
    "System memory atomics supported": "sysmem_atomics",
    "SLI is supported": "sli",
    "Link is supported": "link_supported",
}
_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]"
_SEEN = re.compile(
    r"^[ \t>|#]*Link [0-9]{1,2}(?:: (?:[0-9.]{1,10} GB/s|<inactive>|Remote Device |" + _ADDRESS + r")"
    r"|, (?:P2P|Access to system|System memory|SLI|Link) )"
    r"|Unable to retrieve NVLink information as all links are in",
    re.ASCII | re.MULTILINE | re.IGNORECASE,
)
_GPU = re.compile(
    r"[\s>|#]*GPU ([0-9]{1,3}): ?([^()]{0,100}?)\s*(?:\((?:UUID: ?([\w-]{0,64}))?.*)?", re.ASCII
)
_LINK = re.compile(r"[\s>|#]*Link ([0-9]{1,2})\s*[:,]\s*(.*?)\s*", re.ASCII)
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,6})?) ?GB/s", re.ASCII)
_REMOTE = re.compile(r"(?:Remote Device )?(" + _ADDRESS + r")(?:: Link ([0-9]{1,3}))?", re.ASCII)
_CAPABILITY = re.compile(r"([A-Za-z0-9 ]{3,60}): ?(true|false)", re.IGNORECASE)
_INACTIVE = "all links are inactive"


def recognises(text: str) -> bool:
    """Whether the text holds a line about a link of ``nvidia-smi nvlink``."""
    return _SEEN.search(text) is not None


def read(text: str) -> Topology:
    """The GPUs and NVLinks of an ``nvidia-smi nvlink`` output; MachineError when it holds no GPU's link."""
    notices: list[Notice] = []
    listings = _listings(plain_lines(text), notices)
    if not any(listing.links or listing.all_inactive for listing in listings):
        raise MachineError(
            f"{SOURCE}: no link of a GPU in {shown(text.strip())}; expected lines such as "
            "'Link 0: 26.562 GB/s'; give it the whole output of 'nvidia-smi nvlink -s'"
        )
    verdict = class_of_listings(listings)
    _note_cut(listings, notices)
    if not verdict.certain or verdict.topology_class is TopologyClass.UNKNOWN:
        text = f"how the GPUs are joined: {verdict.reason}"
        notices.append(Notice("not_visible", text, listings[0].line))
    devices, links = _graph(listings, verdict, notices)
    return Topology(
        name="",
        devices=devices,
        links=links,
        topology_class=verdict.topology_class,
        source=SOURCE,
        notices=tuple(notices),
        facts=_facts(listings, verdict),
    )


def _sections(lines: list[str], notices: list[Notice]) -> dict[int | None, list[Listing]]:
    """GPU -> its listings, one for each command in the text; None: links before any GPU line."""
    found: dict[int | None, list[Listing]] = {}
    current: Listing | None = None
    for number, line in enumerate(lines, 1):
        if len(line) > 1000:
            continue
        gpu = _GPU.fullmatch(line)
        if gpu:
            current = Listing(int(gpu[1]), gpu[2], gpu[3] or "", line=number)
            found.setdefault(current.index, []).append(current)
            continue
        link = _LINK.fullmatch(line)
        inactive = _INACTIVE in line.lower()
        if (link or inactive) and current is None:
            current = Listing(None, "", "")
            found[None] = [current]
            notices.append(Notice("not_visible", "which GPU the first links belong to: no GPU line", number))
        if current is not None and inactive:
            current.all_inactive = True
        elif current is not None and link:
            _take(current, int(link[1]), link[2], number, notices)
    return found


def _listings(lines: list[str], notices: list[Notice]) -> list[Listing]:
    """One listing for each GPU, put together from the outputs of several commands where the text has them."""
    joined = []
    for sections in _sections(lines, notices).values():
        main = next((section for section in sections if section.has_state), sections[0])
        joined.append(main)
        others = [section for section in sections if section is not main]
        twice = [other for other in others if other.has_state]
        if twice and any(other.links != main.links for other in twice):
            notices.append(
                Notice(
                    "contradiction",
                    f"{main.name} is listed twice, differently: the first counts",
                    twice[0].line,
                )
            )
        for other in others:
            if not other.has_state:
                _join(main, other, notices)
    return joined


def _join(main: Listing, other: Listing, notices: list[Notice]) -> None:
    """Adds far ends and capabilities from ``other``'s links to ``main``'s.

    ``-R`` may number the active links only, one after the other, while ``-s`` counts the inactive ones too: a
    pair of H100 PCIe cards prints links 0-3, 6-9 and 12-15 of 18 in the one and 0-11 in the other.
    """
    active = sorted(index for index, link in main.links.items() if not link.is_inactive)
    ends = [link for _, link in sorted(other.links.items()) if link.remote]
    if ends and main.has_state and len(ends) != len(active):
        text = f"{main.name} has {len(active)} active links and {len(ends)} far ends: these are not used"
        notices.append(Notice("contradiction", text, other.line))
    elif ends:
        places = active if main.has_state else [link.index for link in ends]
        for index, end in zip(places, ends, strict=True):
            link = main.links.setdefault(index, PhysicalLink(index))
            link.remote, link.remote_link = end.remote, end.remote_link
    for index, link in other.links.items():
        if link.capabilities and (index in main.links or not main.has_state):
            main.links.setdefault(index, PhysicalLink(index)).capabilities |= link.capabilities


def _note_cut(listings: list[Listing], notices: list[Notice]) -> None:
    """GPUs of one model have as many links each: a shorter listing was cut, or the driver hides links."""
    most = max(len(listing.links) for listing in listings)
    for listing in listings:
        if listing.all_inactive:
            text = f"how many links {listing.name} has: all are inactive"
            notices.append(Notice("not_visible", text, listing.line))
        elif len(listing.links) < most:
            listing.is_cut = listing is listings[-1]
            kind = "truncated" if listing.is_cut else "contradiction"
            text = f"{listing.name} lists {len(listing.links)} links, others {most}"
            notices.append(Notice(kind, text, listing.line))


def _take(listing: Listing, index: int, said: str, number: int, notices: list[Notice]) -> None:
    """One line about one link: a rate, a state, a remote device or a capability."""
    link = listing.links.setdefault(index, PhysicalLink(index))
    if rate := _RATE.fullmatch(said):
        link.gigabytes_per_second = float(rate[1])
    elif said.lower() == "<inactive>":
        link.is_inactive = True
    elif remote := _REMOTE.fullmatch(said):
        link.remote, link.remote_link = remote[1].upper(), int(remote[2]) if remote[2] else None
    elif (capability := _CAPABILITY.fullmatch(said)) and (key := _CAPABILITIES.get(capability[1])):
        link.capabilities[key] = capability[2].lower() == "true"
    else:
        cut = any(word.startswith(said) for word in ("<inactive>", "Remote Device ", *_CAPABILITIES))
        kind = "truncated" if cut else "damaged_line"
        notices.append(Notice(kind, f"{listing.name} link {index}: {said[:60]!r} is not read", number))
        if not link.is_known:
            del listing.links[index]


def _facts(listings: list[Listing], verdict: Verdict) -> dict[str, Any]:
    by_name = {listing.name: listing for listing in listings}
    totals = [len(listing.links) for listing in listings]
    remotes = {name: listing.remotes for name, listing in by_name.items() if listing.remotes}
    with_state = any(listing.has_state for listing in listings)
    facts: dict[str, Any] = {
        "gpu_count": len(listings) if listings[0].index is not None else None,
        "gpu_entries": len(listings),
        "links": {name: _link_facts(listing) for name, listing in by_name.items()},
        "nvlinks_per_gpu": [listing.active for listing in listings] if with_state else None,
        "links_per_gpu": max(totals),
        "nvswitch": verdict.nvswitch,
        "nic_count": None,
        "cpu_count": None,
        "nvswitch_count": 0 if verdict.nvswitch is False else None,
        "gpu_matrix": None,
        "gpu_models": {name: listing.model for name, listing in by_name.items() if listing.model},
        "faults": [
            {"gpu": listing.name, "down": listing.down}
            for listing in listings
            if listing.down and is_module(listing.model)
        ],
        "topology_class_reason": verdict.reason,
        "topology_class_candidates": [candidate.value for candidate in verdict.candidates],
    }
    if len(remotes) > 0:
        facts["remote_devices"] = {name: found for name, found in remotes.items() if not by_name[name].is_cut}
    for key in _CAPABILITIES.values():
        said = {link.capabilities.get(key) for listing in listings for link in listing.links.values()}
        facts[key] = said.pop() if len(said) == 1 else None
    return facts


def _link_facts(listing: Listing) -> dict[str, Any]:
    facts: dict[str, Any] = {"total": len(listing.links)}
    if listing.is_cut:
        facts["cut"] = True
    if listing.has_state:
        facts |= {"active": listing.active, "GBps_per_link": listing.rates}
    return facts


def _graph(
    listings: list[Listing], verdict: Verdict, notices: list[Notice]
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    gpus = [
        Device(f"gpu{index}", DeviceKind.GPU, attributes=_attributes(listing))
        for index, listing in enumerate(listings)
    ]
    switches: dict[str, Device] = {}
    links: list[Link] = []
    peers = remote_gpus(listings)
    unseen = []
    for index, listing in enumerate(listings):
        for remote, bundle in listing.bundles().items():
            if remote in peers and remote:
                target = f"gpu{peers[remote]}"
            elif verdict.topology_class is TopologyClass.NVSWITCH:
                target = switches.setdefault(remote, _switch(len(switches), remote)).name
            elif verdict.topology_class is TopologyClass.NVLINK_BRIDGE and len(listings) == 2:
                target = f"gpu{1 - index}"
            else:
                unseen.append(listing.name)
                continue
            if not is_module(listing.model):
                # A card's inactive link has no bridge on it: it is not there rather than down.
                bundle = [link for link in bundle if not link.is_inactive]
            one_way = target.startswith("gpu")
            links += _links(f"gpu{index}", target, bundle, one_way=one_way, is_cut=listing.is_cut)
    if unseen:
        first = next(listing.line for listing in listings if listing.name in unseen)
        text = f"where the links of {', '.join(dict.fromkeys(unseen))} lead: 'topo -m' or 'nvlink -R' says it"
        notices.append(Notice("not_visible", text, first))
    return (*gpus, *switches.values()), tuple(links)


def _attributes(listing: Listing) -> dict[str, Any]:
    said = {"name": listing.name, "model": listing.model, "uuid": listing.uuid}
    return {key: value for key, value in said.items() if value}


def _switch(index: int, remote: str) -> Device:
    attributes = {} if remote and not is_hidden(remote) else {"stands_for": "all NVSwitches of the machine"}
    return Device(f"nvswitch{index}", DeviceKind.NVSWITCH, bus_id=remote.lower(), attributes=attributes)


def _links(
    source: str, target: str, bundle: list[PhysicalLink], *, one_way: bool, is_cut: bool
) -> list[Link]:
    """Up and down links apart; the other direction too, unless the other GPU's listing brings it.

    is_cut: there may be more of them, since the text ends in this GPU's list.
    """
    made: list[Link] = []
    cut = {"list_cut": True} if is_cut else {}
    for state in (LinkState.UP, LinkState.DOWN):
        chosen = [link for link in bundle if link.is_inactive == (state is LinkState.DOWN)]
        if not chosen:
            continue
        rates = [link.gigabytes_per_second for link in chosen]
        known = [rate for rate in rates if rate is not None]
        total = sum(known) * 1e9 if len(known) == len(rates) else None
        ends = [(source, target)] if one_way else [(source, target), (target, source)]
        made += [
            Link(
                start,
                end,
                LinkKind.NVLINK,
                bytes_per_second=total,
                count=len(chosen),
                state=state,
                origin=f"{SOURCE} -s: rate per link and direction" if total else SOURCE,
                attributes={"links": [link.index for link in chosen], **cut},
            )
            for start, end in ends
        ]
    return made
