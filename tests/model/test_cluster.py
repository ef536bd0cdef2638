"""Clusters that a model can price."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ccbench.errors import MachineError
from ccbench.model.cluster import (
    ClusterPoint,
    bound_seconds,
    cluster_of,
    library_points,
    open_cluster,
    schedule_points,
    visible_part,
)
from ccbench.model.library import LibraryRequest
from ccbench.topology.files import catalog_names, load_catalog
from tests.model.library.systems import COLLECTIVES

SIZES = tuple(2**power for power in range(3, 35))
PRICED = [name for name in catalog_names() if load_catalog(name).gpus]


@pytest.mark.thinned(18)
@pytest.mark.parametrize("name", PRICED)
def test_every_machine_of_the_catalog_is_priced_at_or_above_its_bound(name: str) -> None:
    alone = len(load_catalog(name).gpus) == 1
    cluster = open_cluster(name, 2, "roce-200x1") if alone else open_cluster(name)
    assert cluster.ranks >= 2
    points = [
        point
        for collective in COLLECTIVES
        for point in library_points(cluster, LibraryRequest(collective, SIZES))
    ]
    for algorithm in ("ring", "two_shot"):
        points += schedule_points(cluster, "all_reduce", algorithm, SIZES)
    for point in points:
        assert 0 <= point.prediction.bound_seconds <= point.prediction.predicted_seconds
        assert point.prediction.bottleneck


@pytest.mark.parametrize("shape", ["", "/rails", "/fat-tree:64x50x32:2"])
def test_a_cluster_too_large_for_a_graph_has_bounds_and_the_librarys_price(shape: str) -> None:
    cluster = open_cluster("hgx-h100", 12_800, f"ib-ndr-400x8{shape}")
    assert not cluster.has_graph
    sizes = (1 << 20, 1 << 30)
    for collective in COLLECTIVES:
        for point in library_points(cluster, LibraryRequest(collective, sizes)):
            assert 0 < point.prediction.bound_seconds < point.prediction.predicted_seconds
    (seconds,) = bound_seconds(cluster, "all_gather", sizes[1:])
    assert sizes[1] / seconds == pytest.approx(400e9, rel=1e-3)
    with pytest.raises(MachineError, match="root: 102400 is not a rank"):
        bound_seconds(cluster, "broadcast", sizes, root=102_400)
    with pytest.raises(MachineError, match=r"^12800 x .* become a graph; .*--model nccl"):
        schedule_points(cluster, "all_reduce", "ring", sizes)


@pytest.mark.parametrize("network", ["ib-ndr-400x8", "ib-ndr-400x4", "efa-100x32/rails"])
def test_bounds_without_a_graph_are_those_by_the_cuts_of_the_graph(network: str) -> None:
    cluster = open_cluster("hgx-h100", 20, network)
    without = replace(cluster)
    vars(without)["has_graph"] = False
    for collective in COLLECTIVES:
        bounds = [bound_seconds(each, collective, (8, 1 << 30)) for each in (cluster, without)]
        assert bounds[0] == pytest.approx(bounds[1])


@pytest.fixture
def pasted(tmp_path: Path) -> Path:
    """Two GPUs below one switch, as ``nvidia-smi topo -m`` shows them."""
    file = tmp_path / "topo.txt"
    file.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-15\nGPU1\tPIX\t X \t0-15\n")
    return file


def test_intervals_reach_further_where_nothing_says_how_many_lanes_the_slots_have(
    pasted: Path,
) -> None:
    request = LibraryRequest("all_reduce", (8 << 10, 1 << 30))

    def priced(words: str) -> tuple[ClusterPoint, ...]:
        return library_points(open_cluster(f"{pasted}?gpu=L40S{words}"), request)

    unknown, sixteen, eight = (priced(words) for words in ("", "&pcie=4x16", "&pcie=4x8"))
    for one, fast, slow in zip(unknown, sixteen, eight, strict=True):
        own, wide, narrow = (point.prediction.interval for point in (one, fast, slow))
        assert own is not None
        assert wide is not None
        assert narrow is not None
        assert one.prediction.predicted_seconds == fast.prediction.predicted_seconds
        assert own.low_95_seconds == wide.low_95_seconds
        assert own.high_95_seconds == max(wide.high_95_seconds, narrow.high_95_seconds)
        assert "--pcie" in own.origin
        assert "--pcie" not in wide.origin


def test_intervals_of_geforce_cards_reach_as_far_as_without_peer_access(pasted: Path) -> None:
    request = LibraryRequest("all_reduce", (1 << 30,))
    cards = [
        library_points(open_cluster(f"{pasted}?gpu={model}&pcie=4x16"), request)[0].prediction
        for model in ("L40S", "RTX+4090")
    ]
    # What most boxes do is predicted.
    assert cards[1].predicted_seconds == cards[0].predicted_seconds
    certain, doubtful = (card.interval for card in cards)
    assert certain is not None
    assert doubtful is not None
    assert doubtful.high_80_seconds > 1.5 * certain.high_80_seconds
    assert "no peer access" in doubtful.origin
    assert "no peer access" not in certain.origin


@pytest.mark.parametrize(
    ("machine", "chosen", "names", "gigabytes"),
    [
        ("a100-pcie-bridge", "0,1", "gpu0 gpu1", 236),
        ("a100-pcie-bridge", "2, 0", "gpu2 gpu0", 22),
        ("a100-pcie-bridge", "GPU-1a2b,GPU-3c4d", "", 0),
    ],
)
def test_the_gpus_that_are_visible_are_priced(
    monkeypatch: pytest.MonkeyPatch, machine: str, chosen: str, names: str, gigabytes: float
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    monkeypatch.setattr("ccbench.machine.detection.detect", lambda: load_catalog(machine))
    assert bool(visible_part(load_catalog(machine))[1]) is not bool(names)
    if names:
        cluster = open_cluster("detect")
        assert [gpu.name for gpu in cluster.node.gpus] == names.split()
        assert all("gpu4" not in (link.source, link.target) for link in cluster.node.links)
        (point,) = library_points(cluster, LibraryRequest("all_reduce", (1 << 28,)))
        rate = (1 << 28) / point.prediction.predicted_seconds / 1e9
        assert rate == pytest.approx(gigabytes, rel=0.1)


def test_visible_gpus_of_two_sockets_are_priced_across_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = []
    for chosen in ("0,1,2,3", "0,1,4,5"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        cluster = cluster_of(visible_part(load_catalog("pcie4-x16"))[0])
        (point,) = schedule_points(cluster, "all_reduce", "ring", [8])
        seconds.append(point.prediction.predicted_seconds)
    assert seconds[0] < seconds[1]


@pytest.mark.parametrize(
    ("machine", "ranks", "network", "used"),
    [
        ("hgx-h100", 8, "slingshot-200x2", 2),
        ("dgx-a100", 8, "ib-hdr-200x4", 4),
        ("gh200x4", 2, "slingshot-200x4", 1),
        ("hgx-h100", 16, "ib-ndr-400x8", 8),
    ],
)
def test_nics_of_a_node_are_all_there_and_only_those_beside_other_gpus_are_not_used(
    machine: str, ranks: int, network: str, used: int
) -> None:
    cluster = open_cluster(machine, 2, network, ranks)
    assert cluster.system.network is not None
    assert cluster.system.network.per_node == used
    assert network in cluster.name, "what was typed"
    assert ("of its NICs" in cluster.name) == (cluster.stated is not None)
    # The bound holds whichever NICs are used.
    whole = replace(cluster, network=cluster.stated or cluster.network, stated=None)
    size = [2**30]
    assert bound_seconds(cluster, "all_gather", size) == bound_seconds(
        whole, "all_gather", size
    )


def test_a_machine_without_gpus_is_refused() -> None:
    with pytest.raises(MachineError, match="no GPU"):
        cluster_of(load_catalog("cpu-shared-memory"))


@given(
    machine=some.sampled_from(PRICED),
    nodes=some.integers(1, 5),
    gigabits=some.sampled_from([25, 100, 400]),
    nics=some.integers(1, 9),
    collective=some.sampled_from(
        ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
    ),
)
def test_predictions_never_undercut_bounds_and_grow_with_size(
    machine: str, nodes: int, gigabits: int, nics: int, collective: str
) -> None:
    cluster = open_cluster(machine, nodes, f"roce-{gigabits}x{nics}")
    points = library_points(cluster, LibraryRequest(collective, SIZES))
    seconds = np.array([point.prediction.predicted_seconds for point in points])
    assert (seconds >= [point.prediction.bound_seconds for point in points]).all()
    assert (np.diff(seconds) >= -1e-12).all()


def points_of_some(
    machine: str, nodes: int, network: str, ranks: int, collective: str
) -> tuple[ClusterPoint, ...]:
    """Of the first GPUs of each node; none where these are not joined, as the first four of some meshes."""
    try:
        return library_points(
            open_cluster(machine, nodes, network, ranks), LibraryRequest(collective, SIZES)
        )
    except MachineError as error:
        if "no link that joins" not in str(error):
            raise
        return ()


@pytest.mark.exhaustive
def test_ten_thousand_random_predictions_stand_above_their_bounds() -> None:
    draw = np.random.default_rng(20)
    cases, below = 0, []
    while cases < 10_000:
        name = str(draw.choice(PRICED))
        nodes = int(draw.choice([1, 2, 3, 4, 8, 16]))
        kind = str(draw.choice(["roce", "ib-ndr", "efa", "tcp"]))
        network = f"{kind}-{int(draw.choice([25, 100, 200, 400]))}x{int(draw.integers(1, 17))}"
        collective = str(draw.choice(COLLECTIVES))
        gpus = len(load_catalog(name).gpus)
        nodes = max(nodes, 2) if gpus == 1 else nodes
        ranks = nodes * int(draw.integers(1 if nodes > 1 else 2, gpus + 1))
        for point in points_of_some(name, nodes, network, ranks, collective):
            cases += 1
            if point.prediction.predicted_seconds < point.prediction.bound_seconds:
                below.append((name, nodes, network, ranks, collective, point.size_bytes))
    assert below == []
