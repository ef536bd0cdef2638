from __future__ import annotations

from ccbench.analysis.slow_ranks import UNNAMED, devices_with, flagged_devices
from ccbench.report.wording import footnote

from .machines import case, flagged, hot_readings, measured, run_of


def test_a_flag_is_laid_to_the_device_whose_readings_give_it() -> None:
    assert devices_with(hot_readings(), "throttled") == ["0000:3b:00.0 H100"]
    assert devices_with(hot_readings(), "ecc_errors") == []


def test_devices_are_counted_by_cases_and_flags() -> None:
    cases = [(("throttled", "other_load"), hot_readings())] * 3 + [(("ecc_errors",), "")]
    assert flagged_devices(cases) == [("throttled", "0000:3b:00.0 H100", 3), ("ecc_errors", UNNAMED, 1)]
    assert flagged_devices(cases, ("ecc_errors",)) == [("ecc_errors", UNNAMED, 1)]


def test_readings_that_cannot_be_read_name_no_device() -> None:
    assert devices_with("no JSON", "throttled") == []


def test_the_small_print_names_the_device() -> None:
    import numpy as np

    one = measured(case("all_reduce", 4096), 1e-5, np.random.default_rng(1), device_readings=hot_readings())
    run = run_of([flagged(one, "throttled")])
    assert "Devices: 0000:3b:00.0 H100 throttled (1 point)" in footnote(run.points)
