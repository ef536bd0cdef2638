"""The file of a calibrated cluster: the same value back, and one line about anything else."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model.calibrated import (
    ORIGINS,
    Base,
    CalibratedCluster,
    Measured,
    MeasuredAs,
    calibrate_cluster,
    calibrated_points,
    faster_than_bound,
    is_calibrated_file,
    load_calibrated,
    modelled,
    open_base,
    save_calibrated,
)
from ccbench.model.library import LibraryRequest
from ccbench.model.library.calibration import (
    Observation,
    ScaleEstimate,
    calibrate,
    scale_estimates,
)
from ccbench.model.library.constants import MEASURED_LEVELS, shipped
from ccbench.model.library.predictor import predict_library
from ccbench.topology.files import load_catalog, to_plain
from tests.model.planted import PROVENANCE, SCALES, SIZES, base, calibrated, measured

POSITIVE = st.floats(1e-8, 1e8)


@st.composite
def clusters(draw: st.DrawFn) -> CalibratedCluster:
    scales = draw(
        st.lists(
            st.tuples(st.text(min_size=1), POSITIVE), max_size=4, unique_by=lambda one: one[0]
        )
    )
    nodes, network = draw(st.sampled_from([(1, ""), (2, "ib-ndr-400x8"), (16, "roce-100x16")]))
    machine: Any = draw(st.sampled_from(["dgx-a100", to_plain(load_catalog("hgx-h100"))]))
    return CalibratedCluster(
        name=draw(st.text(min_size=1)),
        machine=machine,
        ranks=nodes * draw(st.integers(1, 8)),
        nodes=nodes,
        network=network,
        measured_as=MeasuredAs(draw(st.integers(1, 16)), draw(st.booleans()), (2, 20)),
        scales=tuple(ScaleEstimate(term, scale, 5, 0.5) for term, scale in scales),
        measured=("all_reduce",),
        constants={name: draw(POSITIVE) for name in shipped().table},
        points=9,
        run=draw(st.text()),
        calibrated_at="2026-01-01T00:00:00+00:00",
        origins={name: draw(st.text(min_size=1)) for name in ORIGINS},
    )


@settings(max_examples=20)
@given(machine=clusters())
def test_a_saved_machine_is_read_back_as_it_was(
    machine: CalibratedCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("machines") / "mine.yaml"
    save_calibrated(machine, file)
    assert load_calibrated(file) == machine
    assert is_calibrated_file(file)


def _without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda plain: plain.pop(name)


def _with(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda plain: plain.update(changes)


def refusal(load: Callable[[Path], object], file: Path) -> str:
    """What is said of a file that is no machine: one line that begins with the file."""
    with pytest.raises(MachineError) as caught:
        load(file)
    message = str(caught.value)
    assert message.startswith(f"{file}:")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_with(kind="cpu"), "kind is 'cpu', expected calibrated-cluster"),
        (_with(version=1), "version"),
        (_with(machine="dgx-a1000"), "did you mean dgx-a100"),
        (_with(machine={"name": "x"}), "ccbench_topology"),
        (_with(nodes=0), "nodes: 0 is not between 1"),
        (_with(ranks=33), "33 ranks do not spread evenly"),
        (_with(network=""), "need a network"),
        (_with(network="ib-ndr-fast"), "write for example ib-ndr-400x8"),
        (
            _with(nodes="4"),
            "nodes: input should be a valid integer; seen '4'; write numbers without quotes",
        ),
        (_with(colour="red"), "colour"),
        (_with(name=""), "name: empty"),
        (_without("measured"), "measured"),
        (lambda plain: plain["origins"].pop("scales"), "origins: nothing about scales"),
        (lambda plain: plain["origins"].update(luck="yes"), "origins: 'luck' is not one of"),
        (lambda plain: plain["constants"].pop("base"), "constants: 'base' is missing"),
        (
            lambda plain: plain["constants"].update(base=-1.0),
            "constants: base: -1.0 is not between 1e-09 and 1e+09",
        ),
        (lambda plain: plain["scales"][0].update(apart=9.0), "apart is 9.0, no share"),
        (
            lambda plain: plain["measured_as"].update(gpus_per_process=0),
            "gpus_per_process: 0 is not",
        ),
        (_with(ranks=10**400), "ranks: a number"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[dict[str, Any]], object], said: str
) -> None:
    file = tmp_path / "mine.yaml"
    save_calibrated(calibrated(), file)
    plain = yaml.safe_load(file.read_text(encoding="utf-8"))
    damage(plain)
    file.write_text(_dumped(plain), encoding="utf-8")
    message = refusal(load_calibrated, file)
    assert said in message
    assert len(message) < 600


def _dumped(plain: dict[str, Any]) -> str:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(plain, Dumper=Plain, sort_keys=False)


@given(data=st.data())
def test_a_file_with_a_few_bytes_changed_is_read_or_refused_in_one_line(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    sound = folder / "sound.yaml"
    if not sound.exists():
        save_calibrated(calibrated(), sound)
    content = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(9, 126))
    damaged = folder / "damaged.yaml"
    damaged.write_bytes(
        bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    )
    try:
        load_calibrated(damaged)
    except MachineError as error:
        assert "\n" not in str(error)  # noqa: PT017  # most damage is refused, some is still a machine


def test_other_machine_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text("ccbench_topology: 1\nname: x\n")
    (tmp_path / "mine.txt").write_text("kind: calibrated-cluster\n")
    assert not is_calibrated_file(tmp_path / "topology.yaml")
    assert not is_calibrated_file(tmp_path / "mine.txt")
    assert not is_calibrated_file(tmp_path / "absent.yaml")
    assert not is_calibrated_file("hgx-h100")
    too_long = "x" * 300 + ".yaml"
    assert not is_calibrated_file(too_long)


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be written"):
        save_calibrated(calibrated(), tmp_path / "absent" / "mine.yaml")


COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
)
MACHINES = (
    ("dgx-a100", 1, "", 8),
    ("dgx-a100", 4, "ib-hdr-200x8", 32),
    ("hgx-h100", 1, "", 8),
    ("hgx-h100", 2, "ib-ndr-400x8", 16),
    ("pcie4-x16", 1, "", 8),
    ("mi300x", 1, "", 8),
    ("dgx-1v", 1, "", 8),
)


@functools.lru_cache(maxsize=64)
def fitted_to(place: int, factor: float, collective: str) -> tuple[Base, Measured]:
    """A machine, and ``collective`` there that takes the model's time times ``factor`` at some sizes."""
    name, nodes, network, ranks = MACHINES[place]
    on = open_base(name, nodes, network or None, ranks)
    request = LibraryRequest(collective, (8, 1 << 20, 1 << 30))
    usual = predict_library(on.cluster.system, request)
    return on, (request, tuple(factor * point.seconds for point in usual))


@pytest.mark.exhaustive
@given(
    place=st.integers(0, len(MACHINES) - 1),
    factor=st.sampled_from([1e-6, 0.01, 0.3, 0.7, 1.0, 3.0]),
    measured=st.sampled_from(["all_reduce", "all_to_all"]),
    collective=st.sampled_from(COLLECTIVES),
    sizes=st.lists(st.integers(1, 1 << 36), min_size=1, max_size=5),
)
def test_calibrated_is_never_below_the_bound(
    place: int, factor: float, measured: str, collective: str, sizes: list[int]
) -> None:
    on, times = fitted_to(place, factor, measured)
    request = LibraryRequest(collective, tuple(sizes))
    machine = calibrate_cluster(on, [times], PROVENANCE)
    for point in calibrated_points(machine, request):
        assert point.calibrated_seconds >= point.point.prediction.bound_seconds
        assert math.isfinite(point.calibrated_seconds)


def test_a_collective_that_was_not_measured_has_the_same_scales() -> None:
    machine = calibrated(collectives=("all_reduce",))
    (point,) = calibrated_points(machine, LibraryRequest("all_gather", (1 << 30,)))
    (other,) = calibrated_points(calibrated(), LibraryRequest("all_gather", (1 << 30,)))
    assert point.calibrated_seconds == pytest.approx(other.calibrated_seconds, rel=0.05)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("nodes", "sweeps", "apart", "levels"),
    [(1, 2, 0.06, 7), (1, 40, 0.004, 7), (2, 20, 0.03, 6)],
)
def test_planted_scales_are_found_again(
    nodes: int, sweeps: int, apart: float, levels: int
) -> None:
    """The pull towards one is worth a point or so, and vanishes as points become many."""
    found = calibrated("hgx-h100", nodes, sweeps=sweeps).scales
    assert [one.term for one in found] == list(MEASURED_LEVELS)
    seen = {one.term: one.scale for one in found if one.points >= 10 * sweeps}
    assert len(seen) == levels
    assert seen == pytest.approx({term: SCALES[term] for term in seen}, rel=apart)


def test_a_scale_that_no_point_depends_on_stays_one() -> None:
    machine = calibrated(nodes=1)
    across = next(scale for scale in machine.scales if scale.term == "rate across")
    assert (across.scale, across.points, across.apart) == (1.0, 0, 0.0)


def test_no_size_is_refused() -> None:
    with pytest.raises(MachineError, match=r"a-run: no size of .* can be used"):
        calibrate_cluster(base(nodes=1), [], PROVENANCE)


def test_what_the_machine_cannot_do_is_told_apart() -> None:
    on = base(nodes=1)
    possible = measured(on.cluster.system, SCALES)
    nvls = (
        LibraryRequest("all_reduce", (8, 16), algorithm="nvls"),
        (1e-5, 1e-5),
    )  # asks for Hopper
    kept, reasons = modelled(on, [*possible, nvls])
    assert kept == possible
    (reason,) = reasons
    assert reason.startswith("2 rows: all_reduce with algorithm nvls")


def test_points_faster_than_the_bound_are_counted() -> None:
    on = base(nodes=1)
    possible = measured(on.cluster.system, SCALES)
    assert faster_than_bound(on, possible) == 0
    impossible = [
        (request, tuple(one / 100 for one in seconds)) for request, seconds in possible
    ]
    large = sum(size >= 1 << 30 for request, _ in possible for size in request.size_bytes)
    assert large <= faster_than_bound(on, impossible) < 2 * len(SIZES)


def test_a_rate_at_its_limit_still_has_points() -> None:
    """Links faster than their nominal rate: the efficiency stops at one, whatever the scale."""
    system = base("dgx-a100", 4).cluster.system
    fast = measured(
        system, {**SCALES, "rate across": 1.1}, ("all_reduce", "all_gather"), noise=0.02
    )
    points = [
        Observation(system, request, tuple(s * 0.97 for s in seconds))
        for request, seconds in fast
    ]
    across = next(
        estimate
        for estimate in scale_estimates(calibrate(points), points)
        if estimate.term == "rate across"
    )
    assert across.scale > 1.0
    assert across.points >= 10
