"""What all tests share: a clean environment, two tiers, and no silent skips in CI.

The quick tier (``make check``) is what every change is tried with: each thing that can fail by itself, once.
The exhaustive one (``make check-all``) adds the tests marked ``exhaustive``: every truncation point, mutant,
instance and pair of parameters, and what needs large packages. Of a test's combinations the quick tier has 12,
or n with ``@pytest.mark.thinned(n)``, in which as many values of each parameter appear as can. Properties are
tried on 20 examples there, and on 40 with ``--hypothesis-profile exhaustive``; on 200 that nobody has tried
yet with ``--hypothesis-profile explore``.

Under ``CCBENCH_CI=1`` a skipped test fails the session unless it has a mark of MAY_SKIP: a machine that builds
ccbench must be able to test all of it, but not every one has a GPU, MPICH in place of Open MPI, a kernel
and the rights to make network namespaces, or processors that nobody else uses; oneCCL has a leg of its own.

``CCBENCH_TESTED=FILE`` notes in a file which tests have passed, and leaves out those that it holds, but for
properties, which the exhaustive tier tries on more examples: what README's command has shown runs once.
"""

from __future__ import annotations

import functools
import os
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ("tests.processor_seconds",)

CI_VARIABLE = "CCBENCH_CI"
TESTED_VARIABLE = "CCBENCH_TESTED"

# A shell starts what runs in its background with Ctrl-C ignored, nohup with hang-ups, and every process below
# inherits that.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MAY_SKIP = {"gpu", "network", "mpich", "oneccl", "quiet"}
"""Marks of tests that need what not every machine has."""

ALONE = (
    "faults/test_launched_runs.py",
    "faults/test_slow_rank.py",
    "network",
    "backends/mpi",
    "backends/gloo",
    "traced_job",
)
"""Tests of libraries that keep files in the machine's shared memory, and of ranks that must not be slowed."""

MOST_COMBINATIONS = 12
"""Of one test in the quick tier, unless its mark says how many or they are goldens."""

HAS_GPUS = Path("/proc/driver/nvidia").exists()

GOLDEN_SECTION = (5**0.5 - 1) / 2

EXHAUSTIVE = ("backends/gloo", "traced_job")
"""Tests that need packages which the exhaustive tier alone installs."""

PORTABLE = (
    "backends/nccl/test_library_rank.py",
    "cli/test_commands.py",
    "cli/test_main.py",
    "cli/test_plan.py",
    "cli/test_surface.py",
    "machine",
    "report/page",
    "report/test_nccl_tests.py",
    "report/test_writing.py",
    "results/test_folder.py",
    "results/test_loading.py",
    "runner/test_planning.py",
    "runner/test_starting.py",
    "suite",
    "test_imports.py",
    "readers/machines",
    "topology/test_fabrics.py",
    "topology/test_files.py",
    "topology/test_whole_way.py",
)
"""Tests of what other versions of Python and of libraries do otherwise."""


@functools.cache
def is_among(path: Path, places: tuple[str, ...]) -> bool:
    """Whether a file of tests is one of ``places`` or below."""
    return any(path.is_relative_to(Path(__file__).parent / place) for place in places)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which ``make`` asks for no test: reading all of them takes long."""
    asked = config.getoption("markexpr").split(" and ")
    if (
        "portable" in asked
        and collection_path.is_file()
        and not is_among(collection_path, PORTABLE)
    ):
        return True
    if collection_path.is_dir() or not {"alone", "not alone"} & set(asked):
        return None
    return is_among(collection_path, ALONE) != ("alone" in asked) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what must run by itself and what is left to the exhaustive tier; leave out what has passed."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if is_among(item.path, ALONE):
            item.add_marker("alone")
        if is_among(item.path, EXHAUSTIVE):
            item.add_marker("exhaustive")
        if is_among(item.path, PORTABLE):
            item.add_marker("portable")
        # On a machine with GPUs everything is tried on them.
        on_gpu = (
            HAS_GPUS
            and is_among(item.path, ("gpu",))
            and not item.get_closest_marker("thinned")
        )
        golden = item.path.name == "test_goldens.py"
        if isinstance(item, pytest.Function) and not on_gpu and not golden:
            tests[f"{item.path}::{item.originalname}"].append(item)
    for combinations in tests.values():
        for item in left_to_the_exhaustive_tier(combinations):
            item.add_marker("exhaustive")
    leave_out_tested(config, items)


def tested_file() -> Path | None:
    """The file that ``CCBENCH_TESTED`` names."""
    named = os.environ.get(TESTED_VARIABLE)
    return Path(named) if named else None


def leave_out_tested(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that an earlier session has passed, but for properties."""
    noted = tested_file()
    if noted is None or not noted.exists():
        return
    passed = set(noted.read_text().splitlines())
    again = {
        item.nodeid
        for item in items
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    }
    left_out = [item for item in items if item.nodeid in passed - again]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid not in passed - again]


def left_to_the_exhaustive_tier(combinations: list[pytest.Function]) -> list[pytest.Function]:
    """All but as many combinations as the quick tier has: those that bring most values not seen yet.

    Of equals the next in golden sections, which fall on no value of a parameter more often than on another.
    """
    mark = combinations[0].get_closest_marker("thinned")
    most = mark.args[0] if mark else MOST_COMBINATIONS
    if len(combinations) <= most:
        return []
    order = sorted(range(len(combinations)), key=lambda place: place * GOLDEN_SECTION % 1)
    given = [combinations[one].callspec.params for one in order]
    values = [{(name, id(value)) for name, value in one.items()} for one in given]
    kept, seen = set[int](), set[tuple[str, int]]()
    for _ in range(most):
        best = max(
            (index for index in range(len(order)) if index not in kept),
            key=lambda one: len(values[one] - seen),
        )
        kept.add(best)
        seen |= values[best]
    return [combinations[order[index]] for index in range(len(order)) if index not in kept]


_skipped: list[str] = []
_passed: list[str] = []

# Examples are not timed: a busy machine would fail them, and speed is no subject of these tests. Both tiers try
# the same examples every time, so that what a change did not touch cannot fail it; 'explore' draws new ones.
settings.register_profile("quick", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("exhaustive", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=200)
settings.load_profile(
    "quick"
)  # unless an option names another, which hypothesis loads after this


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the person who runs the tests reaches them, nor their disk's speed."""
    for name in list(os.environ):
        if name.startswith(("CCBENCH_", "_CCBENCH_", "NCCL_")) and name != CI_VARIABLE:
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    # Nobody cuts the power, and waiting for the disk took most of the time of writing a run's files.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    expected_to_fail = hasattr(report, "wasxfail")
    if (
        report.skipped
        and not expected_to_fail
        and not MAY_SKIP & set(getattr(report, "keywords", ()))
    ):
        reason = (
            report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        )
        _skipped.append(f"{report.nodeid}: {reason}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect tests that skipped, and those that passed."""
    _note_skip(report)
    if report.when == "call" and report.passed:
        _passed.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Collect modules that skipped as a whole."""
    _note_skip(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note what passed; fail a CI session that skipped what it should not."""
    noted = tested_file()
    if noted is not None and not hasattr(
        session.config, "workerinput"
    ):  # the reports of workers arrive here, too
        with noted.open("a") as file:
            file.writelines(f"{passed}\n" for passed in _passed)
    if (
        os.environ.get(CI_VARIABLE) == "1"
        and _skipped
        and session.exitstatus == pytest.ExitCode.OK
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests skipped, a line for each reason, and which skips failed the session."""
    reasons = Counter(
        report.longrepr[2]
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    for reason, number in reasons.most_common():
        terminalreporter.write_line(f"{number} x {reason}")
    if os.environ.get(CI_VARIABLE) == "1" and _skipped:
        terminalreporter.section("skips that are not allowed in CI")
        for line in _skipped:
            terminalreporter.write_line(line)
