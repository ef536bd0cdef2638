"""Systems for tests of the library model: those of datasheets, and random ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from ccbench.model.library import Generation, HostProcessor, Intra, LibrarySystem, NetworkPorts
from ccbench.model.library.constants import constants_of

STARTS = constants_of({})
"""The constants before anything was learned."""

H100 = LibrarySystem(
    "H100", Generation.HOPPER, 8, 1, Intra.NVSWITCH, 450e9, 18, True, None, HostProcessor.INTEL
)
A100 = LibrarySystem(
    "A100", Generation.AMPERE, 8, 1, Intra.NVSWITCH, 300e9, 12, False, None, HostProcessor.AMD
)
B200 = LibrarySystem(
    "B200",
    Generation.BLACKWELL,
    8,
    1,
    Intra.NVSWITCH,
    900e9,
    18,
    True,
    None,
    HostProcessor.INTEL,
)
V100_CUBE = LibrarySystem("V100", Generation.VOLTA, 8, 1, Intra.CUBE_MESH, 150e9, 6)
MI300X = LibrarySystem("MI300X", Generation.CDNA3, 8, 1, Intra.XGMI, 448e9, 7)
HDR = NetworkPorts("ib-hdr", 25e9, 8)
NDR = NetworkPorts("ib-ndr", 50e9, 8)


def clustered(system: LibrarySystem, nodes: int, network: NetworkPorts = NDR) -> LibrarySystem:
    """``nodes`` such nodes."""
    return replace(system, nodes=nodes, network=network)


def lone(nodes: int, generation: Generation = Generation.HOPPER) -> LibrarySystem:
    """One GPU a node."""
    return LibrarySystem(f"lone x {nodes}", generation, 1, nodes, Intra.NONE, 0.0, network=NDR)


@st.composite
def systems(draw: st.DrawFn) -> LibrarySystem:
    """Any system of two ranks at least."""
    inside = draw(st.integers(1, 16))
    nodes = draw(st.integers(1 if inside > 1 else 2, 300))
    intra = draw(st.sampled_from([kind for kind in Intra if kind is not Intra.NONE]))
    words = ("ib-ndr", "roce", "efa", "tcp", "tcpx", "tcpxo", "slingshot")
    network = NetworkPorts(
        draw(st.sampled_from(words)),
        draw(st.floats(1e8, 1e11)),
        draw(st.integers(1, 16)),
        draw(st.booleans()),
    )
    return LibrarySystem(
        "drawn",
        draw(st.sampled_from(Generation)),
        inside,
        nodes,
        Intra.NONE if inside == 1 else intra,
        0.0 if inside == 1 else draw(st.floats(1e9, 2e12)),
        multicast=draw(st.booleans()),
        network=network if nodes > 1 else None,
        host=draw(st.sampled_from(HostProcessor)),
    )


COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
)
