from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.tuning import Choice, Timing, advise
from ccbench.report.tuning_formats import nccl_csv, nccl_environment
from tests.analysis.tuning.example_plugin import decided, read
from tests.analysis.tuning.made import NCCL, NVLS, PLACE, RING, TREE, timing

MIB = 2**20


def two_bands() -> list[Timing]:
    """Tree/LL up to 2 MiB, NVLS from 4 MiB; the default lies behind both."""
    timings = []
    for power in range(18, 26):
        small = power <= 21
        times = {NCCL: 1.3, TREE: 1.0 if small else 2.0, NVLS: 2.0 if small else 1.0}
        timings += [
            timing(choice, 2**power, 1e-4 * seconds) for choice, seconds in times.items()
        ]
    return timings


def test_types_that_ask_for_different_things_get_no_line_and_a_comment() -> None:
    half = replace(PLACE, dtype="bfloat16")
    timings = [timing(NCCL, MIB, 2.0), timing(RING, MIB, 1.0)]
    timings += [timing(NCCL, MIB, 2.0, situation=half), timing(TREE, MIB, 1.0, situation=half)]
    text = nccl_csv(timings)
    assert read(text) == []
    assert "types, operations or placements differ" in text


def test_a_choice_without_a_protocol_is_left_out_unless_the_library_said_it() -> None:
    ring = Choice("nccl", "ring")
    text = nccl_csv([timing(NCCL, MIB, 2.0), timing(ring, MIB, 1.0)])
    assert read(text) == []
    assert "needs algorithm and protocol" in text
    made = timing(ring, MIB, 1.0)
    point = replace(made.point, algorithm_used="ring", protocol_used="ll128")
    observed = replace(made, point=point)
    assert [line.protocol for line in read(nccl_csv([timing(NCCL, MIB, 2.0), observed]))] == [
        "ll128"
    ]


def test_no_comment_is_longer_than_the_plugin_reads_at_once() -> None:
    bad = replace(PLACE, op="allreduce,0,99,ring,ll,1,1,8\n" * 30, collective="all_to_all")
    text = nccl_csv(
        [timing(NCCL, MIB, 2.0, situation=bad), timing(RING, MIB, 1.0, situation=bad)]
    )
    assert all(len(line) < 255 for line in text.splitlines())
    assert read(text) == []


def test_the_environment_sets_what_is_slower_nowhere() -> None:
    gather = replace(PLACE, collective="all_gather", op="none")
    pat = Choice("nccl", "pat")
    timings = [timing(NCCL, MIB, 2.0), timing(RING, MIB, 1.0)]
    timings += [
        timing(NCCL, MIB, 2.0, situation=gather),
        timing(pat, MIB, 1.0, situation=gather),
    ]
    lines = nccl_environment(timings).splitlines()
    assert 'export NCCL_ALGO="allgather:pat;allreduce:ring"' in lines
    assert 'export NCCL_PROTO="allreduce:Simple"' in lines


def test_where_the_size_decides_the_environment_is_a_comment_that_names_the_csv() -> None:
    text = nccl_environment(two_bands())
    assert all(line.startswith("#") for line in text.splitlines())
    assert "use the CSV" in text


CHOICES = [
    NCCL,
    RING,
    TREE,
    NVLS,
    Choice("nccl", "ring", "ll128", 8),
    Choice("nccl", "nvlstree"),
]


@given(
    st.dictionaries(
        st.integers(1, 2**40),
        st.dictionaries(st.sampled_from(CHOICES), st.floats(0.5, 2.0), min_size=1, max_size=4),
        min_size=1,
        max_size=8,
    )
)
def test_what_the_plugin_decides_is_what_was_advised(
    speeds: dict[int, dict[Choice, float]],
) -> None:
    timings = [
        timing(choice, size, s) for size, row in speeds.items() for choice, s in row.items()
    ]
    lines = read(nccl_csv(timings))
    (advice,) = advise(timings)
    names = {"nvlstree": "nvls_tree"}
    for band in advice.bands:
        for size in band.sizes_bytes:
            got = decided(lines, "allreduce", size, 1, 8)
            if band.choice is None:
                assert got is None
            else:
                protocol = (
                    "simple" if band.choice.protocol == "default" else band.choice.protocol
                )
                algorithm = names.get(band.choice.algorithm, band.choice.algorithm)
                assert got == (algorithm, protocol, band.choice.channels)
