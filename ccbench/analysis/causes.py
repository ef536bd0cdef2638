"""Causes of slow collectives of a GPU library: each is a system like the one at hand, with something amiss.

The model prices that system as it prices the healthy one, so every cause comes with the rate that it would
give there. A cause that gives about what was measured is named; that it is the one is for the check to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from statistics import median
from typing import Any

from ccbench.errors import MachineError
from ccbench.flags import Flag
from ccbench.model.library import Intra, LibraryRequest, LibrarySystem
from ccbench.model.library.clusters import pcie_generation, pcie_rate
from ccbench.model.library.predictor import predict_library

FITS = 1.6
"""Factor by which a cause's price may miss what was measured: so far apart lie 95 % of large sizes."""

LEAST_EFFECT = 1.15
"""Factor by which a cause must slow the system down, in the median, to be one."""

MOST_NAMED = 3

SLOWEST_CLOCK = 6.0
"""Clock under load over that at rest: 1,980 over 345 MHz of an H100, 1,410 over 210 MHz of an A100."""

Systems = tuple[LibrarySystem, ...]


@dataclass(frozen=True)
class Rule:
    """One thing that may be amiss.

    code: its own for ever. check: what to look at.
    systems: what it makes of a healthy system, at its mildest and its worst; () where
    it cannot be. shown_by: in variables, NCCL's messages and flags of cases. ruled_out_by: likewise,
    unless the channels of other GPUs show it. slows_small: small messages
    suffer as well. slows: factors on the prices, mildest and worst. needs_sign: systems on which a fitting rate
    is not enough, since anything slow would fit, or since such a machine is not known to fail so.
    """

    code: str
    name: str
    check: str
    systems: Callable[[LibrarySystem], Systems]
    shown_by: str = ""
    ruled_out_by: str = ""
    slows_small: bool = False
    slows: tuple[float, float] = (1.0, 1.0)
    needs_sign: tuple[Intra, ...] = ()


def _network(system: LibrarySystem, **changes: Any) -> Systems:
    """``system`` with other NICs; () where its network takes no part."""
    if system.network is None or system.nodes == 1:
        return ()
    return (replace(system, network=replace(system.network, **changes)),)


def _nics(system: LibrarySystem, count: int) -> Systems:
    """``system`` with fewer NICs a node; () where it has no more."""
    had = system.network.per_node if system.network is not None else 0
    return _network(system, per_node=count) if 0 < count < had else ()


def _inside(system: LibrarySystem, intra: Intra) -> Systems:
    """``system`` with PCIe in the place of what joins its GPUs; () where there is nothing faster."""
    generation = pcie_generation(system.generation)
    rate = None if generation is None or system.intra is Intra.NONE else pcie_rate(generation)
    if rate is None or system.intra in (intra, Intra.HOST):
        return ()
    return (
        replace(
            system, intra=intra, intra_bytes_per_second=rate, links_per_gpu=1, multicast=False
        ),
    )


def _far_nics(system: LibrarySystem) -> Systems:
    """Through the host's memory every byte passes the processor's PCIe twice: half of a GPU's port, or less.

    Three published logs with GPUs and NICs that are not aligned (google/dranet) reach 0.5 to 0.6 of the port.
    """
    port = system.gpu_port_bytes_per_second
    if system.nodes == 1 or port == inf:
        return ()
    return tuple(replace(system, gpu_port_bytes_per_second=port / part) for part in (2, 4))


def _half_links(system: LibrarySystem) -> Systems:
    if system.intra in (Intra.NONE, Intra.PCIE, Intra.HOST):
        return ()
    halved = system.intra_bytes_per_second / 2
    return (
        replace(system, intra_bytes_per_second=halved, links_per_gpu=system.links_per_gpu // 2),
    )


def _sockets(system: LibrarySystem) -> Systems:
    """The kernel's TCP over all interfaces, or over one; over InfiniBand that is IPoIB."""
    if system.network is None or system.network.word == "tcp":
        return ()
    over_tcp: dict[str, Any] = {"word": "tcp", "in_network_reduction": False}
    return *_network(system, **over_tcp), *_network(system, **over_tcp, per_node=1)


RULES: tuple[Rule, ...] = (
    Rule(
        "C501",
        "sockets (over InfiniBand: IPoIB) instead of the network's own transport",
        "NCCL_DEBUG=INFO must say NET/IB or the plug-in's name, not NET/Socket or 'Using network Socket'; "
        "else the plug-in and its library path, NCCL_IB_HCA, NCCL_IB_DISABLE, 'ulimit -l' in the container",
        _sockets,
        r"^NCCL_IB_DISABLE=1$|^NCCL_NET=Socket$|network Socket|(?:via )?NET/Socket",
        r"via NET/IB|Using network IB",
        slows_small=True,
    ),
    Rule(
        "C502",
        "one NIC of each node instead of all",
        "the line 'NET/IB : Using' of NCCL_DEBUG=INFO must list every NIC; NCCL_IB_HCA, links that are down",
        lambda system: _nics(system, 1),
        r"^NCCL_IB_HCA==?\w+_\d+(?::\d)?(?!\S)",
    ),
    Rule(
        "C503",
        "no GPUDirect RDMA, or NICs that are not beside their GPUs",
        "'GDRDMA' behind NET/IB in NCCL_DEBUG=INFO; nvidia-peermem or dma-buf; PIX or PXB between GPU and "
        "NIC in 'nvidia-smi topo -m', inside the container or VM too; PCIe ACS off",
        _far_nics,
        r"^NCCL_NET_GDR_LEVEL=(?:0|LOC)$|via NET/IB/[0-9()]+(?:/Shared)?(?:\s|$)",
        r"via NET/.+/GDRDMA",
        slows_small=True,
    ),
    Rule(
        "C504",
        "half of the NICs of each node",
        "'ibstat' or 'rdma link' on every node: ports that are down or at a lower rate; NCCL_IB_HCA",
        lambda system: _nics(system, (system.network.per_node if system.network else 0) // 2),
    ),
    Rule(
        "C505",
        "PCIe instead of NVLink",
        "NV and a number between all GPUs in 'nvidia-smi topo -m'; 'nvidia-smi nvlink -s'; with NVSwitches "
        "the fabric manager's log",
        lambda system: _inside(system, Intra.PCIE),
    ),
    Rule(
        "C506",
        "no peer access between GPUs, so that data pass through host memory",
        "'via SHM' in NCCL_DEBUG=INFO; NCCL_P2P_DISABLE, IOMMU and ACS; 'nvidia-smi topo -p2p r'",
        lambda system: _inside(system, Intra.HOST),
        r"^NCCL_P2P_DISABLE=1$|^NCCL_P2P_LEVEL=LOC$|via SHM",
        r"via P2P/",
        needs_sign=(Intra.NVSWITCH,),
    ),
    Rule(
        "C507",
        "host memory written by kernels instead of copy engines (SHM)",
        "'via SHM' in NCCL_DEBUG=INFO; measure again with NCCL_SHM_USE_CUDA_MEMCPY=1 (on one of four "
        "boxes training then hung), which gives 10.6 to 19.4 GB/s where such boxes have 2.2 without",
        lambda system: (
            (replace(system, intra=Intra.HOST),)
            if system.nodes == 1 and system.intra in (Intra.PCIE, Intra.HOST)
            else ()
        ),
        r"via SHM|^NCCL_SHM_USE_CUDA_MEMCPY=0$",
        r"via P2P/",
        slows=(4.0, 9.0),
    ),
    Rule(
        "C508",
        "peer access to the other CPU's GPUs that crawls (IOMMU, ACS)",
        "measure again with NCCL_P2P_LEVEL=PHB or NCCL_P2P_DISABLE=1 ('ccbench run knobs'); iommu=pt, ACS of the "
        "bridges ('lspci -vvv'); pairs may be fine where three ranks and more are not",
        lambda system: (
            (system,)
            if system.nodes == 1 and system.intra is Intra.PCIE and system.ranks_per_node > 2
            else ()
        ),
        r"^NCCL_P2P_LEVEL=SYS$",
        r"via SHM",
        slows_small=True,
        slows=(30.0, 3000.0),
    ),
    Rule(
        "C509",
        "reduction in the network (SHARP) not used",
        "NCCL_COLLNET_ENABLE=1 and the plug-in; 'CollNet' or 'SHARP' in NCCL_DEBUG=INFO",
        lambda system: (
            _network(system, in_network_reduction=False)
            if system.network is not None and system.network.in_network_reduction
            else ()
        ),
        r"^NCCL_COLLNET_ENABLE=0$",
    ),
    Rule(
        "C510",
        "reduction in the NVSwitches (NVLS) not used",
        "NCCL_NVLS_ENABLE; 'NVLS multicast support' in NCCL_DEBUG=INFO; the fabric manager, IMEX in racks",
        lambda system: (replace(system, multicast=False),) if system.multicast else (),
        r"^NCCL_NVLS_ENABLE=0$|NVLS multicast support is not available",
    ),
    Rule(
        "C511",
        "half of the NVLinks",
        "'nvidia-smi nvlink -s' on every GPU: links that are inactive or at a lower rate",
        _half_links,
        Flag.LINK_ERRORS.value,
    ),
    Rule(
        "C512",
        "processors of the host that are busy, save power, or are far from the GPUs and NICs they serve",
        "load and governor ('ccbench doctor'), binding of ranks to the NUMA node of their GPU, C-states",
        lambda system: (system,),
        r"cpu_contention|other_load|steal|oversubscribed",
        slows_small=True,
    ),
    Rule(
        "C513",
        "clocks that are held down",
        "'nvidia-smi -q -d CLOCK,PERFORMANCE' while it runs: heat, power limit, locked clocks",
        lambda system: (system,),
        r"throttled|power_capped|clock_low|clock_dropped",
        slows_small=True,
        slows=(1.3, SLOWEST_CLOCK),
        needs_sign=tuple(Intra),
    ),
)
"""From what people meet most often down."""


@dataclass(frozen=True)
class Cause:
    """A rule that gives about what was measured, in seconds at the last of the sizes.

    sign: what shows it besides; "" where nothing does.
    """

    rule: Rule
    fastest_seconds: float
    slowest_seconds: float
    sign: str = ""


def causes_of(
    system: LibrarySystem,
    request: LibraryRequest,
    measured_seconds: Sequence[float],
    small_are_slow: bool | None = None,
    signs: str = "",
    *,
    only_small: bool = False,
    smaller: Sequence[tuple[int, float]] = (),
) -> tuple[Cause, ...]:
    """Rules that would make ``system`` as slow as it was measured, the likeliest first.

    request: of the largest sizes. small_are_slow: smaller ones are, None where none was measured. only_small:
    the largest are not. signs: variables, messages and flags that a rule may be shown by; such a rule is
    named whatever its rate. smaller: bytes and seconds of smaller sizes, any of which may rule a cause out.
    """
    sizes = (*request.size_bytes, *(size for size, _ in smaller))
    seconds_of_all = (*measured_seconds, *(seconds for _, seconds in smaller))
    all_sizes, last = replace(request, size_bytes=sizes), len(measured_seconds)

    def price(machine: LibrarySystem) -> list[float]:
        return [point.seconds for point in predict_library(machine, all_sizes)]

    healthy = price(system)
    causes: list[tuple[tuple[bool, bool, float], Cause]] = []
    for rule in RULES:
        try:
            prices = [price(one) for one in rule.systems(system)]
        except MachineError:
            continue  # an algorithm that was asked for does not exist on such a system
        if not prices:
            continue
        mildest, worst = rule.slows
        fastest = [mildest * min(times) for times in zip(*prices, strict=True)]
        slowest = [worst * max(times) for times in zip(*prices, strict=True)]
        effect = median(
            slow / usual for slow, usual in zip(slowest[:last], healthy[:last], strict=True)
        )
        if not rule.slows_small if only_small else effect < LEAST_EFFECT:
            continue
        # How far what was measured lies outside of what the cause gives, and how much that leaves open.
        misses = [
            max(log(low / seconds), log(seconds / high), 0.0)
            for low, seconds, high in zip(
                fastest[:last], measured_seconds, slowest[:last], strict=True
            )
        ]
        miss = median(misses)
        sign = re.search(rule.shown_by, signs, re.MULTILINE) if rule.shown_by else None
        # What some size of the run exceeds by more than the model errs is not how the run went.
        excluded = any(
            low > FITS * seconds for low, seconds in zip(fastest, seconds_of_all, strict=True)
        )
        if (
            rule.ruled_out_by
            and re.search(rule.ruled_out_by, signs)
            and not (sign and "via " in sign[0])
        ):
            continue
        if sign is None and (miss > log(FITS) or excluded or system.intra in rule.needs_sign):
            continue
        odd = small_are_slow is not None and rule.slows_small != small_are_slow
        end = last - 1
        unsure = miss + log(slowest[end] / fastest[end]) / 4
        shown = sign[0].strip() if sign is not None else ""
        causes.append(
            ((sign is None, odd, unsure), Cause(rule, fastest[end], slowest[end], shown))
        )
    return tuple(cause for _, cause in sorted(causes, key=lambda one: one[0])[:MOST_NAMED])
