from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from ccbench.analysis.causes import LEAST_EFFECT, RULES, Cause, Rule, causes_of
from ccbench.model.cluster import open_cluster
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.predictor import predict_library

MACHINES = {
    "hgx-h100": "ib-ndr-400x8",
    "hgx-b200": "roce-400x8",
    "dgx-a100": "ib-hdr-200x8",
    "gh200x4": "slingshot-200x4",
    "mi300x": "roce-400x8",
    "l40s": "roce-100x2",
}
LARGE = LibraryRequest("all_reduce", tuple(2**power for power in range(26, 33)))


def system(name: str, nodes: int = 2) -> LibrarySystem:
    return open_cluster(name, nodes, MACHINES[name] if nodes > 1 else None).system


def seconds(library: LibrarySystem) -> list[float]:
    return [point.seconds for point in predict_library(library, LARGE)]


def rule(word: str) -> Rule:
    (matching,) = [candidate for candidate in RULES if word in candidate.name]
    return matching


def names(causes: tuple[Cause, ...]) -> list[str]:
    return [cause.rule.name for cause in causes]


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("number", range(len(RULES)))
def test_a_system_that_is_as_a_rule_makes_it_has_that_rule_among_its_causes(
    name: str, nodes: int, number: int
) -> None:
    healthy, planted = system(name, nodes), RULES[number]
    sign = planted.shown_by.partition("|")[0].strip("^$") if planted.needs_sign else ""
    for worse in planted.systems(healthy):
        factor = 1 if planted.slows == (1.0, 1.0) else 1.2 * planted.slows[0]
        times = [factor * time for time in seconds(worse)]
        slower = [time / usual for time, usual in zip(times, seconds(healthy), strict=True)]
        if median(slower) > LEAST_EFFECT:
            assert planted.name in names(
                causes_of(healthy, LARGE, times, planted.slows_small, sign)
            )


@pytest.mark.parametrize("name", MACHINES)
def test_sockets_are_the_first_cause_of_the_rate_that_sockets_give(name: str) -> None:
    healthy = system(name)
    for over in rule("sockets").systems(healthy):
        times = seconds(over)
        if times[-1] > 3 * seconds(healthy)[-1]:
            assert causes_of(healthy, LARGE, times, small_are_slow=True)[0].rule is rule(
                "sockets"
            )


def test_the_rates_that_a_cause_gives_hold_what_was_measured() -> None:
    healthy = system("hgx-h100")
    (one_nic,) = rule("one NIC").systems(healthy)
    first = causes_of(healthy, LARGE, seconds(one_nic), small_are_slow=False)[0]
    assert first.rule is rule("one NIC")
    assert first.fastest_seconds == first.slowest_seconds == pytest.approx(seconds(one_nic)[-1])


@pytest.mark.parametrize(
    ("sign", "word"),
    [
        ("NCCL_IB_DISABLE=1", "sockets"),
        ("NCCL INFO Using network Socket", "sockets"),
        ("NCCL_IB_HCA=mlx5_3", "one NIC"),
        ("NCCL_IB_HCA==mlx5_3:1", "one NIC"),
        ("Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/2", "GPUDirect"),
        ("NCCL_P2P_DISABLE=1", "no peer access"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "no peer access"),
        ("throttled", "clocks"),
    ],
)
def test_what_a_log_shows_comes_first_whatever_the_rate(sign: str, word: str) -> None:
    healthy = system("hgx-h100")
    first = causes_of(
        healthy, LARGE, [1.5 * time for time in seconds(healthy)], signs=f"other\n{sign}"
    )[0]
    assert first.rule is rule(word)
    assert first.sign in sign


@pytest.mark.parametrize(
    "sign",
    [
        "NCCL_IB_HCA=mlx5_0,mlx5_1",
        "NCCL_IB_HCA=mlx5",
        "[send] via NET/IB/2/GDRDMA",
        "NCCL_IB_DISABLE=0",
        "",
    ],
)
def test_what_is_usual_is_no_sign(sign: str) -> None:
    healthy = system("hgx-h100")
    causes = causes_of(healthy, LARGE, [1.5 * time for time in seconds(healthy)], signs=sign)
    assert not any(cause.sign for cause in causes)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/0/GDRDMA", "sockets"),
        ("Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/0/GDRDMA", "GPUDirect"),
        ("Using network IB", "sockets"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "no peer access"),
    ],
)
def test_what_a_log_shows_at_work_is_no_cause(line: str, word: str) -> None:
    healthy = system("hgx-h100")
    for worse in rule(word).systems(healthy):
        assert rule(word).name not in names(
            causes_of(healthy, LARGE, seconds(worse), True, line)
        )
    settings = "NCCL_IB_DISABLE=1\nNCCL_NET_GDR_LEVEL=0\nNCCL_P2P_DISABLE=1\n"
    times = [1.5 * time for time in seconds(healthy)]
    assert rule(word).name not in names(causes_of(healthy, LARGE, times, signs=settings + line))


def test_channels_of_other_gpus_that_lack_it_still_show_a_cause() -> None:
    healthy = system("hgx-h100")
    signs = "8[0] [send] via NET/IB/0/GDRDMA\n9[1] [send] via NET/IB/1"
    first = causes_of(healthy, LARGE, [1.5 * time for time in seconds(healthy)], signs=signs)[0]
    assert (first.rule, first.sign) == (rule("GPUDirect"), "via NET/IB/1")


def test_clocks_need_a_flag() -> None:
    for nodes in (1, 2):
        healthy = system("hgx-h100", nodes)
        for sign in ("", "power_capped"):
            times = [3 * time for time in seconds(healthy)]
            causes = causes_of(healthy, LARGE, times, small_are_slow=True, signs=sign)
            assert (rule("clocks").name in names(causes)) == bool(sign)


def test_a_size_that_is_faster_than_a_cause_allows_rules_it_out() -> None:
    healthy = system("hgx-h100")
    (one_nic,) = rule("one NIC").systems(healthy)
    slow = seconds(one_nic)
    assert rule("one NIC").name in names(causes_of(healthy, LARGE, slow, small_are_slow=False))
    fast = seconds(healthy)
    for times, other_sizes in (([*slow[:-1], fast[-1]], ()), (slow, [(2**25, fast[0] / 2)])):
        causes = causes_of(healthy, LARGE, times, small_are_slow=False, smaller=other_sizes)
        assert rule("one NIC").name not in names(causes)


def test_where_only_small_messages_are_slow_a_cause_must_slow_them_and_leave_large_ones() -> (
    None
):
    healthy = system("hgx-b200")
    for factor, word in ((1.0, "processors"), (1.8, "GPUDirect")):
        times = [factor * time for time in seconds(healthy)]
        causes = causes_of(healthy, LARGE, times, small_are_slow=True, only_small=True)
        assert causes[0].rule is rule(word)
        assert all(cause.rule.slows_small for cause in causes)
        assert rule("sockets").name not in names(causes)


def test_one_node_has_no_cause_in_its_network_and_what_is_not_there_cannot_break() -> None:
    alone = system("dgx-a100", nodes=1)
    causes = causes_of(
        alone, LARGE, [9 * time for time in seconds(alone)], small_are_slow=False
    )
    assert not {"sockets", "NIC", "GPUDirect"} & {
        word for name in names(causes) for word in name.split()
    }
    assert not rule("NVLS").systems(alone)
    assert not rule("SHARP").systems(system("dgx-a100"))
    narrow = replace(system("gh200x4"), network=replace(system("gh200x4").network, per_node=1))  # type: ignore[type-var]  # there is one
    assert not rule("one NIC").systems(narrow)
    assert not rule("GPUDirect").systems(narrow), "Grace reaches NICs over C2C"


def test_boxes_of_cards_that_crawl_across_sockets_have_a_cause() -> None:
    box = system("l40s", 1)
    crawling = [600 * time for time in seconds(box)]
    assert "other CPU's GPUs" in names(causes_of(box, LARGE, crawling, True))[0]
    # What halves a rate is something else.
    halved = [2 * time for time in seconds(box)]
    assert not any("other CPU" in name for name in names(causes_of(box, LARGE, halved)))
