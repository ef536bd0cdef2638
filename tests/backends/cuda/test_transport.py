"""``transport: host``: which memory each kernel is handed, and that results are right with that alone."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cuda.context import (
    BOTH,
    NOTHING,
    PEER_ACCESS,
    WRITTEN_BY_PEERS,
    allocation,
    host_areas,
    peer_access_of,
)
from ccbench.backends.kernels import abi
from ccbench.backends.kernels.layout import ALIGNMENT_BYTES, ZEROED, work_areas
from ccbench.backends.kernels.sources import KernelEntry, entries
from tests.backends.measuring import launched, spoilt, wrong_elements

from .cases import POINTS, Opened, case_of, close_clean
from .emulated import EmulatedRuntime

OWN = ("staging", "state", "errors")


def kinds(
    runtime: EmulatedRuntime, device: int, view: np.void, names: tuple[str, ...]
) -> set[str]:
    """What kinds of memory a device finds behind a view's addresses; 'none' where there is no address."""
    addresses = [int(view[name]) for name in names]
    return {
        runtime.kind_of(address, device, peers=False) if address else "none"
        for address in addresses
    }


def test_less_is_pinned_than_devices_would_take_unless_the_environment_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned = host_areas(work_areas(8, 1, 132))
    assert pinned.sizes()["fifo"] == 8 * (
        4 << 20
    )  # 4 MiB for each rank, as docs/kernels.md says
    monkeypatch.setenv("CCBENCH_KERNEL_SLOT_BYTES", "1 MiB")
    monkeypatch.setenv("CCBENCH_KERNEL_CHANNELS", "16")
    assert host_areas(work_areas(8, 1, 132)) == work_areas(8, 1, 132)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("collective", "algorithm"), POINTS)
def test_every_kernel_is_right_on_devices_that_see_only_pinned_memory_of_each_other(
    opened: Opened, collective: str, algorithm: str
) -> None:
    endpoint, runtime = opened(3, devices=3, peers=False)
    case = case_of(collective, algorithm, 3, transport="host")
    assert wrong_elements(endpoint, case) == 0
    assert endpoint.flags == ()
    assert runtime.views
    for device, name, views in runtime.views:
        if name == "compare":  # of one rank's output
            (view,) = views
            assert kinds(
                runtime, device, view, (*OWN, *WRITTEN_BY_PEERS, "input", "output")
            ) <= {
                "own",
                "none",
            }
            continue
        access = peer_access_of(entries()[name])
        for rank, view in enumerate(views):
            assert kinds(runtime, device, view, WRITTEN_BY_PEERS) == {"pinned"}
            assert kinds(runtime, device, view, OWN) == {"own" if rank == device else "none"}
            hidden = "own" if rank == device else "none"
            assert kinds(runtime, device, view, ("input",)) == {
                "pinned" if access.inputs else hidden
            }
            assert kinds(runtime, device, view, ("output",)) == {
                "pinned" if access.outputs else hidden
            }
    close_clean(endpoint, runtime)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("mode", ["streaming", "graph", "isolated", "cold"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "mesh_two_shot"),
        ("all_gather", "mesh"),
        ("reduce_scatter", "mesh"),
        ("broadcast", "mesh"),
        ("broadcast", "tree"),
        ("all_to_all", "mesh"),
    ],
)
def test_modes_and_placements_are_right(
    opened: Opened, collective: str, algorithm: str, in_place: bool, mode: str
) -> None:
    endpoint, _ = opened(4, devices=2, peers=False)
    case = case_of(collective, algorithm, 4, in_place=in_place, mode=mode, transport="host")
    assert wrong_elements(endpoint, case) == 0
    assert endpoint.flags == ("loopback",)


def test_the_only_device_stages_too_and_stays_loopback(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    assert wrong_elements(endpoint, case_of("all_reduce", "ring", 2, transport="host")) == 0
    assert endpoint.flags == ("loopback",)
    *_, views = (views for _, name, views in runtime.views if name != "compare")
    assert kinds(runtime, 0, views[1], (*WRITTEN_BY_PEERS, "output")) == {"pinned"}


def test_transports_take_turns_on_one_team(opened: Opened) -> None:
    endpoint, runtime = opened(2, devices=2)
    for count in (100, 40_000, 3):
        for transport in ("default", "host"):
            assert (
                wrong_elements(
                    endpoint, case_of("all_reduce", "ring", 2, count, transport=transport)
                )
                == 0
            )
    close_clean(endpoint, runtime)


def test_copies_are_part_of_the_devices_time(opened: Opened) -> None:
    endpoint, runtime = opened(2, devices=2, peers=False)
    endpoint.prepare(
        case_of("all_reduce", "mesh_two_shot", 2, transport="host", mode="isolated")
    )
    endpoint.refill(1)
    runtime.flush()
    group = endpoint.contexts[0]
    group.begin()
    group.launch()
    group.end()
    assert [item.kind for item in runtime.queue] == ["event", "copy", "kernel", "copy", "event"]
    runtime.queue.clear()


def test_what_a_launch_does_not_write_is_wrong_even_where_the_image_was_right(
    opened: Opened,
) -> None:
    endpoint, _ = opened(2, devices=2, peers=False)
    case = case_of("all_reduce", "ring", 2, transport="host")
    launched(endpoint, case)
    assert spoilt(endpoint) is None
    endpoint.poison()
    for group in endpoint.contexts:  # a kernel that does nothing
        group._arguments["count"] = 0
    endpoint.launch(1)
    assert spoilt(endpoint) == (0, 2 * case.count, 0)


def test_devices_that_cannot_see_the_host_are_refused(opened: Opened) -> None:
    endpoint, _ = opened(2, devices=2, maps_host_memory=False)
    with pytest.raises(CannotRun, match="GPU 0 cannot address pinned memory of the host"):
        endpoint.prepare(case_of("all_reduce", "ring", 2, transport="host"))
    assert wrong_elements(endpoint, case_of("all_reduce", "ring", 2)) == 0
    assert "times contain the host's launches" in endpoint.remark()


def test_too_little_memory_to_pin_is_out_of_memory_and_leaves_nothing(opened: Opened) -> None:
    endpoint, runtime = opened(2, devices=2, peers=False)
    runtime.failing["hostAlloc"] = [
        type("Full", (Exception,), {"status": 2})() for _ in range(2)
    ]
    with pytest.raises(OutOfMemory, match="bytes left that can be pinned"):
        endpoint.prepare(case_of("all_reduce", "ring", 2, transport="host"))
    assert not runtime.allocated
    assert wrong_elements(endpoint, case_of("all_reduce", "ring", 2, transport="host")) == 0


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("all_reduce", "ring"), ("reduce_scatter", "mesh"), ("broadcast", "tree")],
)
def test_a_kernel_that_reaches_further_than_the_table_says_is_found(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, collective: str, algorithm: str
) -> None:
    monkeypatch.setitem(PEER_ACCESS, f"{algorithm}_{collective}", NOTHING)
    endpoint, _ = opened(3, devices=3, peers=False)
    case = case_of(collective, algorithm, 3, transport="host")
    try:
        assert wrong_elements(endpoint, case) > 0  # it read where there was nothing
    except AssertionError as error:
        assert "wrote where its device was given no address" in str(error)  # noqa: PT017 - either will do


def test_every_entry_is_accounted_for_and_a_new_one_is_staged_whole() -> None:
    over_peers = {
        name for name, entry in entries().items() if entry.file not in ("ll.cu", "compare.cu")
    }
    assert over_peers == set(PEER_ACCESS)
    assert peer_access_of(KernelEntry("new_all_reduce", "new.cu", reduces=True)) == BOTH


@pytest.mark.parametrize("shared", [(), WRITTEN_BY_PEERS])
def test_what_must_be_zeroed_comes_first_and_areas_do_not_overlap(
    shared: tuple[str, ...],
) -> None:
    areas = work_areas(4, 1, 132)
    parts = [
        allocation(areas, [name for name in areas.sizes() if name not in shared]),
        allocation(areas, shared),
    ]
    assert {name for part in parts for name in part.offsets} == set(areas.sizes())
    assert {*areas.sizes(), "input", "output"} == set(abi.RANK_VIEW.names or ())
    for part in parts:
        ends = 0
        for name, offset in part.offsets.items():
            assert offset >= ends
            assert offset % ALIGNMENT_BYTES == 0
            ends = offset + areas.sizes()[name]
            assert (name in ZEROED) == (offset < part.zeroed_bytes)
        assert ends <= part.total_bytes
