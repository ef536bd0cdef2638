from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import AXIS, NO_OP, NO_ROOT, OPS, PLACEMENTS, Case
from ccbench.collectives import COLLECTIVES, SETUPS
from ccbench.dtypes import CPU_DTYPES, ITEM_BYTES
from ccbench.errors import BackendUnavailable, SuiteError, UsageError
from ccbench.suite.expansion import expand, left_out
from ccbench.suite.model import IN_PLACE_COLLECTIVES, Suite, load_suite, read_suite

from .offers import ALGORITHMS, algorithms_of, context


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


def test_axes_without_meaning_collapse() -> None:
    (barrier,) = cases(
        "{collective: barrier, size: [8, 16], dtype: all, op: all, root: all, placement: all}"
    )
    assert (barrier.size_bytes, barrier.op, barrier.root, barrier.in_place) == (
        0,
        NO_OP,
        NO_ROOT,
        False,
    )
    (gather,) = cases("{collective: all_gather, size: 64, op: all, root: [0, 1]}")
    assert (gather.op, gather.root) == (NO_OP, NO_ROOT)


def test_in_place_is_left_out_where_input_and_output_are_apart() -> None:
    found = cases("{collective: all, size: 64, placement: [out_of_place, in_place]}")
    assert {case.collective for case in found if case.in_place} == set(COLLECTIVES) - {
        "all_to_all",
        "all_to_all_v",
        "send_recv",
        "barrier",
    }
    only = cases("{collective: all, size: 64, placement: in_place}")
    assert {case.collective for case in only if not case.in_place} == {"barrier"}
    assert "all_to_all" not in {case.collective for case in only}


def test_roots_beyond_a_number_of_ranks_are_left_out_there() -> None:
    found = cases("{collective: broadcast, size: 8, ranks: [2, 4], root: [0, 2]}")
    assert {(case.ranks, case.root) for case in found} == {(2, 0), (4, 0), (4, 2)}
    assert {
        case.root for case in cases("{collective: reduce, size: 8, ranks: 3, root: all}")
    } == {
        0,
        1,
        2,
    }


def test_a_backend_leaves_out_algorithms_that_it_does_not_have() -> None:
    sweep = "{collective: all_reduce, size: 8, algorithm: [default, ring, one_shot, tree]}"
    found = cases(sweep, backends=("cpu", "nccl", "mpi"))
    assert {(case.backend, case.algorithm) for case in found} == {
        ("cpu", "default"),
        ("cpu", "ring"),
        ("cpu", "one_shot"),
        ("nccl", "default"),
        ("nccl", "ring"),
        ("nccl", "tree"),
        ("mpi", "default"),
    }


def test_all_algorithms_of_a_backend_that_names_none_is_its_default() -> None:
    found = cases("{collective: all_reduce, size: 8, algorithm: all}", backends=("mpi",))
    assert [case.algorithm for case in found] == ["default"]


def test_an_algorithms_parameter_belongs_to_the_case_not_to_the_name() -> None:
    (case,) = cases("{collective: all_reduce, size: 8, algorithm: 'hierarchical:2'}")
    assert case.algorithm == "hierarchical:2"


def test_an_algorithm_only_another_backend_knows_is_no_mistake_under_an_override() -> None:
    sweep = "{collective: all_reduce, size: 8, algorithm: [default, one_shot]}"
    assert {case.algorithm for case in cases(sweep, backends=("nccl",))} == {"default"}


def test_a_backend_that_cannot_be_asked_does_not_hide_a_misspelt_algorithm() -> None:
    def asked(backend: str, collective: str) -> tuple[str, ...]:
        if backend == "cuda":
            raise BackendUnavailable("cuda: no driver")
        return algorithms_of(backend, collective)

    suite = read_suite(
        "sweep: {collective: all_reduce, algorithm: [default, rign]}\nbackends: [cpu]"
    )
    with pytest.raises(SuiteError, match=r"'rign' is no algorithm of .*; did you mean 'ring'"):
        expand(suite, context(backends=("cpu",), auto_backends=("cuda",), algorithms_of=asked))


def test_a_backend_that_cannot_be_asked_is_planned_with_its_default_algorithm() -> None:
    def asked(backend: str, collective: str) -> tuple[str, ...]:
        raise BackendUnavailable(f"{backend}: not installed")

    suite = read_suite("sweep: {collective: all_reduce, size: 8}\nbackends: [mpi]")
    (case,) = expand(suite, context(backends=("mpi",), algorithms_of=asked))
    assert (case.backend, case.algorithm) == ("mpi", "default")


def test_the_names_that_are_offered_are_those_of_the_backends_that_were_asked_for() -> None:
    def asked(backend: str, collective: str) -> tuple[str, ...]:
        return ("mesh", "packets") if backend == "cuda" else ("two_shot", "doubling")

    suite = read_suite("sweep: {collective: all_reduce, algorithm: nothing}\nbackends: [cuda]")
    with pytest.raises(
        SuiteError, match=r"no algorithm of cuda for all_reduce; write one of mesh, packets$"
    ):
        expand(suite, context(backends=("cuda",), auto_backends=("cpu",), algorithms_of=asked))


def test_gpu_only_dtypes_are_left_out_on_other_backends() -> None:
    sweep = "{collective: all_reduce, size: 8, dtype: [float32, uint32]}"
    assert {(c.backend, c.dtype) for c in cases(sweep, backends=("cpu", "nccl"))} == {
        ("cpu", "float32"),
        ("nccl", "float32"),
        ("nccl", "uint32"),
    }
    with pytest.raises(
        SuiteError,
        match=r"sweep: nothing is left to run on cpu with 4 ranks: cpu has no dtype uint32$",
    ):
        cases("{collective: all_reduce, size: 8, dtype: uint32}")


def test_the_command_line_replaces_backends_and_ranks() -> None:
    suite = read_suite(
        "backends: [nccl]\nsweep: {collective: all_reduce, size: 8, ranks: [2, 4]}"
    )
    cases = expand(suite, context(backends=("cpu", "cpu"), ranks=3))
    assert [(case.backend, case.ranks) for case in cases] == [("cpu", 3)]


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


def test_sweeps_are_joined_and_their_common_points_appear_once() -> None:
    found = cases(
        "[{collective: all_reduce, size: [8, 16]}, {collective: all_reduce, size: [16, 32]}]"
    )
    assert [case.size_bytes for case in found] == [8, 16, 32]


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


def test_the_written_order_is_the_order_of_the_file() -> None:
    found = cases("{collective: [reduce, all_gather], size: [64, 32]}")
    assert [(case.collective, case.size_bytes) for case in found] == [
        ("reduce", 64),
        ("reduce", 32),
        ("all_gather", 64),
        ("all_gather", 32),
    ]


def test_the_interleaved_order_depends_on_the_seed_alone() -> None:
    text = "seed: {}\nsweep: {{collective: all, size: [64, 128, 256], ranks: [2, 4]}}"
    first, again, other = (
        expand(read_suite(text.format(seed)), context()) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert set(first) == set(other)


def test_interleaving_keeps_the_backends_of_a_point_together_in_changing_order() -> None:
    suite = read_suite(
        "sweep: {collective: all_reduce, size: {from: 4, to: 1 MiB}, ranks: [2, 4]}"
    )
    cases = expand(suite, context(auto_backends=("cpu", "simulated")))
    pairs = list(zip(cases[::2], cases[1::2], strict=True))
    assert all(
        (a.count, a.ranks) == (b.count, b.ranks) and a.backend != b.backend for a, b in pairs
    )
    assert len(Counter(first.backend for first, _ in pairs)) == 2
    assert len({case.ranks for case in cases[:12]}) == 2


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


def test_sizes_and_roots_are_those_of_one_group() -> None:
    cases = on_nccl({"collective": "broadcast", "groups": "rank // 2", "root": "all"})
    assert values(cases, "root") == [0, 1]
    (gathered,) = on_nccl({"collective": "all_gather", "groups": "rank // 2"})
    assert (gathered.size_bytes, gathered.count, gathered.group_ranks) == (1024, 128, 2)


def test_what_a_case_does_not_ask_for_leaves_its_id_alone() -> None:
    case = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 1024, 256, 4)
    assert case.case_id == "770c69d9d3b860d8"  # as it was before these fields came
    asked: tuple[dict[str, Any], ...] = (
        {"channels": 1},
        {"transport": "host"},
        {"registration": "local"},
        {"aggregation": 2},
        {"misalignment_bytes": 4},
        {"groups": "rank // 2"},
        {"concurrent": "all_gather"},
    )
    changed = {replace(case, **one).case_id for one in asked}
    assert len(changed) == 7
    assert case.case_id not in changed


@pytest.mark.parametrize(
    ("ranks", "found"), [(4, [""]), (8, ["rank // 4"]), ([6, 8], ["rank // 4"])]
)
def test_a_grouping_of_all_ranks_together_is_the_plain_case_and_one_that_does_not_fit_none(
    ranks: Any, found: list[str]
) -> None:
    assert values(on_nccl({"groups": "rank // 4", "ranks": ranks}), "groups") == found


def test_a_sweep_is_for_the_backends_it_names() -> None:
    sweeps = [
        {"collective": "all_reduce", "size": "1 KiB", "backends": "nccl"},
        {"collective": "all_reduce", "size": "2 KiB", "backends": ["cpu", "mpi"]},
        {"collective": "all_reduce", "size": "4 KiB", "backends": "all"},
        {"collective": "all_reduce", "size": "8 KiB"},
    ]
    suite = read_suite(json.dumps({"backends": ["nccl", "cpu"], "sweep": sweeps}))
    sizes = [(case.backend, case.size_bytes) for case in expand(suite, context())]
    assert sorted(size for backend, size in sizes if backend == "nccl") == [1024, 4096, 8192]
    assert sorted(size for backend, size in sizes if backend == "cpu") == [2048, 4096, 8192]


def test_a_misspelt_algorithm_is_an_error_in_a_sweep_of_other_backends_too() -> None:
    sweeps = [
        {"collective": "all_reduce", "backends": "nccl", "algorithm": "rign"},
        {"collective": "all_reduce"},
    ]
    suite = read_suite(json.dumps({"backends": ["cpu"], "sweep": sweeps}))
    with pytest.raises(
        SuiteError, match=r"'rign' is no algorithm of nccl for all_reduce; did you mean 'ring'"
    ):
        expand(suite, context())


def test_setups_are_asked_for_by_name_one_at_a_time_and_only_registration_has_a_size() -> None:
    asked = "{collective: [comm_init, register], size: [4 KiB, 8 KiB], mode: all, dtype: all}"
    asked_of = cases(asked, backends=("mpi",))
    found = [(one.collective, one.size_bytes, one.mode, one.dtype) for one in asked_of]
    assert found == [
        ("comm_init", 0, "isolated", "uint8"),
        ("register", 4096, "isolated", "uint8"),
        ("register", 8192, "isolated", "uint8"),
    ]
    assert not {case.collective for case in cases("{collective: all}")} & set(SETUPS)
