"""A driver that behaves in, rows and flags out."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace

import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]  # untyped
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import RunFolderError
from ccbench.flags import DEVICE_FLAGS
from ccbench.machine.accelerators import MEMORY_CLOCK, SM_CLOCK, DriverAbsent, opened
from ccbench.machine.accelerators import Nvml as Driver
from ccbench.machine.readings import (
    DeviceReading,
    flags_of,
    joined,
    readings_from_json,
    readings_json,
)
from ccbench.machine.telemetry import (
    REASONS,
    DeviceWatch,
    in_words,
    read_devices,
)
from tests.machine.nvml_double import BLACKWELL, HOPPER, OLD, Gpu, Nvml

ADDRESS = "0000:3b:00.0"


def driver(library: Nvml) -> Callable[[], Driver]:
    return lambda: opened(library)


def watch(library: Nvml, *addresses: str) -> DeviceWatch:
    return DeviceWatch(addresses or [ADDRESS], driver(library))


def eight_links(**errors: int) -> list[dict[str, int] | None]:
    return [dict(errors) for _ in range(8)]


# -- what is read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "errors"),
    [
        (OLD, {"crc_flits": 4, "crc_data": 3, "replays": 2, "recoveries": 1}),
        (HOPPER, {"recoveries": 1, "replays": 2, "crc": 3}),
        (BLACKWELL, {"received_errors": 1, "recoveries": 2, "effective_errors": 3}),
    ],
)
def test_the_errors_of_each_nvlink_are_read_on_every_generation(
    generation: str, errors: dict[str, int]
) -> None:
    links = eight_links()
    links[7] = errors
    links[3] = None
    (device,) = read_devices([ADDRESS], driver(Nvml([Gpu(generation=generation, links=links)])))
    assert list(device.links) == [0, 1, 2, 4, 5, 6, 7]
    assert device.links[7] == errors
    assert not any(device.links[0].values())


def test_what_a_gpu_does_not_support_is_none_and_the_rest_is_read() -> None:
    lacks = frozenset(
        {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetPerformanceState", "nvmlDeviceGetFieldValues"}
    )
    (device,) = read_devices([ADDRESS], driver(Nvml([Gpu(lacks=lacks)])))
    assert (device.power_watts, device.performance_state, device.energy_joules) == (
        None,
        None,
        None,
    )
    assert (device.trouble, device.sm_clock_mhz) == (None, 345)


def test_a_driver_that_refuses_all_fields_for_one_it_lacks_is_asked_one_by_one() -> None:
    gpu = Gpu(ecc=False, links=eight_links(crc=3), replays=4, refuses_unknown_fields=True)
    (device,) = read_devices([ADDRESS], driver(Nvml([gpu])))
    assert (device.pcie_replays, device.ecc_corrected_volatile) == (4, None)
    assert device.links[7] == {"replays": 0, "recoveries": 0, "crc": 3}


def test_an_older_driver_is_asked_by_the_older_name() -> None:
    gpu = Gpu(reasons=0x4, lacks=frozenset({"nvmlDeviceGetCurrentClocksEventReasons"}))
    (device,) = read_devices([ADDRESS], driver(Nvml([gpu])))
    assert device.clock_reasons == ("sw_power_cap",)


def test_a_look_costs_few_calls() -> None:
    library = Nvml([Gpu(links=[{} for _ in range(18)])])
    watching = watch(library)
    watching.before()
    begun = library.calls
    watching.read()
    assert library.calls - begun <= 12


def test_an_address_without_a_gpu_is_a_trouble_not_an_error() -> None:
    (seen,) = watch(Nvml([])).read()
    assert seen.trouble == "Not Found"


@given(st.integers(0, 2**64 - 1))
def test_every_bit_of_the_clock_reasons_gets_into_words(mask: int) -> None:
    words = in_words(mask)
    named = {word: bit for bit, word in REASONS.items()}
    assert sum(named.get(word) or int(word, 16) for word in words) == mask


# -- a watch ----------------------------------------------------------------------------------------------


def test_without_pynvml_a_watch_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DriverAbsent, match=r"pip install nvidia-ml-py|no NVIDIA driver"):
        opened()
    watching = DeviceWatch([ADDRESS])
    watching.before()
    assert watching.after() == ("", ())


def test_an_xid_belongs_to_the_case_in_which_it_came() -> None:
    first, second = Gpu(), Gpu(bus_id="00000000:5E:00.0")
    library = Nvml([first, second])
    watching = watch(library, ADDRESS, "0000:5e:00.0")
    watching.before()
    library.report(second, 79)
    library.report(second, 31)
    text, flags = watching.after()
    assert flags == ("device_errors",)
    assert [one.xids for one in readings_from_json(text)[1]] == [(), (79, 31)]
    watching.before()
    assert watching.after()[1] == ()


# -- text of a row ----------------------------------------------------------------------------------------

numbers = st.one_of(st.none(), st.integers(0, 10**6))
readings = st.builds(
    DeviceReading,
    bus_id=st.sampled_from([f"0000:{bus:02x}:00.0" for bus in range(4)]),
    vendor=st.just("nvidia"),
    model=st.just("GPU"),
    at_seconds=st.floats(1, 1e6),
    trouble=st.one_of(st.none(), st.text(min_size=1)),
    sm_clock_mhz=numbers,
    clock_reasons=st.one_of(
        st.none(), st.lists(st.sampled_from(sorted(REASONS.values())), max_size=3).map(tuple)
    ),
    held_back_seconds=st.dictionaries(st.sampled_from(["power", "thermal"]), st.floats(0, 1e6)),
    power_watts=st.one_of(st.none(), st.floats(0, 2000)),
    ecc_uncorrected_volatile=numbers,
    links=st.dictionaries(st.integers(0, 17), st.just({"replays": 3}), max_size=3),
    pcie_width=numbers,
    xids=st.lists(st.integers(1, 200), max_size=2).map(tuple),
)
looks = st.lists(readings, max_size=3, unique_by=lambda gpu: gpu.bus_id).map(
    lambda found: tuple(sorted(found, key=lambda gpu: gpu.bus_id))
)

few = settings(max_examples=40)


@few
@given(looks)
def test_readings_come_back_from_their_text(found: tuple[DeviceReading, ...]) -> None:
    later = tuple(replace(one, at_seconds=one.at_seconds + 1) for one in found)
    text = readings_json(found, later)
    assert readings_from_json(text) == (found, later)


@few
@given(looks, looks)
def test_flags_are_of_the_known_ones_and_the_text_gives_the_same(
    before: tuple[DeviceReading, ...], after: tuple[DeviceReading, ...]
) -> None:
    flags = flags_of(before, after)
    assert list(flags) == [flag for flag in DEVICE_FLAGS if flag in flags]
    assert flags_of(*readings_from_json(readings_json(before, after))) == flags


@few
@given(looks)
def test_nothing_that_changes_is_nothing_to_flag_but_what_stands_all_the_time(
    found: tuple[DeviceReading, ...],
) -> None:
    calm = tuple(replace(one, clock_reasons=(), xids=()) for one in found)
    assert flags_of(calm, calm) == ()


def stored(links: str) -> str:
    return f'[{{"bus_id": "a", "before": {{"links": {links}}}, "after": {{"links": {links}}}}}]'


@pytest.mark.parametrize(
    "text",
    [
        *("{", "7", "[1]", '[{"before":{}}]', '[{"bus_id":"a","before":3,"after":null}]'),
        *(stored('{"0": 3}'), stored('{"0": {"crc": "many"}}'), stored("[1]")),
    ],
)
def test_a_text_that_is_none_of_ours_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(
        RunFolderError, match=r"device_readings: .* is not a list of devices"
    ) as refused:
        readings_from_json(text)
    assert "\n" not in str(refused.value)


@few
@given(st.lists(looks, max_size=3))
def test_joining_loses_no_device_and_adds_none(teams: list[tuple[DeviceReading, ...]]) -> None:
    before, after = readings_from_json(
        joined([*(readings_json(team, team) for team in teams), ""])
    )
    assert before == after
    assert {one.bus_id for one in before} == {one.bus_id for team in teams for one in team}
    assert len(before) == len({one.device for one in before})


# -- clocks under load -------------------------------------------------------------------------------------


class Rising:
    """A GPU whose clock rises by ``step_mhz`` each time it has worked, which takes time."""

    def __init__(self, step_mhz: int, top_mhz: int) -> None:
        self.gpu = Gpu(top_mhz=1980)
        self.step_mhz, self.top_mhz = step_mhz, top_mhz
        self.now = 0.0

    def work(self) -> None:
        self.now += 0.002
        self.gpu.reasons = 0
        self.gpu.sm_mhz = min(self.top_mhz, self.gpu.sm_mhz + self.step_mhz)

    def watched(self, absent: bool = False) -> DeviceWatch:
        return DeviceWatch([ADDRESS], driver(Nvml([self.gpu], absent=absent)), lambda: self.now)


def test_a_gpu_that_rested_works_until_its_clock_rises_no_more_before_the_first_look() -> None:
    rising = Rising(step_mhz=400, top_mhz=1905)
    watching = rising.watched()
    watching.before(rising.work)
    text, flags = watching.after()
    (before,), _ = readings_from_json(text)
    assert (before.sm_clock_mhz, before.sm_clock_highest_mhz) == (1905, 1905)
    assert flags == ()
    assert 0.05 <= rising.now <= 0.055  # clocks may begin to rise late
    rising.now, rising.gpu.sm_mhz = 0.0, 1890
    watching.before(rising.work)
    assert rising.now == 0.002  # back where it was: nothing to wait for


def test_what_earlier_cases_reached_counts_for_one_that_never_gets_there() -> None:
    rising = Rising(400, 1980)
    watching = rising.watched()
    watching.before(rising.work)
    watching.after()
    rising.gpu.sm_mhz, rising.top_mhz = 345, 1400  # something holds it back for good
    watching.before(rising.work)
    assert watching.after()[1] == ("clock_low",)


# -- the double -------------------------------------------------------------------------------------------


def test_the_double_has_the_functions_arguments_and_errors_of_pynvml() -> None:
    names = [name for name in vars(Nvml) if name.startswith("nvml")]
    assert len(names) > 20
    for name in names:
        ours = list(inspect.signature(getattr(Nvml, name)).parameters)[1:]
        theirs = inspect.signature(inspect.unwrap(getattr(pynvml, name))).parameters
        required = [
            one for one, what in theirs.items() if what.default is inspect.Parameter.empty
        ]
        assert len(ours) >= len(required), name
        assert len(ours) <= len(theirs), name
    for error in ("NVMLError_NotSupported", "NVMLError_InvalidArgument", "NVMLError_Timeout"):
        assert issubclass(getattr(pynvml, error), pynvml.NVMLError)


def test_the_numbers_of_reasons_and_fields_are_those_of_pynvml() -> None:
    from ccbench.machine import telemetry

    assert not pynvml.nvmlClocksThrottleReasonAll & ~sum(REASONS)  # older ones know fewer
    assert pynvml.nvmlEventTypeXidCriticalError == telemetry.XID_EVENT
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM) == (SM_CLOCK, MEMORY_CLOCK)
    assert {
        (getattr(pynvml, f"NVML_FI_DEV_{name}"), 0)
        for name in (
            "ECC_SBE_VOL_TOTAL",
            "ECC_DBE_VOL_TOTAL",
            "TOTAL_ENERGY_CONSUMPTION",
            "PCIE_REPLAY_COUNTER",
            "PERF_POLICY_POWER",
            "PERF_POLICY_THERMAL",
            "PERF_POLICY_BOARD_LIMIT",
            "PERF_POLICY_RELIABILITY",
        )
    } == {*telemetry.FIELDS}


@pytest.mark.parametrize("link", [0, 5, 6, 11, 12, 17])
def test_the_numbers_of_the_fields_of_links_are_those_of_pynvml(link: int) -> None:
    from ccbench.machine.telemetry import link_fields

    expected = {
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, link),
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, link),
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, link),
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, link),
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, link),
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC, link),
    }
    if link < 12:
        for what in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY"):
            expected.add((getattr(pynvml, f"NVML_FI_DEV_NVLINK_{what}_ERROR_COUNT_L{link}"), 0))
    assert set(link_fields(link)) == expected


def test_pynvmls_own_values_are_read_by_their_type() -> None:
    from ccbench.machine.accelerators import field_number

    value = pynvml.c_nvmlFieldValue_t()
    value.valueType, value.value.siVal = pynvml.NVML_VALUE_TYPE_SIGNED_INT, -5
    assert field_number(value) == -5
    value.valueType, value.value.dVal = pynvml.NVML_VALUE_TYPE_DOUBLE, 2.5
    assert field_number(value) == 2.5
    value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert field_number(value) is None


def test_a_watch_opens_the_driver_once_and_leaves_it() -> None:
    library = Nvml([Gpu()])
    watching = watch(library)
    for _ in range(3):
        watching.before()
        watching.after()
    assert (library.open, library.event_sets) == (1, 1)
    watching.close()
    assert (library.open, library.event_sets) == (0, 0)
    watching.before()
    assert library.open == 1
