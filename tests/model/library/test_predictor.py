from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model.library import (
    PROTOCOLS,
    Generation,
    LibraryRequest,
    LibrarySystem,
    NetworkPorts,
)
from ccbench.model.library.calibration import floor_seconds
from ccbench.model.library.constants import (
    LEVELS,
    Domain,
    LibraryConstants,
    constants_of,
    reasons,
    shipped,
)
from ccbench.model.library.costs import protocols
from ccbench.model.library.predictor import (
    busy_seconds,
    predict_library,
    seconds_of,
)
from ccbench.model.library.shapes import MOST_RANKS, shapes, uneven_loads
from tests.model.library.systems import (
    A100,
    B200,
    COLLECTIVES,
    H100,
    HDR,
    MI300X,
    NDR,
    STARTS,
    V100_CUBE,
    clustered,
    lone,
    systems,
)

SWEEP = tuple(1 << power for power in range(2, 38))
TABLE = shipped().table


@st.composite
def requests(draw: st.DrawFn, system: LibrarySystem) -> LibraryRequest:
    """A collective on ``system``, with algorithm and protocol left open, or one pair that exists there."""
    collective = draw(st.sampled_from(COLLECTIVES))
    request = LibraryRequest(collective, SWEEP, gpus_per_process=draw(st.sampled_from([1, 8])))
    if draw(st.booleans()):
        return request
    shape = draw(st.sampled_from(shapes(collective, system)))
    protocol = draw(st.sampled_from(protocols(shape, system)))
    return replace(request, algorithm=shape.algorithm, protocol=protocol)


@st.composite
def cases(draw: st.DrawFn) -> tuple[LibrarySystem, LibraryRequest]:
    system = draw(systems())
    return system, draw(requests(system))


@given(cases())
def test_latency_fill_and_bandwidth_make_up_the_time(
    case: tuple[LibrarySystem, LibraryRequest],
) -> None:
    for point in predict_library(*case):
        parts = point.latency_seconds + point.fill_seconds + point.bandwidth_seconds
        assert point.seconds == pytest.approx(parts, rel=1e-12)
        assert min(point.latency_seconds, point.fill_seconds, point.bandwidth_seconds) >= 0
        assert point.bottleneck


@given(cases())
def test_a_larger_size_takes_longer(case: tuple[LibrarySystem, LibraryRequest]) -> None:
    assert np.all(np.diff(seconds_of(*case, TABLE)) > 0)


@given(cases(), st.floats(1, 100), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(
    case: tuple[LibrarySystem, LibraryRequest], inside: float, across: float
) -> None:
    system, request = case
    network = system.network and replace(
        system.network, bytes_per_second=system.network.bytes_per_second * across
    )
    faster = replace(
        system, intra_bytes_per_second=system.intra_bytes_per_second * inside, network=network
    )
    assert np.all(
        seconds_of(faster, request, TABLE) <= seconds_of(system, request, TABLE) * (1 + 1e-12)
    )


@given(systems(), st.sampled_from(COLLECTIVES), st.integers(1, 10))
def test_rates_and_sizes_scale_together(
    system: LibrarySystem, collective: str, power: int
) -> None:
    factor = 2**power
    # NVLSTree, LL and sockets have fixed greatest rates: none is asked here. Chunks have a greatest size.
    request = LibraryRequest(collective, SWEEP, protocol="simple", multicast_off=True)
    if system.network is not None:
        system = replace(system, network=replace(system.network, word="roce"))
    network = system.network and replace(
        system.network, bytes_per_second=system.network.bytes_per_second * factor
    )
    wider = replace(
        system, intra_bytes_per_second=system.intra_bytes_per_second * factor, network=network
    )
    larger = replace(request, size_bytes=tuple(size * factor for size in SWEEP))
    deeper = TABLE | {"pipeline_mebibytes": TABLE["pipeline_mebibytes"] * factor}
    np.testing.assert_allclose(
        seconds_of(wider, larger, deeper), seconds_of(system, request, TABLE), rtol=1e-9
    )


@given(cases())
def test_the_choice_is_the_least_of_what_is_taken_unasked(
    case: tuple[LibrarySystem, LibraryRequest],
) -> None:
    system, request = case
    points = predict_library(system, replace(request, algorithm="default", protocol="default"))
    every = [
        seconds_of(
            system, replace(request, algorithm=shape.algorithm, protocol=protocol), TABLE
        )
        for shape in shapes(request.collective, system)
        if shape.unasked
        for protocol in protocols(shape, system)
    ]
    np.testing.assert_allclose(
        [point.seconds for point in points], np.min(every, axis=0), rtol=1e-12
    )


@given(
    systems(),
    st.sampled_from(COLLECTIVES),
    st.dictionaries(st.sampled_from([*LEVELS]), st.floats(0.05, 20)),
)
def test_whatever_the_levels_no_prediction_is_below_the_floor_of_nominal_rates(
    system: LibrarySystem, collective: str, levels: dict[str, float]
) -> None:
    request = LibraryRequest(collective, SWEEP)
    for constants in (STARTS, shipped(), constants_of(levels)):
        assert np.all(
            seconds_of(system, request, constants.table) >= floor_seconds(system, request)
        )


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (H100, PROTOCOLS),
        (MI300X, ("ll", "simple")),
        (clustered(H100, 2, NetworkPorts("efa", 50e9, 8)), ("ll128", "simple")),
        (clustered(A100, 2, NetworkPorts("efa", 12.5e9, 4)), ("simple",)),
        (clustered(H100, 2, NetworkPorts("tcp", 12.5e9, 1)), ("ll", "simple")),
        (replace(V100_CUBE, generation=Generation.TURING), ("ll", "simple")),
    ],
)
def test_protocols_are_those_that_links_and_networks_allow(
    system: LibrarySystem, expected: tuple[str, ...]
) -> None:
    assert protocols(shapes("all_reduce", system)[0], system) == expected


@pytest.mark.parametrize(
    "request_",
    [
        {"floating_8_bit": True},
        {"multicast_off": True},
        {"version": (2, 16)},
        {"protocol": "ll"},
    ],
)
def test_multicast_is_not_for_every_request(request_: dict[str, object]) -> None:
    request = replace(LibraryRequest("all_reduce", (1 << 34,)), **request_)  # type: ignore[arg-type]
    assert predict_library(H100, request)[0].algorithm != "nvls"
    assert (
        predict_library(H100, LibraryRequest("all_reduce", (1 << 34,)))[0].algorithm == "nvls"
    )


@pytest.mark.parametrize(
    ("system", "request_", "beginning"),
    [
        (A100, LibraryRequest("all_reduce", (8,)), "latency: "),
        (A100, LibraryRequest("all_reduce", (1 << 36,)), "nvswitch: 100%"),
        (clustered(A100, 4, HDR), LibraryRequest("all_reduce", (1 << 34,)), "network: 9"),
        (
            clustered(B200, 64),
            LibraryRequest("all_reduce", (1 << 24,), algorithm="tree"),
            "filling the pipeline: ",
        ),
        (
            clustered(A100, 8, replace(HDR, word="efa")),
            LibraryRequest("all_reduce", (1 << 24,), algorithm="tree"),
            "filling the pipeline and waiting for receivers' answers: ",
        ),
    ],
)
def test_the_costliest_term_is_named(
    system: LibrarySystem, request_: LibraryRequest, beginning: str
) -> None:
    (point,) = predict_library(system, request_)
    assert point.bottleneck.startswith(beginning)


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (
            clustered(H100, 2),
            f"1.07 GB through the NICs beside one GPU at {50 * TABLE['efficiency.fabric']:.4g} GB/s",
        ),
        (
            MI300X,
            f"1.07 GB through the links of one pair of GPUs at {64 * TABLE['efficiency.xgmi']:.4g} GB/s",
        ),
        (
            A100,
            f"1.07 GB through each GPU's links at {300 * TABLE['efficiency.nvlink']:.4g} GB/s",
        ),
        (
            replace(clustered(H100, 2), gpu_port_bytes_per_second=31.5e9),
            "1.07 GB through one GPU's port towards NICs at 31.5 GB/s",
        ),
    ],
)
def test_an_explanation_names_the_links_that_carry_the_bytes(
    system: LibrarySystem, message: str
) -> None:
    (point,) = predict_library(system, LibraryRequest("send_recv", (1 << 30,)))
    assert message in point.bottleneck


@given(systems(), st.sampled_from(COLLECTIVES))
def test_what_is_kept_busy_makes_up_the_time(system: LibrarySystem, collective: str) -> None:
    for size in (8, 1 << 14, 1 << 20, 1 << 30):
        request = LibraryRequest(collective, (size,))
        waiting, inside, network = busy_seconds(system, request)
        (point,) = predict_library(system, request)
        assert waiting + max(inside, network) == pytest.approx(point.seconds)


DOMAIN = Domain(
    (
        (("collective", "all_reduce"), 16),
        (("collective", "all_to_all"), 1),
        (("collective across", "all_reduce on ib"), 16),
        (("collective inside", "all_reduce on nvswitch"), 1),
        (("collective inside", "all_to_all on nvswitch"), 1),
        (("generation", "hopper"), 16),
        (("intra", "nvswitch"), 16),
        (("network", "ib"), 16),
    ),
    (("nvswitch", 8),),
    1 << 34,
)
LEARNED = constants_of({}, "a test", DOMAIN)
REQUEST = LibraryRequest("all_reduce", (1 << 20,))


ALL_TO_ALL = LibraryRequest("all_to_all", (8,))
TWO_NODES = (("collective across", "all_to_all on ib"), 2)
SEEN_ON_TWO = constants_of(
    {}, "a test", replace(DOMAIN, most_nodes=(*DOMAIN.most_nodes, TWO_NODES))
)
ON_TCP = clustered(A100, 2, NetworkPorts("tcp", 3e9, 1))
ON_TCPXO = clustered(H100, 3, NetworkPorts("tcpxo", 25e9, 8))
ON_ROCE = clustered(MI300X, 2, NetworkPorts("roce", 50e9, 8))
XGMI = "no published all_gather on xgmi-mesh within one node among the data"


@pytest.mark.parametrize(
    ("system", "request_", "learned", "reason"),
    [
        (H100, REQUEST, LEARNED, ""),
        (clustered(H100, 16), REQUEST, LEARNED, ""),
        (H100, ALL_TO_ALL, LEARNED, ""),
        (H100, REQUEST, shipped(), ""),
        (ON_ROCE, REQUEST, shipped(), ""),
        (
            replace(H100, generation=Generation.UNKNOWN),
            REQUEST,
            LEARNED,
            "the generation of the GPUs is not known",
        ),
        (A100, REQUEST, LEARNED, "no published generation ampere among the data"),
        (
            H100,
            LibraryRequest("gather", (8,)),
            LEARNED,
            "no published collective gather among the data",
        ),
        (clustered(H100, 17), REQUEST, LEARNED, "17 nodes on ib; learned on up to 16"),
        (
            replace(H100, ranks_per_node=72),
            REQUEST,
            LEARNED,
            "72 GPUs a node; learned on up to 8",
        ),
        (
            H100,
            LibraryRequest("all_reduce", (1 << 37,)),
            LEARNED,
            "no published size above 16 GiB among the data",
        ),
        # Seen apart, not together; on several nodes only; on fewer nodes.
        (
            clustered(H100, 2),
            ALL_TO_ALL,
            LEARNED,
            "no published all_to_all on ib among the data",
        ),
        (ON_TCP, ALL_TO_ALL, shipped(), "no published all_to_all on tcp among the data"),
        (MI300X, LibraryRequest("all_gather", (8,)), shipped(), XGMI),
        (
            ON_TCPXO,
            LibraryRequest("all_gather", (8,)),
            shipped(),
            "3 nodes on tcpxo; learned on up to 2",
        ),
        (
            clustered(H100, 4),
            ALL_TO_ALL,
            SEEN_ON_TWO,
            "all_to_all on ib over 4 nodes; learned on up to 2",
        ),
    ],
)
def test_what_lies_outside_of_what_was_learned_on_says_in_which_way(
    system: LibrarySystem, request_: LibraryRequest, learned: LibraryConstants, reason: str
) -> None:
    assert reasons(system, request_, learned)[0] == reason


def test_several_reasons_are_all_given_and_where_nothing_was_learned_everything_is_extrapolated() -> (
    None
):
    found = reasons(MI300X, REQUEST, LEARNED)[0]
    assert "no published generation cdna3" in found
    assert "no published intra xgmi-mesh" in found
    assert "nothing was learned" in reasons(H100, REQUEST, STARTS)[0]


SYSTEMS = [
    clustered(H100, 2),
    clustered(MI300X, 2),
    clustered(H100, 2, replace(NDR, per_node=4)),
    replace(clustered(A100, 4), ranks_per_node=4),
    *(H100, MI300X, V100_CUBE, B200, lone(4)),
]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: f"{system.name}-{system.nodes}")
def test_as_a_matrix_of_equal_amounts_it_is_the_even_one(system: LibrarySystem) -> None:
    (even,) = shapes("all_to_all_v", system)
    (found,) = shapes("all_to_all_v", system, traffic=str([[1] * system.ranks] * system.ranks))
    assert (found.port_bytes, found.node_bytes) == pytest.approx(
        (even.port_bytes, even.node_bytes)
    )


@given(st.lists(st.lists(st.integers(0, 9), min_size=8, max_size=8), min_size=8, max_size=8))
def test_no_rank_moves_less_than_it_must_and_the_busiest_counts(rows: list[list[int]]) -> None:
    amounts = np.array(rows, dtype=float)
    if not amounts.any():
        return
    loads = uneven_loads(H100, str(rows))
    amounts /= amounts.sum(axis=1).max()
    np.fill_diagonal(amounts, 0)
    busiest = max(amounts.sum(axis=0).max(), amounts.sum(axis=1).max())
    assert loads.rank == pytest.approx(busiest)
    assert loads.inside == pytest.approx(busiest)
    assert loads.node == loads.nic == 0


def test_a_matrix_too_large_to_look_at_is_refused() -> None:
    with pytest.raises(MachineError, match="at most"):
        uneven_loads(clustered(H100, MOST_RANKS), "hot:0.5")
