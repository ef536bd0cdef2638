from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import AXIS, OPS, PLACEMENTS, Case
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import CPU_DTYPES, ITEM_BYTES
from ccbench.errors import SuiteError, UsageError
from ccbench.suite.expansion import expand, left_out
from ccbench.suite.model import IN_PLACE_COLLECTIVES, Suite, load_suite, read_suite

from .offers import ALGORITHMS, context


def cases(sweep: str, **changes: object) -> tuple[Case, ...]:
    return expand(read_suite(f"order: written\nsweep: {sweep}"), context(**changes))


@given(
    collective=st.lists(
        st.sampled_from(list(COLLECTIVES)), min_size=1, max_size=4, unique=True
    ),
    algorithm=st.sampled_from([["default"], ["all"], ["default", "all"]]),
    size=st.lists(st.integers(0, 4096), min_size=1, max_size=4, unique=True),
    ranks=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    dtype=st.lists(st.sampled_from(CPU_DTYPES), min_size=1, max_size=3, unique=True),
    op=st.lists(st.sampled_from(OPS), min_size=1, max_size=3, unique=True),
    placement=st.sampled_from([PLACEMENTS, PLACEMENTS[:1]]),
    mode=st.sampled_from([AXIS["mode"].all_values, ("streaming",)]),
)
def test_counts_follow_from_the_axes_that_mean_something(**axes: Sequence[object]) -> None:
    values = {key: list(value) for key, value in axes.items()}
    suite = Suite.model_validate({"sweep": {**values, "root": "all"}})
    expected = 0
    for name in values["collective"]:
        row = COLLECTIVES[str(name)]
        algorithms = {*(() if "default" not in values["algorithm"] else ("default",))}
        algorithms |= set(ALGORITHMS[row.name]) if "all" in values["algorithm"] else set()
        for ranks in values["ranks"]:
            units = [
                ITEM_BYTES[str(d)] * (int(str(ranks)) if row.blocked else 1)
                for d in values["dtype"]
            ]
            points = sum(
                len({int(str(size)) // unit for size in values["size"]}) for unit in units
            )
            free = len(algorithms) * len(values["mode"])
            free *= len(values["op"]) if row.reduces else 1
            free *= int(str(ranks)) if row.rooted else 1
            free *= len(values["placement"]) if row.name in IN_PLACE_COLLECTIVES else 1
            expected += free * (points if row.moves_data else 1)
    cases = expand(suite, context())
    assert len(cases) == len({case.case_id for case in cases}) == expected


@given(
    st.sampled_from(sorted(COLLECTIVES)),
    st.sampled_from(CPU_DTYPES),
    st.integers(0, 2**30),
    st.integers(1, 100),
)
def test_sizes_round_down_to_whole_elements_of_every_block(
    name: str, dtype: str, size: int, ranks: int
) -> None:
    (case,) = cases(f"{{collective: {name}, dtype: {dtype}, size: {size}, ranks: {ranks}}}")
    row = COLLECTIVES[name]
    if not row.moves_data:
        assert (case.size_bytes, case.count) == (0, 0)
        return
    unit = ITEM_BYTES[dtype] * (ranks if row.blocked else 1)
    assert case.size_bytes == case.count * unit
    assert size - unit < case.size_bytes <= size


def test_auto_means_what_the_machine_says_and_at_least_two_ranks() -> None:
    suite = read_suite("backends: [simulated, auto]\nsweep: {collective: all_reduce, size: 8}")
    found = expand(suite, context(auto_backends=("nccl", "cuda"), auto_ranks=1))
    assert {(case.backend, case.ranks) for case in found} == {
        ("simulated", 2),
        ("nccl", 2),
        ("cuda", 2),
    }
    assert cases("{collective: all_reduce, size: 8, ranks: 1}")[0].ranks == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backends": ("ncll",)}, "backend 'ncll' is not known; did you mean 'nccl'?"),
        ({"ranks": 0}, "0 ranks cannot be; give 1 to 1048576"),
        ({"only": "nothing"}, "only 'nothing' matches none of 71 cases, such as "),
    ],
)
def test_what_the_command_line_gets_wrong_is_a_usage_error(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as problem:
        expand(load_suite("quick"), context(**changes))
    assert str(problem.value).startswith(message)


def test_only_keeps_the_cases_whose_label_has_every_word() -> None:
    everything = expand(load_suite("quick"), context())
    cases = expand(load_suite("quick"), context(only=" reduce  512 "))
    assert set(cases) == {c for c in everything if "reduce" in c.label and "512" in c.label}
    assert {case.collective for case in cases} == {"all_reduce", "reduce_scatter", "reduce"}


@pytest.mark.parametrize(
    ("only", "size_bytes"),
    [("all_reduce 4 KiB", 4096), ("4KiB all_reduce", 4096), ("all_reduce 64 B", 64)],
)
def test_only_takes_sizes_as_plans_show_them(only: str, size_bytes: int) -> None:
    cases = expand(load_suite("quick"), context(only=only))
    assert {(case.collective, case.size_bytes) for case in cases} == {
        ("all_reduce", size_bytes)
    }


@pytest.mark.parametrize(
    "sweep",
    [
        "{collective: all_reduce, size: {from: 0, to: 99999, step: 1}, op: [sum, max]}",
        "{collective: broadcast, root: all, ranks: 1000000}",
        "{collective: all, dtype: all, op: all, algorithm: all, size: {from: 1, to: 1 PiB, factor: 1.1}}",
        "{collective: all, ranks: {from: 1, to: 999, step: 1}}",
    ],
)
def test_more_than_100000_cases_are_refused_by_counting(sweep: str) -> None:
    with pytest.raises(
        SuiteError, match=r"^suite:2: sweep: asks for more than 100,000 cases on cpu; "
    ):
        cases(sweep)


def left_out_of(sweep: str, backend: str = "cpu") -> tuple[int, dict[str, int]]:
    """How many cases are left, and what is left out."""
    suite = read_suite(f"{{backends: {backend}, sweep: {{{sweep}}}}}")
    return len(expand(suite, context(backends=(backend,)))), dict(
        left_out(suite, context(backends=(backend,)))
    )


def test_what_a_backend_does_not_have_is_counted_by_its_reason() -> None:
    sweep = "collective: all_reduce, ranks: 4, size: [1 KiB, 1 MiB, 4 MiB], mode: [streaming, graph], "
    sweep += "dtype: [float32, float8_e4m3], protocol: [default, ll]"
    assert left_out_of(sweep) == (
        3,
        {
            "cpu has no mode graph": 12,
            "cpu has no dtype float8_e4m3": 6,
            "cpu has no protocol": 3,
        },
    )


def on_nccl(sweep: dict[str, Any], ranks: int = 4) -> tuple[Case, ...]:
    """The cases of one sweep with one size on the backend that has most axes."""
    suite = read_suite(
        json.dumps({"sweep": {"collective": "all_reduce", "size": "1 KiB", **sweep}})
    )
    return expand(suite, context(backends=("nccl",), auto_ranks=ranks))


def values(cases: tuple[Case, ...], name: str) -> list[Any]:
    """The field's values, each once, in any order."""
    return sorted({getattr(case, name) for case in cases})


@pytest.mark.parametrize(
    ("key", "asked", "field", "found"),
    [
        ("channels", [0, 8], "channels", [0, 8]),
        ("transport", ["default", "host"], "transport", ["default", "host"]),
        ("registration", "all", "registration", ["local", "none", "symmetric"]),
        ("aggregation", [1, 16], "aggregation", [1, 16]),
        ("misalignment", [0, 4], "misalignment_bytes", [0, 4]),
        (
            "groups",
            ["all", "rank // 2", [[0, 3], [1, 2]]],
            "groups",
            ["", "[[0, 3], [1, 2]]", "rank // 2"],
        ),
        ("groups", [[0, 3], [1, 2]], "groups", ["[[0, 3], [1, 2]]"]),
        ("concurrent", ["nothing", "all_gather"], "concurrent", ["", "all_gather"]),
        ("op", ["sum", "premulsum"], "op", ["premulsum", "sum"]),
    ],
)
def test_each_value_of_an_axis_becomes_a_case(
    key: str, asked: Any, field: str, found: list[Any]
) -> None:
    assert values(on_nccl({key: asked}), field) == found


def test_pairs_are_of_send_recv_alone() -> None:
    sweep = {
        "collective": ["send_recv", "all_reduce"],
        "pairs": ["ring", "each", "both", "0>9"],
    }
    cases = on_nccl(sweep)
    assert sum(case.collective == "all_reduce" for case in cases) == 1
    assert sum(case.pair != "" for case in cases) == 12 + 6


@pytest.mark.parametrize(
    ("sweep", "left", "without"),
    [
        (
            "[broadcast, all_reduce], ranks: [4, 12], root: [0, 4]",
            5,
            {"cpu has no root of 4 ranks: 4": 1},
        ),
        ("all_reduce, ranks: 4, channels: [0, 2, 4]", 1, {"cpu has no channels": 2}),
        (
            "[all_reduce, all_to_all], ranks: 4, placement: in_place",
            1,
            {"cpu has no all_to_all in place": 1},
        ),
        (
            "[all_reduce, all_to_all, barrier], ranks: 4, placement: [in_place, out_of_place]",
            4,
            {"cpu has no all_to_all in place": 1},
        ),
        (
            "[barrier, all_reduce], ranks: 4, op: [sum, premulsum]",
            2,
            {"cpu has no op premulsum": 1},
        ),
        (
            "[barrier, all_reduce], ranks: 4, algorithm: [two_shot, default]",
            3,
            {"cpu has no barrier with algorithm two_shot": 1},
        ),
    ],
)
def test_each_kind_of_value_that_is_left_out_has_its_reason(
    sweep: str, left: int, without: dict[str, int]
) -> None:
    assert left_out_of(f"collective: {sweep}, size: 8 B") == (left, without)
