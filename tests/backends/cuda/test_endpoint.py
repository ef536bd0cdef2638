"""The whole way of the cuda backend but the GPU: CUDA is emulated, kernels and their arguments are real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cuda.context import NotCoResident, WorkMemory
from ccbench.backends.cuda.endpoint import CollectiveFailed
from ccbench.backends.cuda.single_process import CudaEndpoint
from ccbench.backends.endpoint import DeviceTimed
from ccbench.backends.kernels.layout import ZEROED
from ccbench.errors import BackendUnavailable
from ccbench.machine.accelerators import opened as nvidia_driver
from ccbench.machine.readings import readings_from_json
from ccbench.machine.telemetry import DeviceWatch
from ccbench.runner.measure import measure
from tests.backends.measuring import (
    SAMPLING,
    compares_on_the_device,
    launch_without_last_rank,
    launched,
    spoilt,
    wrong_elements,
)
from tests.machine.nvml_double import Gpu, Nvml

from .cases import POINTS, Opened, case_of, close_clean
from .emulated import LAUNCH_SECONDS, Item


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


def test_a_wrong_result_is_seen_and_names_the_rank(opened: Opened) -> None:
    endpoint, runtime = opened(2, devices=1)
    case = case_of("all_reduce", "ring", 2)
    launched(endpoint, case)
    layout = endpoint._layout[1]
    at = endpoint.contexts[0].buffers[1].address + layout.output_offset
    runtime.memsetAsync(at + 40, 0, 8, 0)
    assert spoilt(endpoint) == (1, 2, 10)


def test_samples_are_the_devices_time_and_the_hosts_is_told(opened: Opened) -> None:
    endpoint, _ = opened(2)
    assert isinstance(endpoint, DeviceTimed)
    case = case_of("all_reduce", "ring", 2)
    endpoint.prepare(case)
    result = measure(endpoint, case, SAMPLING, 1)
    assert np.allclose(np.diff(result.stamps, axis=2) / result.launches, LAUNCH_SECONDS)
    assert endpoint.remark().startswith("device time (events); launch and wait take the host ")


@pytest.mark.parametrize("mode", ["streaming", "isolated"])
def test_of_several_devices_the_slowest_counts(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Also of a launch alone: a tree's root ends before its leaves, and started with them."""
    endpoint, _ = opened(3, devices=3)
    endpoint.prepare(case_of("all_reduce", "tree", 3, mode=mode))
    endpoint.refill(1)
    for group, seconds in zip(endpoint.contexts, (2e-3, 5e-3, 3e-3), strict=True):
        monkeypatch.setattr(group, "elapsed_seconds", lambda seconds=seconds: seconds)
    endpoint.launch(1)
    assert endpoint.device_seconds() == 5e-3


def test_cold_launches_find_other_memory_in_every_cache(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, runtime = opened(2, devices=2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, mode="cold"))
    endpoint.refill(1)
    items_done: list[tuple[str, int, tuple[Any, ...]]] = []
    do, launch = runtime.do, runtime.launch

    def done(item: Item) -> None:
        items_done.append((item.kind, item.device, item.details))
        do(item)

    def launched(batch: Sequence[Item]) -> None:
        items_done.extend(("kernel", item.device, ()) for item in batch)
        launch(batch)

    monkeypatch.setattr(runtime, "do", done)
    monkeypatch.setattr(runtime, "launch", launched)
    endpoint.launch(3)
    for number, group in enumerate(endpoint.contexts):
        kinds = [kind for kind, device, _ in items_done if device == number and kind != "copy"]
        # The second kernel reads what was set, so that the launch has nothing of it to write back.
        assert kinds == 3 * ["set", "kernel", "blocking", "event", "kernel", "event"]
        written = [
            details
            for kind, device, details in items_done
            if kind == "set" and device == number
        ]
        assert all(size >= 2 * group.facts.l2_bytes for _, _, size in written)
        assert not {address for address, _, _ in written} & {
            held.address for held in group.buffers.values()
        }


@pytest.mark.parametrize(
    "look", [lambda endpoint: endpoint.begin_sample(0), lambda endpoint: endpoint.check(1, 1)]
)
def test_a_wait_that_was_given_up_is_told_before_any_result(
    opened: Opened, look: Callable[[CudaEndpoint], object]
) -> None:
    """Else what the launch left unwritten would pass for a kernel's mistake."""
    endpoint, _ = opened(2, devices=2, limit_seconds=0.001)
    endpoint.prepare(case_of("all_reduce", "ring", 2))
    endpoint.refill(1)
    endpoint.contexts[1].launch()  # rank 0 never comes
    with pytest.raises(
        CollectiveFailed, match=r"rank 1, channel 0: waited too long for rank 0 to send"
    ):
        look(endpoint)


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


def test_blocks_that_cannot_all_run_are_refused_before_the_launch(opened: Opened) -> None:
    endpoint, runtime = opened(4, processors=3)
    with pytest.raises(
        NotCoResident, match=r"4 ranks on GPU 0 .* multiprocessors run 3 of them at once"
    ):
        endpoint.prepare(case_of("all_reduce", "ring", 4))
    assert not runtime.runs


def test_no_more_channels_are_taken_than_there_is_room_for(opened: Opened) -> None:
    endpoint, _ = opened(4, processors=11)
    endpoint.prepare(case_of("all_reduce", "ring", 4, count=1 << 20))
    (group,) = endpoint.contexts
    assert group._arguments["channels"][0] == 2
    assert [group.channels(group.loaded, requested) for requested in (1, 2, 3)] == [1, 2, 2]


def test_a_graph_holds_every_launch_and_goes_with_its_case(opened: Opened) -> None:
    endpoint, runtime = opened(2, devices=2)
    launched(endpoint, case_of("all_reduce", "ring", 2, mode="graph"), 70)
    assert sorted(len(launches) for launches in runtime.graphs.values()) == [6, 6, 32, 32]
    endpoint.finish()
    assert not runtime.graphs


@pytest.mark.thinned(3)
@pytest.mark.parametrize("mode", ["streaming", "graph"])
@pytest.mark.parametrize("launches", [1, 32, 70])
def test_as_many_launches_run_as_a_sample_is_divided_by(
    opened: Opened, mode: str, launches: int
) -> None:
    endpoint, runtime = opened(2, devices=2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, mode=mode))
    endpoint.refill(1)
    before = sum(runtime.runs)
    endpoint.launch(launches)
    assert sum(runtime.runs) - before == 2 * launches


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


def test_without_peer_access_and_without_the_hosts_memory_nothing_can_run(
    opened: Opened,
) -> None:
    endpoint, _ = opened(2, devices=2, peers=False, maps_host_memory=False)
    with pytest.raises(CannotRun, match="cannot address pinned memory of the host"):
        endpoint.prepare(case_of("all_reduce", "ring", 2))


def test_no_device_is_one_sentence(opened: Opened) -> None:
    with pytest.raises(BackendUnavailable, match="the driver shows no GPU to this process"):
        opened(2, devices=0)


def test_too_large_a_case_is_out_of_memory(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    endpoint.prepare(case_of("all_reduce", "ring", 2))
    runtime.memory_bytes = 4 << 20
    with pytest.raises(OutOfMemory, match="the device has no 16777216 bytes left"):
        endpoint.prepare(case_of("all_reduce", "ring", 2, count=2 << 20))
    runtime.memory_bytes = 1 << 40
    assert wrong_elements(endpoint, case_of("all_reduce", "ring", 2)) == 0


def test_every_flag_and_counter_is_zero_before_the_first_launch(opened: Opened) -> None:
    endpoint, _ = opened(2)
    communicator = WorkMemory(endpoint.contexts, endpoint.areas)
    zeroed = np.ones(communicator.own.zeroed_bytes, np.uint8)
    endpoint.contexts[0].read(communicator.device[1], zeroed)
    assert not zeroed.any()
    assert communicator.own.zeroed_bytes >= endpoint.areas.sizes()["flags"]
    assert all(
        communicator.own.offsets[name] < communicator.own.zeroed_bytes for name in ZEROED
    )


def test_devices_are_looked_at_before_and_after_a_case(opened: Opened) -> None:
    endpoint, _ = opened(2, devices=2)
    gpus = [Gpu(bus_id=f"00000000:0{number}:00.0") for number in range(2)]
    endpoint.devices = DeviceWatch(
        endpoint.devices.bus_ids, driver=lambda: nvidia_driver(Nvml(gpus))
    )
    case = case_of("all_reduce", "ring", 2, 5003)
    endpoint.prepare(case)
    poison = endpoint.poison

    def poison_while_memory_fails() -> None:
        gpus[1].uncorrected += 1
        poison()

    endpoint.poison = poison_while_memory_fails  # type: ignore[method-assign]  # between the two looks
    measure(endpoint, case, SAMPLING, 1)
    facts = endpoint.facts()
    before, after = readings_from_json(facts.devices)
    assert (len(before), len(after)) == (2, 2)
    assert [reading.sm_clock_highest_mhz for reading in before] == [
        345,
        345,
    ]  # they were made to work before
    assert facts.flags == ("ecc_errors",)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("groups", ["", "[[0, 1], [2, 3]]"])
def test_what_the_first_ranks_got_of_a_case_too_large_is_there_for_cases_that_fit(
    opened: Opened, groups: str
) -> None:
    endpoint, runtime = opened(4)
    assert wrong_elements(endpoint, case_of("all_reduce", "ring", 4, 100, groups=groups)) == 0
    endpoint.release_buffers()
    held = sum(memory.nbytes for memory in runtime.allocated.values())
    runtime.memory_bytes = held + (46 << 20)
    with pytest.raises(OutOfMemory):  # 16 MiB a rank: there is room for two of four
        endpoint.prepare(case_of("all_reduce", "ring", 4, 2 << 20, groups=groups))
    assert (
        wrong_elements(endpoint, case_of("all_reduce", "ring", 4, 1 << 20, groups=groups)) == 0
    )


def test_what_earlier_cases_left_makes_room_for_one_that_fits_without_it(
    opened: Opened,
) -> None:
    endpoint, runtime = opened(4)
    for groups, count in (("", 100), ("[[0, 1], [2, 3]]", 1 << 20)):
        assert (
            wrong_elements(endpoint, case_of("all_reduce", "ring", 4, count, groups=groups))
            == 0
        )
    runtime.memory_bytes = sum(memory.nbytes for memory in runtime.allocated.values()) + (
        28 << 20
    )
    assert wrong_elements(endpoint, case_of("all_reduce", "ring", 4, 1 << 20)) == 0


def test_later_rounds_are_compared_on_the_device_and_a_wrong_one_is_seen(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = opened(3, devices=2)
    compares_on_the_device(endpoint, case_of("all_gather", "ring", 3, 70_003), monkeypatch)
