from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.tuning import Band, Choice, Rules, Timing, advise, everywhere
from ccbench.report.tuning_formats import advice_lines
from tests.analysis.tuning.made import NCCL, NVLS, RING, TREE, timing

MIB = 2**20


def bands(timings: list[Timing], rules: Rules | None = None) -> tuple[Band, ...]:
    (advice,) = advise(timings, rules)
    return advice.bands


def test_a_default_that_beats_another_rival_at_each_size_was_compared_all_the_same() -> None:
    timings = [timing(NCCL, size, 1.0e-3) for size in (MIB, 2 * MIB)]
    timings += [timing(RING, MIB, 1.2e-3), timing(TREE, MIB, 1.4e-3)]
    timings += [timing(RING, 2 * MIB, 1.4e-3), timing(TREE, 2 * MIB, 1.2e-3)]
    assert "1 MiB - 2 MiB  keep the default  no other is 3% faster" in "\n".join(
        advice_lines(advise(timings))
    )


def test_a_gain_below_the_minimum_is_not_advised_however_certain() -> None:
    (band,) = bands([timing(NCCL, MIB, 1.02e-3, 1e-5), timing(RING, MIB, 1.0e-3, 1e-5)])
    assert band.choice is None
    assert band.why == "no other is 3% faster"


def test_noise_alone_is_advised_in_less_than_five_percent_of_the_situations() -> None:
    advised = 0
    for seed in range(200):
        rivals = [
            timing(choice, MIB, 1.0, 0.05, seed=seed) for choice in (NCCL, RING, TREE, NVLS)
        ]
        advised += any(band.choice is not None for band in bands(rivals))
    assert advised <= 10


def test_one_choice_for_all_sizes_must_be_slower_nowhere() -> None:
    good = [
        timing(NCCL, MIB, 1.2),
        timing(RING, MIB, 1.0),
        timing(NCCL, 2 * MIB, 1.0),
        timing(RING, 2 * MIB, 1.0),
    ]
    assert everywhere(good) == {"all_reduce": RING}
    assert everywhere([*good, timing(NCCL, 4 * MIB, 0.9), timing(RING, 4 * MIB, 1.0)]) == {}


SPEEDS = st.dictionaries(
    st.integers(3, 30).map(lambda power: 2**power),
    st.dictionaries(
        st.sampled_from([NCCL, RING, TREE, NVLS]), st.floats(0.5, 2.0), min_size=1, max_size=4
    ),
    min_size=1,
    max_size=12,
)


@given(SPEEDS, st.sampled_from([0.0, 0.02]))
def test_bands_hold_every_measured_size_once_and_advice_is_never_told_apart_as_slower(
    speeds: dict[int, dict[Choice, float]], noise: float
) -> None:
    timings = [
        timing(choice, size, seconds, noise)
        for size, row in speeds.items()
        for choice, seconds in row.items()
    ]
    advised = bands(timings)
    covered = [size for band in advised for size in band.sizes_bytes]
    assert covered == sorted(speeds)
    by_place = {(each.point.size_bytes, each.choice): each.seconds for each in timings}
    for band in advised:
        assert (band.low_bytes, band.high_bytes) == (band.sizes_bytes[0], band.sizes_bytes[-1])
        if band.choice is None:
            assert band.why
            continue
        assert set(band.bridged_bytes) < set(band.sizes_bytes)
        for size in band.sizes_bytes:
            default = by_place.get((size, NCCL))
            if default is not None:
                slack = 1 + 6 * noise + 1e-9
                assert by_place[size, band.choice] <= default * slack
            if size not in band.bridged_bytes:
                rivals = [
                    by_place[size, speed] for speed in speeds[size] if speed != band.choice
                ]
                assert by_place[size, band.choice] <= min(rivals)
                assert by_place[size, band.choice] <= (default or min(rivals)) / 1.03 * (
                    1 + 1e-9
                )


@given(SPEEDS)
def test_the_order_of_timings_does_not_matter(speeds: dict[int, dict[Choice, float]]) -> None:
    timings = [
        timing(choice, size, seconds)
        for size, row in speeds.items()
        for choice, seconds in row.items()
    ]
    assert advise(timings) == advise(list(reversed(timings)))


def test_where_bits_must_stay_the_choice_that_keeps_them_is_advised_with_its_price() -> None:
    """The default is faster, but its bits do not stay."""
    timings = [
        replace(timing(NCCL, MIB, 1.0e-3), kept=False),
        replace(timing(TREE, MIB, 0.9e-3), kept=False),
        timing(RING, MIB, 1.2e-3),
    ]
    rules = Rules(reproducible=True)
    (band,) = bands(timings, rules)
    assert (band.choice, band.rivals) == (RING, (NCCL,))
    assert band.smallest_gain is not None
    assert round(band.smallest_gain.median, 2) == -0.17
    assert "a gain below zero is their price" in "\n".join(advice_lines(advise(timings), rules))


def test_where_no_choice_keeps_bits_none_is_advised() -> None:
    timings = [
        replace(timing(NCCL, MIB, 1.0e-3), kept=False),
        replace(timing(RING, MIB, 0.5e-3), kept=False),
    ]
    (band,) = bands(timings)
    assert (band.choice, band.why) == (None, "no choice keeps bits")
