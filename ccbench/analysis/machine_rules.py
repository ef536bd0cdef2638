"""Rules on what tools say of a host: ports of NICs, rates of copies, the kernel's log, isolation of PCIe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median, median_high

from ccbench.analysis.diagnosis import Diagnosis
from ccbench.model.library import Generation
from ccbench.model.library.clusters import generations_in, pcie_generation, pcie_rate
from ccbench.readers.evidence import Evidence
from ccbench.readers.statements import Statement
from ccbench.results.keys import grouped
from ccbench.units import plural

_UP = re.compile(r"ACTIVE|UP", re.IGNORECASE)
_UP_AGAIN = re.compile(r"\blink up\b|\((?:up|active)\b", re.IGNORECASE)
_RATE = re.compile(r"\d+(?:\.\d+)?")


def ports(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield ports that are down."""
    lines = evidence.of("port")
    down = [line for line in lines if not _UP.search(line.values.get("state", "up"))]
    up = [line for line in lines if line not in down]
    if down:
        states = [
            line.values.get("physical") or line.values.get("state", "down") for line in down
        ]
        named = zip(map(_port, down[:6]), states, strict=False)
        names = ", ".join(f"{port} ({state})" for port, state in named)
        working = [
            f"{_port(line)} {_RATE.search(line.values['gigabits'])[0]} Gb/s"  # type: ignore[index]  # filtered
            for line in up
            if _RATE.search(line.values.get("gigabits", ""))
        ]
        # A card with two ports and one cable is usual; a port that polls has a cable, or should have one.
        polling = any(line.values.get("physical", "").lower() == "polling" for line in down)
        beside = f"; up: {', '.join(working[:6])}" if working else ""
        yield Diagnosis(
            "problem" if not up or len(down) > len(up) or polling else "doubt",
            "port_down",
            f"{len(down)} of {plural(len(lines), 'port')} of NICs "
            f"{'is' if len(down) == 1 else 'are'} down: {names}{beside}",
            "NCCL leaves out ports that are down, without a word, so that a node has fewer NICs than it should",
            "check cable, transceiver and the switch's port ('Polling': nothing answers at the other end; "
            "'Disabled': set off by the host or the switch); ports that have no cable are meant to be down",
            "ibstat; mlxlink -d DEVICE",
            down,
        )


def _port(line: Statement) -> str:
    port = line.values.get("port", "1")
    return line.values["device"] + (f" port {port}" if port != "1" else "")


FAR_BELOW = 3.0
"""A pair's rate below its slot's by this factor is no matter of protocol: copies of PCIe reach 80 to 90 %."""

UNEVEN = 2.0
"""A pair slower than the median of all pairs by this factor is another path."""


def pairs(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield what bandwidths of pairs show: no peer access, pairs far below their slot, pairs unlike others."""
    access = evidence.of("peer_access")
    refused = [line for line in access if line.values["can"] == "CANNOT"]
    if refused:
        yield Diagnosis(
            "doubt",
            "no_peer_access",
            f"{len(refused)} of {plural(len(access), 'pair')} of GPUs have no peer access",
            "copies between them pass through host memory",
            "usual of GeForce cards; else see IOMMU and ACS (lspci -vvv), and 'nvidia-smi topo -p2p r'",
            "nvidia-smi topo -p2p r",
            refused,
        )
    staged = {(line.values["first"], line.values["second"]) for line in refused}
    rates = [
        line
        for line in evidence.of("peer_bandwidth")
        if (line.values["first"], line.values["second"]) not in staged
    ]
    judged: list[Diagnosis] = []
    for direction, per_link in (("Uni", 1), ("Bi", 2)):
        enabled, disabled = (
            [
                line
                for line in rates
                if (line.values["direction"], line.values["enabled"]) == (direction, state)
            ]
            for state in ("Enabled", "Disabled")
        )
        if enabled and disabled:
            judged += _against_host_copies(enabled, disabled)
        if enabled:
            judged += _rates(evidence, enabled, per_link, bool(access) and not refused)
    # Both directions together tell what one does.
    told: set[str] = set()
    for diagnosis in judged:
        if diagnosis.kind not in told:
            told.add(diagnosis.kind)
            yield diagnosis


SLOWER_THAN_HOST = 0.8
"""Share of the rate through host memory below which peer copies take a worse way."""


def _against_host_copies(
    enabled: list[Statement], disabled: list[Statement]
) -> Iterator[Diagnosis]:
    """Yield that peer copies are slower than copies through the host's memory."""
    direct = median(map(_rate, enabled))
    staged = median(map(_rate, disabled))
    if direct < SLOWER_THAN_HOST * staged:
        yield Diagnosis(
            "problem",
            "peer_slower_than_host",
            f"Peer copies are slower than copies through host memory: {direct:g} against {staged:g} GB/s "
            f"(medians; below {SLOWER_THAN_HOST:.0%})",
            "peer traffic goes up to the processors' root ports: ACS, an IOMMU or a hypervisor sends it there",
            "turn ACS off at the bridges (lspci -vvv | grep ACSCtl), boot with iommu=pt; until then NCCL_P2P_DISABLE=1",
            "ccbench run knobs",
            [enabled[0], disabled[0]],
            len(enabled),
        )


def _rates(
    evidence: Evidence, lines: list[Statement], directions: int, access: bool
) -> Iterator[Diagnosis]:
    rates = {line: _rate(line) for line in lines}
    models = " ".join(line.values["model"] for line in evidence.of("peer_gpu"))
    generation = next(iter(generations_in(models)), Generation.UNKNOWN)
    pcie = pcie_generation(generation)
    slot = (pcie_rate(pcie) or 0.0) / 1e9 * directions if pcie else 0.0
    both = "both directions together" if directions == 2 else "one direction"
    usual = median(rates.values())
    slow = [line for line, rate in rates.items() if rate * FAR_BELOW < slot]
    if slow:
        worst = min(slow, key=rates.__getitem__)
        yield Diagnosis(
            "problem",
            "pair_slow",
            f"{len(slow)} of {plural(len(lines), 'pair')} of GPUs far below their slot (below a third): "
            f"{rates[worst]:g} GB/s in {both}, where PCIe {pcie} x16 has {slot:.3g}"
            + (", with peer access" if access else ""),
            "the slot has fewer lanes or an older generation than the card, or the copies pass through the "
            "processors' root ports",
            "look at the link of both cards under load (nvidia-smi -q -d PCI; lspci -vvv: LnkSta), at ACS and at the "
            "BIOS's bifurcation of the slot",
            "ccbench topo",
            slow,
        )
    uneven = [
        line for line, rate in rates.items() if rate * UNEVEN < usual and line not in slow
    ]
    if uneven:
        worst = min(uneven, key=rates.__getitem__)
        yield Diagnosis(
            # Many such pairs are another class of links, as in boxes of several switches.
            "problem" if len(uneven) * 4 <= len(lines) else "doubt",
            "pair_uneven",
            f"{len(uneven)} of {plural(len(lines), 'pair')} of GPUs below half of the usual {usual:g} GB/s: "
            f"{worst.values['first']} -> {worst.values['second']} {rates[worst]:g} GB/s",
            "these pairs take another path, or a link of theirs is down or retrained",
            "see what joins them (nvidia-smi topo -m, nvidia-smi nvlink -s)",
            "ccbench topo",
            uneven,
        )


def _rate(line: Statement) -> float:
    return float(line.values["rate"])


def hosts(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield GPUs whose copies to or from the host are far slower than those of other GPUs."""
    tests = grouped(evidence.of("host_bandwidth"), lambda line: line.values["test"])
    for test, lines in tests.items():
        gpus = grouped(lines, lambda line: line.values["gpu"])
        nearest = [max(own, key=_rate) for own in gpus.values()]
        usual = median_high(map(_rate, nearest))
        slow = [line for line in nearest if _rate(line) * UNEVEN < usual]
        if slow:
            named = ", ".join(
                f"GPU {line.values['gpu']} {_rate(line):g} GB/s" for line in slow[:6]
            )
            yield Diagnosis(
                "problem",
                "host_link_slow",
                f"{len(slow)} of {plural(len(nearest), 'GPU')} slow to the host: {named} in {test}, where "
                f"{usual:g} GB/s is usual",
                "the card's slot has fewer lanes or an older generation, or its link was retrained",
                "look at the link under load (nvidia-smi -q -d PCI; lspci -vvv: LnkSta); reseat the card or riser",
                "ccbench topo",
                slow,
            )


XIDS = {
    "13": (
        "an error of the program or of the GPU's engine",
        "the program's own, unless it comes on one GPU only",
    ),
    "31": (
        "a page fault of the program on the GPU",
        "most often the program's own; where other programs have it too, the driver's or the GPU's",
    ),
    "43": ("the GPU stopped a faulty program", "the program's own"),
    "45": (
        "the driver removed a program's work: it was ended, or another error came first",
        "an effect: look for an Xid before it, else for who ended the program",
    ),
    "48": (
        "a double-bit memory error",
        "reset the GPU, drain the node; replace it if it comes again",
    ),
    "61": ("the GPU's firmware halted", "reset the GPU; update the driver"),
    "62": ("the GPU's firmware halted", "reset the GPU; update the driver"),
    "63": ("a memory row was remapped", "reset the GPU at the next pause"),
    "64": ("a memory row could not be remapped", "replace the GPU"),
    "74": (
        "an NVLink failed",
        "nvidia-smi nvlink -e; reset all GPUs that it joins; reseat or replace",
    ),
    "79": (
        "the GPU fell off the bus",
        "power, heat or the PCIe slot: drain the node and power it off and on",
    ),
    "92": ("many single-bit memory errors", "watch it; replace the GPU if they go on"),
    "94": (
        "a memory error that was contained",
        "restart the program; reset the GPU at the next pause",
    ),
    "95": (
        "a memory error that was not contained",
        "reset the GPU before anything else runs on it",
    ),
    "119": ("the GPU's system processor did not answer", "reset the GPU; update the driver"),
    "120": ("the GPU's system processor failed", "reset the GPU; update the driver"),
    "140": (
        "a memory error that was not corrected",
        "reset the GPU; replace it if it comes again",
    ),
    **dict.fromkeys(
        map(str, range(144, 151)),
        ("an NVLink 5 error", "look at the links of this GPU and of the switch; reset both"),
    ),
}
"""Meaning and cure, by NVIDIA's list of Xid errors."""

OF_THE_PROGRAM = frozenset({"13", "31", "43", "45"})


STATED = (
    (
        "gpu_lost",
        "problem",
        "The driver lost a GPU",
        "",
        "power, heat or the PCIe slot: drain the node and power it off and on",
        "",
    ),
    (
        "sxid",
        "problem",
        "An NVSwitch reported an error (SXid)",
        "",
        "restart nvidia-fabricmanager; see its log",
        "",
    ),
    (
        "nic_event",
        "problem",
        "A NIC lost its link or its health",
        "",
        "check cable and transceiver; mlxlink",
        "",
    ),
    (
        "amd_gpu_error",
        "problem",
        "A GPU's engine failed or was reset",
        "",
        "rocm-smi --showras; drain the node",
        "",
    ),
    (
        "oom_killed",
        "problem",
        "The kernel killed a process for want of host memory",
        "",
        "give the job more memory",
        "",
    ),
    (
        "pcie_error",
        "problem",
        "PCIe errors that were not corrected",
        "",
        "reseat the card or riser; see the link's width and speed (lspci -vvv: LnkSta)",
        "",
    ),
    (
        "pcie_corrected",
        "doubt",
        "PCIe errors that were corrected",
        "corrected errors cost time by retries; many of them show a bad slot, riser or cable",
        "reseat the card or riser; see the link's width and speed (lspci -vvv: LnkSta)",
        "",
    ),
    (
        "link_local_gid",
        "doubt",
        "RoCE connections use link-local GIDs (fe80 or 169.254)",
        "they reach NICs of the same Ethernet segment; connections to others time out or hang",
        "unset NCCL_IB_GID_INDEX, or set it to the RoCE v2 GID with the interface's own address",
        "show_gids",
    ),
    (
        "ip_interface",
        "doubt",
        "IP over InfiniBand is down",
        "ibdev2netdev tells the state of the IP interface: the port itself may be up and carry NCCL",
        "look at the ports: ibstat",
        "ibstat",
    ),
    (
        "iommu",
        "problem",
        "The kernel runs without iommu=pt",
        "RCCL says that it may hang",
        "add iommu=pt to the kernel's command line",
        "ccbench doctor",
    ),
    (
        "numa_balancing",
        "doubt",
        "NUMA balancing is on",
        "RCCL says that times vary",
        "sysctl kernel.numa_balancing=0",
        "ccbench doctor",
    ),
)
"""What a line alone shows: kind of statement, severity, subject, meaning, cure, command. A device that is up again
is left out."""


def stated(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield what lines show by themselves, with the devices that they name."""
    for kind, severity, subject, meaning, advice, command in STATED:
        lines = evidence.of(kind)
        up = {line.speaker for line in lines if _UP_AGAIN.search(line.quote)}
        if lines := [line for line in lines if line.speaker not in up]:
            devices = dict.fromkeys(
                line.values.get("address") or line.values.get("device") for line in lines
            )
            at = f" at {', '.join(list(filter(None, devices))[:4])}"
            yield Diagnosis(
                severity, kind, subject + at * any(devices), meaning, advice, command, lines
            )


def kernel_log(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield errors of the kernel's log, by device and code, hardware before what a program causes."""

    def code_of(line: Statement) -> str:
        before = re.search(r"previous Xid (\d{1,4})", line.values.get("rest", ""))
        return before[1] if before else line.values["code"]

    by_code = grouped(evidence.of("xid"), code_of)
    # A fatal error may come after those that are not.
    for code, lines in sorted(
        by_code.items(),
        key=lambda item: (
            item[0] in OF_THE_PROGRAM,
            not any(" Fatal " in line.quote for line in item[1]),
        ),
    ):
        meaning, cure = XIDS.get(
            code, ("an error of the GPU", "look it up in NVIDIA's list of Xid errors")
        )
        addresses = dict.fromkeys(line.speaker or "(not named)" for line in lines)
        yield Diagnosis(
            "doubt" if code in OF_THE_PROGRAM else "problem",
            f"xid_{code}",
            f"Xid {code} on GPU {', '.join([*addresses][:4])}: {meaning}",
            "",
            cure,
            "dcgmi diag -r 3",
            lines,
        )


def isolation(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield bridges whose ACS sends copies between GPUs up to the root port."""
    lines = evidence.of("acs")
    redirecting = [line for line in lines if "redirects" in line.values]
    if redirecting:
        switched = any(
            re.search(r"switch|PLX|PEX|Broadcom|Microsemi", line.values["name"], re.IGNORECASE)
            for line in redirecting
        )
        yield Diagnosis(
            # Without a switch there is no shorter way that the root port could take.
            "problem" if switched else "doubt",
            "acs_redirects",
            f"ACS redirects peer traffic at {len(redirecting)} of {plural(len(lines), 'PCIe bridge')}",
            "copies between GPUs, and between GPU and NIC, go up to the root port in place of through the switch: "
            "GPUDirect is slow or fails",
            "on bare metal turn ACS off at these bridges (setpci -s BRIDGE ECAP_ACS+6.w=0, or in the BIOS); virtual "
            "machines need it, and then ATS",
            "sudo lspci -vvv | grep ACSCtl",
            redirecting,
        )


def machine_rules(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield what every rule of this module sees."""
    for rule in (ports, pairs, hosts, kernel_log, stated, isolation):
        yield from rule(evidence)
