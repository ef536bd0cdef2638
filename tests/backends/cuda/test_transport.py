"""``transport: host``: which memory each kernel is handed, and that results are right with that alone."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cuda.context import (
    WRITTEN_BY_PEERS,
    host_areas,
    peer_access_of,
)
from ccbench.backends.kernels.layout import work_areas
from ccbench.backends.kernels.sources import entries
from tests.backends.measuring import wrong_elements

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
