"""Which kernel runs a case, by the names of the entries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.backends.kernels.plans import PLANNERS
from ccbench.backends.kernels.selection import PREFERRED, choose, kernel_algorithms, split_name, unsupported
from ccbench.backends.kernels.sources import entries
from ccbench.cases import Case
from ccbench.collectives import COLLECTIVES
from ccbench.errors import UsageError
from ccbench.schedules import algorithms_of

CASE = Case("s", "cuda", "all_reduce", "ring", "float32", "sum", 4096, 1024, 4)


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        ("ring_all_reduce", ("ring", "all_reduce")),
        ("ring_reduce", ("ring", "reduce")),
        ("ring_reduce_scatter", ("ring", "reduce_scatter")),
        ("mesh_two_shot_all_reduce", ("mesh_two_shot", "all_reduce")),
        ("mesh_all_to_all", ("mesh", "all_to_all")),
        ("ring_send_recv", ("ring", "send_recv")),
        ("barrier", ("barrier", "barrier")),
        ("schedule", ("schedule", "")),
    ],
)
def test_an_entrys_name_holds_algorithm_and_collective(entry: str, parts: tuple[str, str]) -> None:
    assert split_name(entry) == parts


def test_every_entry_is_reachable_by_some_case() -> None:
    reached = set()
    for collective in COLLECTIVES:
        for algorithm in kernel_algorithms(collective):
            name = algorithm.split(":")[1] if algorithm.startswith("schedule:") else ""
            case = replace(CASE, collective=collective, algorithm=algorithm, root=0)
            choice = choose(case)
            assert (choice.algorithm, choice.schedule) == (algorithm, name)
            reached.add(choice.entry.name)
    assert reached == entries().keys() - {"compare"}  # which runs no collective


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_interpreter_offers_every_schedule(collective: str) -> None:
    offered = {name for name in kernel_algorithms(collective) if name.startswith("schedule:")}
    assert offered == {f"schedule:{name}" for name in algorithms_of(collective)}


def test_planners_belong_to_kernel_files() -> None:
    assert set(PLANNERS) <= {entry.file for entry in entries().values()}


@pytest.mark.parametrize("size_bytes", [0, 8, 32 << 10, 1 << 20, 4 << 20, 1 << 30])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_default_is_a_kernel_that_there_is_wherever_there_is_one(collective: str, size_bytes: int) -> None:
    case = replace(CASE, collective=collective, algorithm="default", size_bytes=size_bytes, root=0)
    assert choose(case).algorithm in kernel_algorithms(collective)


def test_default_prefers_low_latency_for_small_and_rings_for_large_sizes() -> None:
    def chosen(size_bytes: int) -> str:
        return choose(replace(CASE, algorithm="default", size_bytes=size_bytes)).algorithm

    assert [chosen(8), chosen(1 << 20), chosen(1 << 30)] == ["ll", "mesh_two_shot", "ring"]
    assert [limit for limit, _ in PREFERRED] == sorted(limit for limit, _ in PREFERRED)


def test_a_parameter_reaches_the_schedule() -> None:
    case = replace(CASE, collective="broadcast", algorithm="schedule:chain:8", root=0)
    assert choose(case).schedule == "chain:8"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "nothing"}, "no kernel runs all_reduce as 'nothing'; there are "),
        ({"algorithm": "schedule:nothing"}, "no schedule 'nothing' of all_reduce; there are schedule:ring, "),
        ({"algorithm": "schedule:ring:4"}, "ring has no parameter; write 'schedule:ring'"),
        ({"algorithm": "schedule:hierarchical:3"}, "do not divide 4 ranks"),
        ({"algorithm": "schedule:chain:x"}, "is not a name or name:number"),
        ({"collective": "nothing"}, "is not known"),
        ({"nodes": 2}, "on one node"),
    ],
)
def test_what_no_kernel_can_run_says_why(changes: dict[str, object], words: str) -> None:
    assert unsupported(CASE) is None
    assert words in str(unsupported(replace(CASE, **changes)))  # type: ignore[arg-type]  # of any field


def test_choosing_what_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        choose(replace(CASE, collective="gather", algorithm="ring"))
