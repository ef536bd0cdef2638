from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.score.manifest import ManifestEntry
from ccbench.cases.measurement import Measurement, Status
from ccbench.errors import UsageError
from ccbench.model.library import LibraryRequest
from ccbench.readers.benchmarks import read_log
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.results import load_run
from ccbench.results.imported_runs import import_logs, write_import
from ccbench.results.observed import RunPoints, asked_of, recorded_machine, run_points
from tests.score.corpora import all_reduce_text, entry, log, row
from tests.score.library_runs import SIZES, flagged, measurement, sweep, write_run


def points(
    folder: Path, cases: list[Measurement], manifest: dict[str, Any] | None = None
) -> RunPoints:
    return run_points(load_run(write_run(folder / "run", cases, manifest)))


def test_what_cannot_be_trusted_or_modelled_is_left_out_and_counted(tmp_path: Path) -> None:
    cases = [
        *sweep(),
        flagged(64, 1.0),
        measurement(64, 1.0, status=Status.FAILED, in_place=True, samples_seconds=()),
        measurement(0, 1e-5),
        measurement(64, 1e-5, backend="gloo"),
        measurement(64, 1e-5, algorithm="two_shot"),
        measurement(64, 1e-5, ranks=1),
        measurement(64, 1e-5, simulated=True, mode="graph"),
    ]
    of_run = points(tmp_path, cases)
    assert sum(len(seconds) for _, seconds in of_run.requests) == len(SIZES)
    left_out = "\n".join(of_run.left_out)
    for reason in (
        "throttled",
        "status failed",
        "size 0",
        "gloo",
        "two_shot",
        "one rank",
        "simulated",
    ):
        assert reason in left_out
    assert all(line.startswith("1 row: ") for line in of_run.left_out)


def test_variables_of_the_run_say_what_was_forced(tmp_path: Path) -> None:
    manifest = {
        "environment": {
            "variables": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL", "NCCL_NVLS_ENABLE": "0"}
        }
    }
    ((request, _),) = points(tmp_path, sweep(), manifest).requests
    assert (request.algorithm, request.protocol, request.multicast_off) == ("ring", "ll", True)


def test_an_imported_log_says_how_it_was_launched(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(all_reduce_text(lambda size: 40 + size / 3e5, gpus=8))
    system = StatedSystem("hgx-h100", 8, 1)
    files = import_logs([(tmp_path / "log.txt", read_log(tmp_path / "log.txt"))], system)
    run = load_run(write_import(tmp_path / "run", files, system, "log"))
    of_run = run_points(run)
    assert {request.gpus_per_process for request, _ in of_run.requests} == {8}
    assert {request.in_place for request, _ in of_run.requests} == {False, True}
    assert recorded_machine(run, of_run) == ("hgx-h100", "which the run names")
    assert run.manifest.network == ""


def test_one_of_several_systems_must_be_chosen(tmp_path: Path) -> None:
    run = load_run(
        write_run(
            tmp_path / "run", [*sweep(), *sweep(ranks=16, nodes=2), *sweep(ranks=16, nodes=4)]
        )
    )
    with pytest.raises(
        UsageError, match="holds runs on 8, 16 ranks; choose one, such as --ranks 16"
    ):
        run_points(run)
    with pytest.raises(
        UsageError, match="holds runs on 2, 4 nodes; choose one, such as --nodes 4"
    ):
        run_points(run, ranks=16)
    with pytest.raises(UsageError, match=r"--ranks 9: .* holds points on 8, 16 ranks"):
        run_points(run, ranks=9)
    with pytest.raises(UsageError, match=r"--nodes 3: .* on 2, 4 nodes"):
        run_points(run, ranks=16, nodes=3)
    assert (run_points(run, ranks=8).nodes, run_points(run, ranks=16, nodes=4).nodes) == (1, 4)


@pytest.mark.parametrize("cases", [[], [measurement(64, 1e-5, backend="mpi")]])
def test_a_run_without_a_library_is_refused_with_the_reason(
    tmp_path: Path, cases: list[Measurement]
) -> None:
    with pytest.raises(UsageError, match=r"nothing to fit to .*(no rows|mpi)"):
        points(tmp_path, cases)


@pytest.mark.parametrize(
    ("devices", "ranks", "expected"),
    [
        (("NVIDIA H100 80GB HBM3",), 8, "hgx-h100"),
        (("A100-SXM4-40GB",), 8, "dgx-a100"),
        (("Tesla V100-SXM3-32GB",), 16, "dgx-2"),
        (("AMD Instinct MI300X",), 8, "mi300x"),
    ],
)
def test_devices_tell_the_machine_where_one_of_the_catalog_has_them(
    tmp_path: Path, devices: tuple[str, ...], ranks: int, expected: str
) -> None:
    run = load_run(write_run(tmp_path / "run", sweep()))
    machine, why = recorded_machine(run, RunPoints(ranks, 1, devices, "NCCL", (), ()))
    assert machine == expected
    assert devices[0] in why


@pytest.mark.parametrize(
    ("devices", "ranks", "reason"),
    [
        ((), 8, "give --machine"),
        (("Quantum 9",), 8, "Quantum 9"),
        (("NVIDIA H100 80GB HBM3",), 9, "give --machine"),
        (("NVIDIA GeForce RTX 4090",), 4, "one of rtx-pcie, rtx-pcie-p2p"),
    ],
)
def test_a_machine_that_is_not_told_must_be_given(
    tmp_path: Path, devices: tuple[str, ...], ranks: int, reason: str
) -> None:
    run = load_run(write_run(tmp_path / "run", sweep(), {"machine": {"name": "my box"}}))
    with pytest.raises(UsageError, match="does not say which machine") as caught:
        recorded_machine(run, RunPoints(ranks, 1, devices, "NCCL", (), ()))
    assert reason in str(caught.value)
    assert "'my box'" in str(caught.value)


NOTHING = ": nothing that the model describes"


def answer(words: ManifestEntry, **changes: Any) -> LibraryRequest | str:
    shown = log([row(8, 1e-5)], **changes)
    return asked_of(words, shown, shown.tables[0])


def library_request(words: ManifestEntry, **changes: Any) -> LibraryRequest:
    request = answer(words, **changes)
    assert isinstance(request, LibraryRequest), request
    return request


@pytest.mark.parametrize(
    ("forced", "algorithm", "protocol", "multicast_off"),
    [
        ("none known", "default", "default", False),
        ("NCCL_ALGO=Tree NCCL_PROTO=Simple", "tree", "simple", True),
        ("NCCL_ALGO=CollnetChain, NCCL_DEBUG=INFO", "collnet", "default", True),
        ("NCCL_PROTO=LL128", "default", "ll128", False),
        ("NCCL_NVLS_ENABLE=0", "default", "default", True),
        ("NCCL_NVLS_ENABLE=1/0", "default", "default", False),
        ("column 4: NCCL_NVLS_ENABLE=0", "default", "default", False),
        ("NCCL_ALGO=Ring,Tree", "default", "default", True),
        ("NCCL_ALGO=^NVLS,NVLSTree", "default", "default", True),
        ("NCCL_ALGO=^CollnetDirect", "default", "default", False),
        ("NCCL_ALGO=NVLS", "nvls", "default", False),
        ("NVLS disabled", "default", "default", True),
        ("IB SHARP enabled by the job", "default", "default", False),
    ],
)
def test_what_was_forced_is_asked_for(
    forced: str, algorithm: str, protocol: str, multicast_off: bool
) -> None:
    request = library_request(entry(forced=forced))
    assert (request.algorithm, request.protocol, request.multicast_off) == (
        algorithm,
        protocol,
        multicast_off,
    )


def test_trees_that_are_switched_off_leave_rings() -> None:
    assert (
        library_request(entry(), environment={"NCCL_TREE_THRESHOLD": "0"}).algorithm == "ring"
    )


@pytest.mark.parametrize(
    ("words", "changes", "reason"),
    [
        ({}, {"tool": "mscclpp", "library": ""}, "mscclpp"),
        ({}, {"tool": "osu", "library": "MPI"}, "MPI"),
        ({}, {"algorithm": "kernel:3"}, "kernel:3"),
        ({"collective": ""}, {"collective": ""}, "collective"),
        ({}, {"collective": "barrier"}, "collective"),
        # A variable that is not understood is named with its value.
        ({}, {"environment": {"NCCL_ALGO": "Foo"}}, f"NCCL_ALGO=Foo{NOTHING}"),
        (
            {"forced": "NCCL_ALGO=Foo NCCL_PROTO=LL256"},
            {},
            f"NCCL_ALGO=Foo and NCCL_PROTO=LL256{NOTHING}",
        ),
        ({}, {"algorithm": "msccl"}, f"msccl{NOTHING}"),
    ],
)
def test_what_the_model_is_not_of_is_a_reason(
    words: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    answered = answer(entry(**words), **changes)
    assert isinstance(answered, str)
    assert answered == reason if NOTHING in reason else reason in answered
