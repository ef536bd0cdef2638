from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.model.library.constants import STARTS, Domain, LibraryConstants, constants_of, shipped
from ccbench.model.library.predictor import family, predict_library, reasons
from ccbench.model.library.system import Generation, LibraryRequest, LibrarySystem, NetworkPorts
from tests.model.library.systems import A100, H100, MI300X, clustered

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


def why(system: LibrarySystem, request: LibraryRequest = REQUEST, learned: LibraryConstants = LEARNED) -> str:
    return reasons(system, request, learned)[0]


def test_what_was_learned_on_is_not_extrapolated() -> None:
    assert why(H100) == why(clustered(H100, 16)) == ""


@pytest.mark.parametrize(
    ("system", "request_", "reason"),
    [
        (replace(H100, generation=Generation.UNKNOWN), REQUEST, "the generation of the GPUs is not known"),
        (A100, REQUEST, "no generation ampere was learned on"),
        (H100, LibraryRequest("gather", (8,)), "no collective gather was learned on"),
        (clustered(H100, 17), REQUEST, "17 nodes on ib; learned on up to 16"),
        (replace(H100, ranks_per_node=72), REQUEST, "72 GPUs a node; learned on up to 8"),
        (H100, LibraryRequest("all_reduce", (1 << 37,)), "no size above 16 GiB was learned on"),
    ],
)
def test_what_lies_outside_says_in_which_way(
    system: LibrarySystem, request_: LibraryRequest, reason: str
) -> None:
    assert why(system, request_) == reason


def test_several_reasons_are_all_given() -> None:
    found = why(MI300X)
    assert "no generation cdna3" in found
    assert "no intra xgmi-mesh" in found


def test_where_nothing_was_learned_everything_is_extrapolated() -> None:
    assert "nothing was learned" in why(H100, learned=STARTS)


def test_points_carry_the_reason_size_by_size() -> None:
    points = predict_library(H100, LibraryRequest("all_reduce", (8, 1 << 40)), LEARNED)
    assert [bool(point.extrapolated) for point in points] == [False, True]


def test_generations_of_one_network_are_one_family() -> None:
    assert {family(word) for word in ("ib", "ib-hdr", "ib-ndr")} == {"ib"}


def test_the_shipped_constants_know_what_they_were_learned_on() -> None:
    assert why(H100, learned=shipped()) == ""
    assert "nodes on ib; learned on up to" in why(clustered(H100, 10_000), learned=shipped())


def test_a_collective_and_a_network_seen_apart_were_not_seen_together() -> None:
    request = LibraryRequest("all_to_all", (8,))
    assert why(H100, request) == ""
    assert why(clustered(H100, 2), request) == "no all_to_all on ib was learned on"
    tcp = clustered(A100, 2, NetworkPorts("tcp", 3e9, 1))
    assert why(tcp, request, shipped()) == "no all_to_all on tcp was learned on"


def test_what_was_seen_on_several_nodes_only_is_extrapolated_to_one() -> None:
    assert why(MI300X, learned=shipped()) == "no all_reduce on xgmi-mesh within one node was learned on"
    assert why(clustered(MI300X, 2, NetworkPorts("roce", 50e9, 8)), learned=shipped()) == ""


def test_a_collective_on_more_nodes_than_it_was_seen_on_says_so() -> None:
    said = why(
        clustered(H100, 3, NetworkPorts("tcpxo", 25e9, 8)), LibraryRequest("all_gather", (8,)), shipped()
    )
    assert said == "3 nodes on tcpxo; learned on up to 2"
    domain = replace(DOMAIN, most_nodes=(*DOMAIN.most_nodes, (("collective across", "all_to_all on ib"), 2)))
    found = why(clustered(H100, 4), LibraryRequest("all_to_all", (8,)), constants_of({}, "a test", domain))
    assert found == "all_to_all on ib over 4 nodes; learned on up to 2"
