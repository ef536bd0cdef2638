"""The whole way of the cuda backend but the GPU: CUDA is emulated, kernels and their arguments are real."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ccbench.backends.control_block import Control
from ccbench.backends.cuda.endpoint import CollectiveFailed
from ccbench.backends.cuda.ipc import Board, IpcEndpoint
from ccbench.errors import BackendUnavailable
from ccbench.topology.files import load_catalog
from ccbench.topology.graph import DeviceKind
from tests.backends.measuring import (
    compares_on_the_device,
    launch_without_last_rank,
    wrong_elements,
)

from .cases import POINTS, Opened, case_of, close_clean
from .streams import Stream, Task


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("collective", "algorithm"), POINTS)
@pytest.mark.parametrize("devices", [1, 3])
def test_every_kernel_gives_the_right_result_on_one_device_and_on_several(
    opened: Opened, collective: str, algorithm: str, devices: int
) -> None:
    endpoint, runtime = opened(3, devices=devices)
    assert wrong_elements(endpoint, case_of(collective, algorithm, 3)) == 0
    assert endpoint.flags == (("loopback",) if devices == 1 else ())
    assert len(endpoint.contexts) == devices
    close_clean(endpoint, runtime)


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("collective", "changes"),
    [
        *(
            (name, {"count": 101, "in_place": True})  # blocks lie where they belong
            for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
        ),
        *(("all_reduce", {"mode": mode}) for mode in ("graph", "cold", "isolated")),
        ("all_reduce", {"dtype": "float8_e5m2", "op": "max"}),
        ("all_reduce", {"dtype": "uint32", "op": "prod"}),
        ("all_reduce", {"count": 0}),
        ("all_reduce", {"count": 200_000, "dtype": "bfloat16"}),
    ],
)
def test_modes_types_and_placements_are_right(
    opened: Opened, collective: str, changes: dict[str, Any]
) -> None:
    endpoint, _ = opened(4, devices=2)
    assert wrong_elements(endpoint, case_of(collective, "ring", 4, **changes)) == 0


def test_cases_of_other_sizes_follow_each_other_on_one_team(opened: Opened) -> None:
    endpoint, _ = opened(2, devices=2)
    for count in (1, 20_000, 7, 0):
        for collective in ("all_gather", "all_reduce", "barrier"):
            algorithm = "barrier" if collective == "barrier" else "ring"
            assert wrong_elements(endpoint, case_of(collective, algorithm, 2, count)) == 0


def test_cold_launches_find_other_memory_in_every_cache(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = opened(2, devices=2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, mode="cold"))
    endpoint.refill(1)
    tasks: list[tuple[int, Task]] = []
    add = Stream.add

    def added(stream: Stream, task: Task, now: float) -> None:
        tasks.append((stream.device, task))
        add(stream, task, now)

    monkeypatch.setattr(Stream, "add", added)
    endpoint.launch(3)
    for number, group in enumerate(endpoint.contexts):
        mine = [task for device, task in tasks if device == number and task.kind != "copy"]
        # The second kernel reads what was set, so that the launch has nothing of it to write back.
        assert [task.kind for task in mine] == 3 * [
            *("set", "kernel", "blocking", "event", "kernel", "event")
        ]
        written = [task.details for task in mine if task.kind == "set"]
        assert all(size >= 2 * group.facts.l2_bytes for _, size in written)
        assert not {address for address, _ in written} & {
            held.address for held in group.buffers.values()
        }


@pytest.mark.parametrize("transport", ["default", "host"])
def test_a_wait_that_is_given_up_names_rank_and_peer_and_leaves_clean_memory(
    opened: Opened, transport: str
) -> None:
    endpoint, _ = opened(2, devices=2, peers=transport == "default", limit_seconds=0.001)
    case = case_of("all_reduce", "ring", 2, transport=transport)
    endpoint.prepare(case)
    endpoint.contexts[0].launch()  # rank 1 never comes
    with pytest.raises(
        CollectiveFailed, match=r"rank 0, channel 0: waited too long for rank 1 to send"
    ):
        endpoint.begin_sample(0)
    assert endpoint.communicator.errors() == []
    assert wrong_elements(endpoint, case) == 0


def test_a_rank_that_never_comes_ends_the_others_by_their_limit(opened: Opened) -> None:
    endpoint, _ = opened(3, limit_seconds=0.001)
    case = case_of("all_reduce", "ring", 3)
    endpoint.prepare(case)
    launch_without_last_rank(endpoint.contexts[0])
    with pytest.raises(
        CollectiveFailed, match=r"rank \d, channel 0: waited too long for rank \d to send"
    ):
        endpoint.begin_sample(0)
    assert wrong_elements(endpoint, case) == 0


@pytest.mark.parametrize("lacks", [{"peers": False}, {"most_peers": 0}])
@pytest.mark.parametrize(
    ("groups", "way"), [("", "host"), ("[[0, 2], [1, 3]]", "host"), ("[[0, 1], [2, 3]]", "")]
)
def test_devices_without_peer_access_go_through_the_hosts_memory_and_the_row_says_so(
    opened: Opened, groups: str, way: str, lacks: dict[str, Any]
) -> None:
    endpoint, _ = opened(4, devices=2, **lacks)  # two ranks on each
    case = case_of("all_reduce", "mesh_two_shot", 4, groups=groups)
    assert wrong_elements(endpoint, case) == 0
    assert endpoint.facts().protocol_used == way
    assert ("no peer access" in endpoint.remark()) == bool(way)


@pytest.mark.parametrize(
    ("machine", "algorithm"), [("hgx-h100", "mesh_two_shot"), ("rtx-pcie-p2p", "tree")]
)
def test_default_goes_by_the_links_between_the_gpus_of_the_case(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, machine: str, algorithm: str
) -> None:
    topology = load_catalog(machine)
    gpus = [
        replace(gpu, bus_id=f"0000:0{number}:00.0") for number, gpu in enumerate(topology.gpus)
    ]
    found = replace(topology, devices=(*gpus, *topology.of_kind(DeviceKind.NVSWITCH)))
    monkeypatch.setattr("ccbench.machine.detection.detect", lambda: found)
    endpoint, _ = opened(4, devices=4)
    case = case_of("all_reduce", "default", 4, 16 << 10)
    assert endpoint.prepare(case) == algorithm
    assert endpoint.prepare(replace(case, transport="host")) == "tree"
    of_a_process = IpcEndpoint(0, Control(4, 64), Board(4), endpoint.contexts[0].cuda)
    assert of_a_process.device_facts == endpoint.device_facts  # so that it takes the same


def test_no_device_is_one_sentence(opened: Opened) -> None:
    with pytest.raises(BackendUnavailable, match="the driver shows no GPU to this process"):
        opened(2, devices=0)


def test_later_rounds_are_compared_on_the_device_and_a_wrong_one_is_seen(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = opened(3, devices=2)
    compares_on_the_device(endpoint, case_of("all_gather", "ring", 3, 70_003), monkeypatch)
