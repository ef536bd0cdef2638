"""Rules on what NCCL and RCCL say at their start: which transport, which NIC, and what was left out and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain

from ccbench.analysis.diagnosis import Diagnosis
from ccbench.analysis.nccl_errors import first_error
from ccbench.readers.evidence import Evidence
from ccbench.readers.statements import Statement
from ccbench.results.keys import grouped
from ccbench.units import plural

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
        joined = self.evidence.of("communicator")
        stated = [int(line.values["nodes"]) for line in joined if "nodes" in line.values]
        ranks = [(line.values["rank"], line.values["ranks"], host_of(line)) for line in joined]
        # Hosts that list the same ranks run jobs of their own.
        if len({rank[:2] for rank in ranks}) < len(set(ranks)):
            return max(stated, default=1)
        lines = Counter(
            host_of(line) for line in self.evidence.statements if ":" in line.speaker
        )
        # A host of one line, where others have more, is what is left of a torn line.
        hosts = sum(count > 1 for count in lines.values()) or len(lines)
        return max(stated, default=hosts if hosts > 1 else 0)

    @cached_property
    def transports(self) -> dict[str, list[Statement]]:
        """Lines of channels by transport: P2P, SHM, NET/IB, NET/Socket, NET/AWS Libfabric ..."""
        lines = self.evidence.of("channel")
        return grouped(lines, lambda line: transport_of(line.values["transport"]))

    @cached_property
    def nets(self) -> dict[str, list[Statement]]:
        """Lines of channels between nodes by their network: IB, Socket, AWS Libfabric ..."""
        return {
            name.removeprefix("NET/"): lines
            for name, lines in self.transports.items()
            if name.startswith("NET/")
        }

    @cached_property
    def network(self) -> list[Statement]:
        """Lines that name the network of a communicator."""
        return self.evidence.of("network")

    @property
    def verbs(self) -> bool:
        """Whether InfiniBand or RoCE carries data between nodes, as far as the text says."""
        names = [*self.nets, *(line.values["name"] for line in self.network)]
        return not names or any(name.startswith("IB") for name in names)

    @cached_property
    def models(self) -> str:
        """Names of GPUs, of machines and benchmark logs beside the lines."""
        names = [name for _, topology in self.evidence.machines for name in topology.models]
        names += [device.model for _, log in self.evidence.logs for device in log.devices]
        return " ".join(dict.fromkeys(names))

    def set_to(self, name: str, *values: str) -> Statement | None:
        """The line that says that variable ``name`` is one of ``values``; None where the first says another."""
        named = (line for line in self.evidence.of("setting") if line.values["name"] == name)
        line = next(named, None)
        return line if line is not None and line.values["value"].lower() in values else None


def host_of(line: Statement) -> str:
    """Return the host of the process that wrote ``line``."""
    return line.speaker.partition(":")[0]


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
        uneven_nodes,
        gpudirect,
        host_memory,
        network_inside_a_node,
    )
    yield from first_error(evidence)
    for rule in rules:
        yield from rule(log)


def summary_of(evidence: Evidence) -> str:
    """Return what NCCL did, in a clause: ranks, transports, GPUDirect RDMA, version; '' where it says nothing."""
    log = NcclLog(evidence)
    parts = []
    if joined := evidence.of("communicator"):
        ranks = plural(max(int(line.values["ranks"]) for line in joined), "rank")
        parts.append(ranks + (f" on {plural(log.nodes, 'node')}" if log.nodes else ""))
    inside = [name for name in log.transports if not name.startswith("NET/")]
    if inside:
        parts.append(f"{' and '.join(inside)} inside a node")
    if log.nets:
        between = chain.from_iterable(log.nets.values())
        direct = any("GDRDMA" in line.values["transport"] for line in between)
        how = ", with GPUDirect RDMA" if direct else ""
        parts.append(f"{' and '.join(log.nets)} between nodes{how}")
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
        lines,
    )


def plugin(log: NcclLog) -> Iterator[Diagnosis]:
    """A network plug-in that is there and found nothing to use."""
    lines = log.evidence.of("no_provider", "plugin_failed")
    if not lines or log.nets.keys() - {"Socket", "IB"}:
        return  # a plug-in serves
    sockets_used = [line for line in log.network if line.values["name"] == "Socket"]
    sockets_used += log.nets.get("Socket", [])
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
        [*lines, *sockets_used[:1]],
    )


def sockets(log: NcclLog) -> Iterator[Diagnosis]:
    """TCP sockets between nodes. With one node 'Using network Socket' is what NCCL says and no finding."""
    channels = log.nets.get("Socket", [])
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
        [*lines, *channels[:1], *chosen[:1]],
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


def uneven_nodes(log: NcclLog) -> Iterator[Diagnosis]:
    """Nodes of one job that have unlike numbers of ranks or NICs."""
    lines, of_nics = log.evidence.of("test_rank"), log.evidence.of("nics")
    ranks = Counter(line.speaker for line in lines)
    if len({line.values["rank"] for line in lines}) < len(lines):
        ranks.clear()  # several jobs
    nics = {host_of(line): line.values["names"].count("[") for line in of_nics}
    for what, counts in (("ranks", ranks), ("NICs", nics)):
        *whole, last = [*counts.values()] or [0]
        # A list that is cut lacks ranks of its last node.
        if whole and len({*whole, max(last, min(whole))}) > 1:
            yield Diagnosis(
                "note",
                "uneven_nodes",
                f"Nodes are not alike: {' and '.join(map(str, sorted({*whole, last})))} {what} a node",
                "collectives go at the pace of the node that has fewest",
                "see that every node has its full set, or leave out the node that has not",
                "",
                lines or of_nics,
            )


def gpudirect(log: NcclLog) -> Iterator[Diagnosis]:
    """GPUDirect RDMA that NCCL does not use between nodes."""
    if log.nodes == 1:
        return
    states = log.evidence.of("gdr")
    disabled = [line for line in states if line.values["state"] == "Disabled"]
    if any(line.values["name"].startswith(("rxe", "siw")) for line in disabled):
        return  # Soft-RoCE and Soft-iWARP have none
    channels = [line for name, lines in log.nets.items() if name != "Socket" for line in lines]
    staged = [line for line in channels if "GDRDMA" not in line.values["transport"]]
    far = [line for line in log.evidence.of("gdr_path") if line.values["state"] == "Disabled"]
    in_plugin = log.evidence.of("gdr_off_in_plugin")
    if (
        any(line.values["network"] in ("Socket", "FastSocket") for line in disabled)
        and not staged
    ):
        return
    if channels and not staged:
        return  # the lines are of NICs that no channel takes
    told = bool(disabled or in_plugin or far)
    # Plug-ins do not say how their data go.
    if not told and not any(line.values["transport"].startswith("NET/IB") for line in staged):
        return
    why, advice = _why_no_gpudirect(log, disabled, far)
    partly = bool(channels) and len(staged) < len(channels)
    hosts = list(filter(None, dict.fromkeys(map(host_of, staged))))
    names = dict.fromkeys(line.values["name"] for line in disabled)
    of = f" for {', '.join(names)}" if names else ""
    if partly and hosts and not disabled:
        of = f" on {', '.join(hosts[:4])}, while others have it"
    yield Diagnosis(
        # A plug-in that does without may be on a machine that has none, such as instances of one card.
        "problem" if (disabled or far or partly) and "GB10" not in log.models else "doubt",
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
        [*disabled[:2], *far[:1], *in_plugin[:1], *staged[:1]],
        len(disabled) or len(staged),
    )


def _why_no_gpudirect(
    log: NcclLog, disabled: list[Statement], far: list[Statement]
) -> tuple[str, str]:
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
    if log.set_to("NCCL_NET_GDR_LEVEL", "0", "loc") is not None:
        return (", because NCCL_NET_GDR_LEVEL forbids it", "unset NCCL_NET_GDR_LEVEL")
    if far and not disabled:
        return (
            ": the NIC is farther from the GPU than NCCL allows by itself",
            "take a NIC below the same PCIe switch (NCCL_IB_HCA), or try NCCL_NET_GDR_LEVEL=SYS and measure both",
        )
    if not log.verbs:
        return (
            "",
            "the plug-in's own lines say why: it and its libfabric must be built with CUDA and fit the driver "
            "(fi_info; FI_HMEM); nvidia-peermem serves InfiniBand and RoCE alone",
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
    shm_pairs, p2p_pairs = (
        {
            (line.values["sender"], line.values["receiver"])
            for line in log.transports.get(name, ())
        }
        for name in ("SHM", "P2P")
    )
    off = log.set_to("NCCL_P2P_DISABLE", "1") or log.set_to("NCCL_P2P_LEVEL", "0", "loc")
    refused = log.evidence.of("peer_access_off")
    switched = _SWITCHED.search(log.models)
    why = ": the driver gives these GPUs no peer access" if refused else ""
    advice = (
        "see which pairs the driver lets reach each other (nvidia-smi topo -p2p r); where it lets them, "
        "NCCL_P2P_LEVEL=SYS takes P2P across sockets; where not, NCCL_SHM_USE_CUDA_MEMCPY=1 copies by the "
        "engines (on one of four boxes training then hung); measure both"
    )
    if off is not None:
        why = f", because {off.values['name']}={off.values['value']} is set"
        advice = f"unset {off.values['name']} and run again"
    share = f"{len(shm_pairs)} of {plural(len(shm_pairs | p2p_pairs), 'pair')}"
    yield Diagnosis(
        "problem" if off or switched else "doubt",
        "host_memory_transport",
        f"{share} of neighbours inside a node exchange through host memory (SHM){why}",
        "usual between sockets of boxes without NVLink and of GeForce cards, and several times slower than peer "
        "access; wrong where NVLink or one PCIe switch joins the GPUs",
        advice,
        "ccbench run knobs",
        [*([off] if off else []), *refused[:1], *lines],
    )


def network_inside_a_node(log: NcclLog) -> Iterator[Diagnosis]:
    """Ranks of one node that talk over the network."""
    lines = [*chain.from_iterable(log.nets.values())]
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
        [*off, *lines],
    )
