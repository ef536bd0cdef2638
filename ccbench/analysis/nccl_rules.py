"""Rules on what NCCL and RCCL say at their start: which transport, which NIC, and what was left out and why."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property

from ccbench.analysis.diagnosis import Diagnosis, quoted
from ccbench.analysis.nccl_errors import first_error
from ccbench.readers.evidence import Evidence
from ccbench.readers.statements import Statement
from ccbench.units import plural

SLOW_START_SECONDS = 10.0
"""NCCL's own start takes below a second on one node and a few on hundreds (Init timings of public logs)."""

FABRIC_READY = "3"
"""NVML_GPU_FABRIC_STATE_COMPLETED of nvml.h."""

_SWITCHED = re.compile(
    r"\b(?:H100|H200|H800|H20\b|B[123]00|GB[123]00)(?!.{0,12}(?:NVL\b|PCIE))", re.IGNORECASE
)


class NcclLog:
    """Facts that the lines of one job say together, asked once."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    @cached_property
    def nodes(self) -> int:
        """Machines of the largest communicator; 0 where the text does not say."""
        stated = [
            int(line.values["nodes"]) for line in self.communicators if "nodes" in line.values
        ]
        ranks = [
            (line.values["rank"], line.values["ranks"], line.speaker.partition(":")[0])
            for line in self.communicators
        ]
        # Hosts that list the same ranks run jobs of their own.
        if len({rank[:2] for rank in ranks}) < len(set(ranks)):
            return max(stated, default=1)
        hosts = {
            line.speaker.partition(":")[0]
            for line in self.evidence.statements
            if ":" in line.speaker
        }
        return max(stated, default=len(hosts) if len(hosts) > 1 else 0)

    @cached_property
    def communicators(self) -> list[Statement]:
        """Lines of ranks that joined a communicator."""
        return self.evidence.of("communicator")

    @cached_property
    def ranks(self) -> int:
        """Ranks of the largest communicator; 0 where the text does not say."""
        return max((int(line.values["ranks"]) for line in self.communicators), default=0)

    @cached_property
    def transports(self) -> dict[str, list[Statement]]:
        """Lines of channels by transport: P2P, SHM, NET/IB, NET/Socket, NET/AWS Libfabric ..."""
        lines: dict[str, list[Statement]] = defaultdict(list)
        for line in self.evidence.of("channel"):
            lines[transport_of(line.values["transport"])].append(line)
        return dict(lines)

    @cached_property
    def network(self) -> list[Statement]:
        """Lines that name the network of a communicator."""
        return self.evidence.of("network")

    @cached_property
    def models(self) -> str:
        """Names of GPUs, of machines and benchmark logs beside the lines."""
        names = [name for _, topology in self.evidence.machines for name in topology.models]
        names += [device.model for _, log in self.evidence.logs for device in log.devices]
        return " ".join(dict.fromkeys(names))

    def setting(self, name: str) -> Statement | None:
        """The line that says what variable ``name`` is, the first."""
        return next(
            (line for line in self.evidence.of("setting") if line.values["name"] == name), None
        )

    def set_to(self, name: str, *values: str) -> Statement | None:
        """The line that says that ``name`` is one of ``values``."""
        line = self.setting(name)
        return line if line is not None and line.values["value"].lower() in values else None


def transport_of(words: str) -> str:
    """Return the transport of a channel's words: ``P2P/CUMEM/read`` is P2P, ``NET/IB/0/GDRDMA`` NET/IB."""
    if words.startswith("NET/"):
        return "/".join(words.split("/")[:2])
    if words.startswith(("direct shared memory", "SHM")):
        return "SHM"
    return re.split(r"[/ ]", words, maxsplit=1)[0]


def nccl_diagnoses(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield what the lines of NCCL show, in the order of the rules."""
    log = NcclLog(evidence)
    rules: tuple[Callable[[NcclLog], Iterator[Diagnosis]], ...] = (
        alone,
        plugin,
        sockets,
        gpudirect,
        host_memory,
        network_inside_a_node,
        idle_nics,
        multicast,
        nvlink_domain,
        guesses,
        versions,
        slow_start,
        host_settings,
        restricting_settings,
    )
    yield from first_error(evidence)
    for rule in rules:
        yield from rule(log)


def summary_of(evidence: Evidence) -> str:
    """Return what NCCL did, in a clause: ranks, transports, GPUDirect RDMA, version; '' where it says nothing."""
    log = NcclLog(evidence)
    parts = []
    if log.ranks:
        parts.append(
            plural(log.ranks, "rank")
            + (f" on {plural(log.nodes, 'node')}" if log.nodes else "")
        )
    inside = [name for name in log.transports if not name.startswith("NET")]
    between = [name.partition("/")[2] for name in log.transports if name.startswith("NET")]
    if inside:
        parts.append(f"{' and '.join(inside)} inside a node")
    if between:
        direct = any(
            "GDRDMA" in line.values["transport"]
            for name, lines in log.transports.items()
            if name.startswith("NET")
            for line in lines
        )
        parts.append(
            f"{' and '.join(between)} between nodes" + ", with GPUDirect RDMA" * direct
        )
    elif not inside and log.network:
        parts.append(f"network {log.network[0].values['name']}")
    parts += [
        f"{line.values['library']}CCL {line.values['version']}"
        for line in evidence.of("version")[:1]
    ]
    return ", ".join(parts)


def alone(log: NcclLog) -> Iterator[Diagnosis]:
    """Processes of a benchmark that do not know each other: each lists a rank 0 of its own and no other."""
    # The bus bandwidth of one rank is 0 by its factor: 2(n-1)/n, (n-1)/n.
    zero = [
        table
        for _, logged in log.evidence.logs
        for table in logged.tables
        if len(fast := [row for row in table.rows if row.algbw and row.algbw > 1]) > 1
        and not any(row.busbw for row in fast)
        and all(row.busbw is not None for row in fast)
    ]
    if zero:
        yield Diagnosis(
            "problem",
            "built_without_mpi",
            "Bus bandwidth is 0 at every size: each process ran alone, as rank 0 of 1",
            "nothing was sent between GPUs; the algorithm bandwidth is that of one GPU's memory",
            "build nccl-tests with make MPI=1 MPI_HOME=... of the launcher's MPI, or use one process with -g GPUS",
            "ccbench run allreduce --launch 'mpirun -n RANKS'",
        )
        return
    lines = log.evidence.of("test_rank")
    processes = {(line.values["host"], line.values["process"]) for line in lines}
    if len(processes) < 2 or any(line.values["rank"] != "0" for line in lines):
        return
    at_once = len({host for host, _ in processes}) > 1
    yield Diagnosis(
        "problem" if at_once else "doubt",
        "built_without_mpi",
        f"{plural(len(processes), 'process')} ran alone, each as rank 0 of 1: nothing was sent between them",
        "nccl-tests was built without MPI, or with another MPI than the launcher's; its bandwidths are 0 or those "
        "of one GPU",
        "build it with make MPI=1 MPI_HOME=... of the launcher's MPI, or use one process with -g GPUS",
        "ccbench run allreduce --launch 'mpirun -n RANKS'",
        quoted(lines),
        len(lines),
    )


def plugin(log: NcclLog) -> Iterator[Diagnosis]:
    """A network plug-in that is there and found nothing to use."""
    lines = log.evidence.of("no_provider", "plugin_failed")
    used = {name.partition("/")[2] for name in log.transports if name.startswith("NET/")}
    if not lines or used - {"Socket", "IB"}:
        return  # a plug-in serves
    sockets_used = [line for line in log.network if line.values["name"] == "Socket"]
    sockets_used += log.transports.get("NET/Socket", [])
    instead = "; NCCL took TCP sockets instead" if sockets_used else ""
    yield Diagnosis(
        "problem",
        "plugin_failed",
        f"The network plug-in found no provider that works{instead}",
        "EFA, or the fabric that the plug-in is for, carries nothing; a node of 400 Gb/s and more is left with "
        "what TCP gives",
        "check that the container sees the devices (fi_info -p efa; /dev/infiniband), that the pod asks for "
        "them (vpc.amazonaws.com/efa), and that the plug-in's libfabric is the one it was built for",
        "fi_info -p efa",
        quoted([*lines, *sockets_used[:1]]),
        len(lines),
    )


def sockets(log: NcclLog) -> Iterator[Diagnosis]:
    """TCP sockets between nodes. With one node 'Using network Socket' is what NCCL says and no finding."""
    channels = log.transports.get("NET/Socket", [])
    chosen = [line for line in log.network if line.values["name"] == "Socket"]
    if log.nodes == 1 or not (channels or (chosen and log.nodes > 1)):
        return
    if log.evidence.of("no_provider", "plugin_failed") and not channels:
        return  # said already
    why, advice, lines = _why_sockets(log)
    yield Diagnosis(
        "problem",
        "sockets_between_nodes",
        f"Data between nodes goes over TCP sockets{why}",
        "TCP gives a few GB/s per connection through the processors; InfiniBand, RoCE or EFA of the same port "
        "give its rate without them",
        advice,
        "ccbench run knobs --launch 'mpirun -n RANKS'",
        quoted([*lines, *channels[:1], *chosen[:1]]),
        len(channels) or len(chosen),
    )


def _why_sockets(log: NcclLog) -> tuple[str, str, list[Statement]]:
    """Return (clause, advice, lines) of why NCCL took sockets."""
    disabled = log.set_to("NCCL_IB_DISABLE", "1") or log.set_to("NCCL_NET", "socket")
    if disabled is not None:
        name, value = disabled.values["name"], disabled.values["value"]
        return (f", because {name}={value} is set", f"unset {name} and run again", [disabled])
    missing = log.evidence.of("no_ib_device")
    if missing:
        return (
            ": NCCL saw no InfiniBand or RoCE device",
            "check that the container has the devices (--device=/dev/infiniband, ibv_devinfo) and libibverbs, "
            "and that NCCL_IB_HCA names one that exists",
            missing[:1],
        )
    return (
        "; the text does not say why",
        "look for 'NET/IB : No device found' and NCCL_IB_DISABLE in the whole log; ibv_devinfo lists what the "
        "container sees; on a cloud's own fabric the plug-in (aws-ofi-nccl, FasTrak) must be in LD_LIBRARY_PATH",
        [],
    )


def gpudirect(log: NcclLog) -> Iterator[Diagnosis]:
    """GPUDirect RDMA that NCCL does not use between nodes."""
    if log.nodes == 1:
        return
    states = log.evidence.of("gdr")
    disabled = [line for line in states if line.values["state"] == "Disabled"]
    channels = [
        line
        for name, lines in log.transports.items()
        if name.startswith("NET/") and name != "NET/Socket"
        for line in lines
    ]
    staged = [line for line in channels if "GDRDMA" not in line.values["transport"]]
    far = [line for line in log.evidence.of("gdr_path") if line.values["state"] == "Disabled"]
    unused = [line for line in log.evidence.of("gdr_used") if line.values["state"] == "0"]
    in_plugin = log.evidence.of("gdr_off_in_plugin")
    if (
        any(line.values["network"] in ("Socket", "FastSocket") for line in disabled)
        and not staged
    ):
        return
    if channels and not staged:
        return  # the lines are of NICs that no channel takes
    told = bool(disabled or in_plugin or far or (staged and unused))
    # Plug-ins do not say how their data go.
    if not told and not any(line.values["transport"].startswith("NET/IB") for line in staged):
        return
    why, advice = _why_no_gpudirect(log, disabled, far)
    names = list(dict.fromkeys(line.values["name"] for line in disabled))
    of = (
        f" for {', '.join(names[:4])}"
        + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        if names
        else ""
    )
    software = bool(names) and all(name.startswith(("rxe", "siw", "eth")) for name in names)
    partly = bool(channels) and len(staged) < len(channels)
    hosts = list(filter(None, {line.speaker.partition(":")[0]: None for line in staged}))
    if partly and hosts and not names:
        of = f" on {', '.join(hosts[:4])}, while others have it"
    yield Diagnosis(
        "problem"
        if (told or partly) and not software and "GB10" not in log.models
        else "doubt",
        "gpudirect_off",
        f"GPUDirect RDMA is off{of}{why}",
        (
            f"{len(staged)} of {plural(len(channels), 'channel line')} are staged: "
            if partly
            else ""
        )
        + "data between nodes goes through the host's memory, which on most machines costs half of the NICs' rate",
        advice,
        "ccbench doctor",
        quoted([*disabled[:2], *far[:1], *in_plugin[:1], *staged[:1], *unused[:1]]),
        len(disabled) or len(staged),
    )


def _why_no_gpudirect(
    log: NcclLog, disabled: list[Statement], far: list[Statement]
) -> tuple[str, str]:
    names = [line.values["name"] for line in disabled]
    if names and all(name.startswith(("rxe", "siw")) for name in names):
        return (
            ": a software device (Soft-RoCE or Soft-iWARP) has none",
            "use a NIC with RDMA; Soft-RoCE is for tests",
        )
    if "GB10" in log.models:
        return (
            ": a GB10 has none, for its memory is the host's",
            "nothing to do; expect what the NICs give through the host's memory",
        )
    if any(line.values.get("why") == "no module" for line in disabled):
        return (
            ": the kernel module nvidia-peermem is not loaded",
            "modprobe nvidia-peermem on every host",
        )
    level = log.setting("NCCL_NET_GDR_LEVEL")
    if level is not None and level.values["value"].upper() in ("0", "LOC"):
        return (", because NCCL_NET_GDR_LEVEL forbids it", "unset NCCL_NET_GDR_LEVEL")
    if far and not disabled:
        return (
            ": the NIC is farther from the GPU than NCCL allows by itself",
            "take a NIC below the same PCIe switch (NCCL_IB_HCA), or try NCCL_NET_GDR_LEVEL=SYS and measure both",
        )
    return (
        "",
        "load nvidia-peermem on every host (modprobe nvidia-peermem), or use an open kernel driver with DMA-BUF; "
        "in a container pass /dev/infiniband; then look for 'GPU Direct RDMA Enabled'",
    )


def host_memory(log: NcclLog) -> Iterator[Diagnosis]:
    """Ranks of one node that exchange through the host's memory."""
    lines = log.transports.get("SHM", [])
    if not lines:
        return
    shm_pairs = {(line.values["sender"], line.values["receiver"]) for line in lines}
    pairs = shm_pairs | {
        (line.values["sender"], line.values["receiver"])
        for line in log.transports.get("P2P", [])
    }
    off = log.set_to("NCCL_P2P_DISABLE", "1") or log.set_to("NCCL_P2P_LEVEL", "0", "loc")
    refused = log.evidence.of("peer_access_off")
    switched = _SWITCHED.search(log.models)
    why = ": the driver gives these GPUs no peer access" if refused else ""
    advice = (
        "see which pairs the driver lets reach each other (nvidia-smi topo -p2p r); where it lets them, "
        "NCCL_P2P_LEVEL=SYS takes P2P across sockets; where not, NCCL_SHM_USE_CUDA_MEMCPY=1 copies by the "
        "engines; measure both"
    )
    if off is not None:
        why = f", because {off.values['name']}={off.values['value']} is set"
        advice = f"unset {off.values['name']} and run again"
    yield Diagnosis(
        "problem" if off or switched else "doubt",
        "host_memory_transport",
        f"{len(shm_pairs)} of {plural(len(pairs), 'pair')} of neighbours inside a node exchange through host "
        f"memory (SHM){why}",
        "usual between sockets of boxes without NVLink and of GeForce cards, and several times slower than peer "
        "access; wrong where NVLink or one PCIe switch joins the GPUs",
        advice,
        "ccbench run knobs",
        quoted([*([off] if off else []), *refused[:1], *lines]),
        len(lines),
    )


def network_inside_a_node(log: NcclLog) -> Iterator[Diagnosis]:
    """Ranks of one node that talk over the network."""
    lines = [
        line
        for name, lines in log.transports.items()
        if name.startswith("NET/")
        for line in lines
    ]
    if log.nodes != 1 or not lines:
        return
    off = [
        line
        for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
        if (line := log.set_to(name, "1")) is not None
    ]
    why = " because " + " and ".join(f"{line.values['name']}=1" for line in off) if off else ""
    yield Diagnosis(
        "problem",
        "network_inside_a_node",
        f"Ranks of one node talk over the network{why}",
        "neither peer access nor shared memory joins them; a node that NCCL takes for several (containers with "
        "their own host names or /dev/shm) looks like that, too",
        "unset these variables; for containers of one host use --ipc=host or one /dev/shm",
        "ccbench doctor",
        quoted([*off, *lines]),
        len(lines),
    )


_NIC_OF_CHANNEL = re.compile(r"NET/[^/]+/(\d+)")
_NIC_IN_LIST = re.compile(r"\[(\d+)\]([\w.\-]+)")


def idle_nics(log: NcclLog) -> Iterator[Diagnosis]:
    """NICs that NCCL opened and no channel uses, of nodes with at least as many ranks."""
    local = max(
        (
            int(line.values["local_ranks"])
            for line in log.communicators
            if "local_ranks" in line.values
        ),
        default=0,
    )
    used: dict[str, set[str]] = defaultdict(set)
    channels: dict[str, set[str]] = defaultdict(set)
    for name, lines in log.transports.items():
        if name.startswith("NET/") and name != "NET/Socket":
            for line in lines:
                host = line.speaker.partition(":")[0]
                channels[host].add(line.values["channel"])
                if match := _NIC_OF_CHANNEL.match(line.values["transport"]):
                    used[host].add(match[1])
    for opened in log.evidence.of("nics"):
        if opened.values["network"] == "Socket":
            continue
        host = opened.speaker.partition(":")[0]
        nics = dict(_NIC_IN_LIST.findall(opened.values["devices"]))
        idle = [name for index, name in nics.items() if index not in used[host]]
        # A part of a log shows a part of the channels: only a node that shows enough of them for all NICs, and
        # whose ranks could use them all, counts.
        enough = len(channels[host]) >= len(nics) <= local
        if enough and idle and 0 < len(used[host]) * 2 <= len(nics):
            yield Diagnosis(
                "problem",
                "idle_nics",
                f"Channels use {len(used[host])} of {len(nics)} NICs; nothing goes over {', '.join(idle[:8])}",
                "a node's bandwidth is that of the NICs that are used",
                "look at the NICs' distance from the GPUs (nvidia-smi topo -m), at NCCL_IB_HCA, and at "
                "NCCL_TOPO_FILE of the provider",
                "ccbench topo",
                (opened,),
                1,
            )
            return


def multicast(log: NcclLog) -> Iterator[Diagnosis]:
    """NVLink SHARP that is missing where the GPUs have it, or fails."""
    failed = log.evidence.of("nvls_failed")
    if failed:
        yield Diagnosis(
            "problem",
            "nvls_failed",
            "NVLink SHARP (NVLS) failed to bind its memory",
            "the fabric manager or an NVSwitch is in a wrong state; jobs end here",
            "restart nvidia-fabricmanager of the driver's own version, then the GPUs; until then NCCL_NVLS_ENABLE=0",
            "NCCL_NVLS_ENABLE=0 ccbench run allreduce",
            quoted(failed),
            len(failed),
        )
    off = log.set_to("NCCL_NVLS_ENABLE", "0")
    missing = [line for line in log.evidence.of("nvls_support") if "missing" in line.values]
    several = log.ranks > 2 or len(log.evidence.of("nvls_support")) > 2
    if missing and not failed and not off:
        switched = bool(_SWITCHED.search(log.models)) and several
        yield Diagnosis(
            "problem" if switched else "note",
            "nvls_missing",
            "NVLink SHARP (NVLS) is not available"
            + (", although these GPUs have it behind NVSwitches" if switched else ""),
            "all_reduce inside a node then takes rings or trees: up to 1.3 times longer for large messages on "
            "Hopper and Blackwell; GPUs without NVSwitches, and virtual machines, never have it",
            "check that nvidia-fabricmanager runs and that nvidia-smi -q shows Fabric State: Completed"
            if switched
            else "",
            "",
            quoted(missing),
            len(missing),
        )


def nvlink_domain(log: NcclLog) -> Iterator[Diagnosis]:
    """NVLink between nodes that is there and not working, and GPUs whose fabric is not ready."""
    failed = log.evidence.of("imex")
    if failed:
        yield Diagnosis(
            "problem",
            "imex",
            "NVLink between nodes is there, and IMEX does not let ranks use it",
            "NCCL would fall back to the NICs or end",
            "start nvidia-imex on every node with the same nodes_config.cfg (nvidia-imex-ctl -N), and give "
            "containers a channel of /dev/nvidia-caps-imex-channels; NCCL_MNNVL_ENABLE=0 runs without",
            "nvidia-imex-ctl -N",
            quoted(failed),
            len(failed),
        )
    fabric = log.evidence.of("fabric")
    not_ready = [line for line in fabric if line.values["state"] != FABRIC_READY]
    if not_ready:
        yield Diagnosis(
            "problem",
            "fabric_not_ready",
            "The NVLink fabric of a GPU is not ready",
            f"state {not_ready[0].values['state']}, where {FABRIC_READY} is completed (nvml.h)",
            "restart nvidia-fabricmanager (or the rack's NMX), then look at Fabric State in nvidia-smi -q",
            "nvidia-smi -q | grep -A4 Fabric",
            quoted(not_ready),
            len(not_ready),
        )
    cliques = {(line.values["cluster"], line.values["clique"]) for line in fabric}
    if len({cluster for cluster, _ in cliques}) == 1 < len(cliques):
        yield Diagnosis(
            "doubt",
            "several_cliques",
            f"GPUs of one NVLink cluster are in {len(cliques)} cliques",
            "NVLink joins the GPUs of a clique; between cliques data goes over the NICs",
            "ask the scheduler for nodes of one clique, or the rack's manager why it is split",
            "",
            quoted(fabric),
            len(fabric),
        )


def guesses(log: NcclLog) -> Iterator[Diagnosis]:
    """Assumptions of NCCL about a machine whose system did not say."""
    switches, speeds = log.evidence.of("assumed_nvswitch"), log.evidence.of("assumed_speed")
    if switches:
        yield Diagnosis(
            "doubt",
            "assumed_nvswitch",
            "NCCL guessed NVSwitches: it could not see what the NVLinks lead to",
            "containers (gVisor) and virtual machines hide them; the log proves NVLinks, and no NVSwitch",
            "give NCCL the machine's own topology file (NCCL_TOPO_FILE), or dump it on the host",
            "nvidia-smi topo -m on the host",
            quoted(switches),
            len(switches),
        )
    if speeds:
        yield Diagnosis(
            "doubt",
            "assumed_speed",
            f"NCCL assumed {speeds[0].values['speed']} for a network interface whose speed the system does not say",
            "virtual interfaces (veth, ens of virtual machines) have none; rings and trees are chosen by it",
            "no fault by itself; for fast virtual NICs use the provider's plug-in or topology file",
            "",
            quoted(speeds),
            len(speeds),
        )


def versions(log: NcclLog) -> Iterator[Diagnosis]:
    """Versions of the library that differ within one text."""
    lines = log.evidence.of("version")
    counted = Counter(f"{line.values['library']}CCL {line.values['version']}" for line in lines)
    files = {line.file for line in lines}
    if len(counted) > 1:
        yield Diagnosis(
            "doubt",
            "versions_differ",
            f"Several versions of the library: {', '.join(sorted(counted))}",
            "ranks of one job must have one version; texts of several jobs may have several"
            + ("" if len(files) > 1 else ", as this text may be"),
            "use one image on every node",
            "",
            tuple({line.values["version"]: line for line in lines}.values())[:3],
            len(lines),
        )


_BOOTSTRAP = re.compile(r"bootstrap ([\d.]+)")


def slow_start(log: NcclLog) -> Iterator[Diagnosis]:
    """A start that takes long, and connections that are tried again."""
    retries = log.evidence.of("retry")
    slow = [
        line
        for line in log.evidence.of("init_time", "bootstrap_time")
        if float(line.values["seconds"]) > SLOW_START_SECONDS
    ]
    if retries:
        reason = retries[0].values["why"]
        peer = retries[0].values.get("peer", "")
        yield Diagnosis(
            "problem",
            "unreachable",
            f"A rank cannot reach another rank{f' at {peer}' if peer else ''}: {reason}, tried "
            f"{plural(len(retries), 'time')}",
            "hosts that see each other over one interface need not do so over the one that NCCL chose",
            "name the interface that connects the hosts: NCCL_SOCKET_IFNAME=eth0; check its firewall",
            "",
            quoted(retries),
            len(retries),
        )
    if slow:
        longest = max(slow, key=lambda line: float(line.values["seconds"]))
        parts = _BOOTSTRAP.search(longest.values.get("parts", ""))
        within = f", {float(parts[1]):.0f} s of it the bootstrap" if parts else ""
        yield Diagnosis(
            "doubt",
            "slow_start",
            f"NCCL took {float(longest.values['seconds']):.0f} s to start{within}",
            "ranks that came late, name resolution, or an interface that answers slowly; not the links",
            "compare with when each rank began; set NCCL_SOCKET_IFNAME, and NCCL_OOB_NET_ENABLE=0 for the default",
            "",
            quoted([longest]),
            len(slow),
        )


def host_settings(log: NcclLog) -> Iterator[Diagnosis]:
    """Settings of the host's kernel that RCCL warns of."""
    lines = log.evidence.of("iommu", "numa_balancing")
    if not lines:
        return
    balancing = any(line.kind == "numa_balancing" for line in lines)
    unset = any(line.kind == "iommu" for line in lines)
    advice = ["add iommu=pt to the kernel's command line"] * unset
    advice += ["sysctl kernel.numa_balancing=0"] * balancing
    yield Diagnosis(
        "problem" if unset else "doubt",
        "host_settings",
        " and ".join(
            ["The kernel runs without iommu=pt"] * unset + ["NUMA balancing is on"] * balancing
        ),
        "RCCL says that times vary or that it may hang"
        if unset
        else "RCCL says that times vary",
        "; ".join(advice),
        "ccbench doctor",
        quoted(lines),
        len(lines),
    )


RESTRICTING = {
    "NCCL_P2P_DISABLE": "no peer access between GPUs",
    "NCCL_SHM_DISABLE": "no shared memory inside a node",
    "NCCL_IB_DISABLE": "no InfiniBand and RoCE",
    "NCCL_NVLS_DISABLE": "no NVLink SHARP",
    "NCCL_ALGO": "one algorithm for all sizes",
    "NCCL_PROTO": "one protocol for all sizes",
    "NCCL_MAX_NCHANNELS": "at most so many channels",
    "NCCL_NTHREADS": "so many threads a block",
    "NCCL_CROSS_NIC": "a choice of rails",
    "NCCL_NET_GDR_LEVEL": "a limit for GPUDirect RDMA",
    "NCCL_MIN_CTAS": "at least so many blocks",
    "NCCL_MAX_CTAS": "at most so many blocks",
}
"""Variables that take a choice from NCCL (NCCL's user guide, environment variables)."""


def restricting_settings(log: NcclLog) -> Iterator[Diagnosis]:
    """Variables that take a choice from NCCL."""
    lines: dict[str, Statement] = {}
    for line in log.evidence.of("setting"):
        name, value = line.values["name"], line.values["value"]
        if name in RESTRICTING and not (name.endswith("_DISABLE") and value == "0"):
            lines.setdefault(name, line)
    if lines:
        listed = ", ".join(f"{name}={line.values['value']}" for name, line in lines.items())
        yield Diagnosis(
            "note",
            "settings",
            f"Variables restrict NCCL's choice: {listed}",
            "; ".join(f"{name}: {RESTRICTING[name]}" for name in lines),
            "measure with and without them",
            "ccbench run knobs",
            quoted(lines.values()),
            len(lines),
        )
