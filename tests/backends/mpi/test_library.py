"""Which MPI it is, which launcher belongs to it, what it can be told: from what the tools print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.mpi import BACKEND, library
from ccbench.backends.mpi.library import (
    MpiLibrary,
    find_launcher,
    intel_presets,
    library_name,
    local_launch,
    mpich_algorithms,
    names_of,
    open_mpi_algorithms,
    settings,
    vendor,
)
from ccbench.cases.axes import Case
from ccbench.errors import UsageError
from ccbench.machine.mpi import INTEL_MPI, MPICH, OPEN_MPI, as_root, launcher_vendor
from ccbench.runner.workers.launcher import users_launch


def installed(name: str) -> MpiLibrary:
    return MpiLibrary(name, "4.1.2", f"/opt/{name}/lib/libmpi.so", f"/opt/{name}/bin/mpiexec")


@pytest.mark.parametrize(
    ("text", "name", "whose"),
    [
        (
            "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4\0",
            "Open MPI 4.1.4",
            OPEN_MPI,
        ),
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri", "MPICH 5.0.2", MPICH),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n", "Intel MPI 2021.18.1", INTEL_MPI),
        ("MVAPICH Version:      3.0\nMVAPICH Release date: x", "MVAPICH 3.0", MPICH),
        (
            "MPI VERSION    : CRAY MPICH version 8.1.28.15 (ANL base 3.4a2)",
            "Cray MPICH 8.1.28.15",
            MPICH,
        ),
        ("Some New MPI of the year 2031, built by hand", "Some New MPI of the year", ""),
        ("", "an MPI without a name", ""),
    ],
)
def test_libraries_are_named_with_their_version(text: str, name: str, whose: str) -> None:
    assert library_name(text) == name
    assert vendor(name) == whose


@given(st.text())
def test_any_text_of_a_library_becomes_one_line(text: str) -> None:
    name = library_name(text)
    assert name
    assert "\n" not in name


def fake(folder: Path, name: str, says: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nprint({says!r})\n")
    path.chmod(0o755)
    return str(path)


def test_the_launcher_beside_the_library_is_taken_before_one_in_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = fake(tmp_path / "mpi" / "bin", "mpiexec", "mpiexec (OpenRTE) 4.1.4")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    fake(tmp_path / "path", "mpiexec", "mpiexec (Open MPI) 5.0.1")
    (tmp_path / "mpi" / "lib").mkdir()
    launcher = find_launcher(str(tmp_path / "mpi" / "lib" / "libmpi.so.40"), OPEN_MPI)
    assert launcher == (own, "")


def test_a_launcher_of_another_make_is_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would start n worlds of one rank each without a word."""
    foreign = fake(tmp_path / "path", "mpiexec", "HYDRA build details:")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing" / "python"))
    path, reason = find_launcher("", OPEN_MPI)
    assert path == ""
    assert f"there is no mpiexec of it; {foreign} is MPICH" in reason
    assert find_launcher("", MPICH) == (foreign, "")


def test_launchers_say_whose_they_are(tmp_path: Path) -> None:
    says = {
        OPEN_MPI: "mpirun (Open MPI) 4.1.4",
        INTEL_MPI: "Intel(R) MPI Library for Linux* OS, Version 2021.18.1",
        MPICH: "HYDRA build details:",
        "": "mpiexec of nobody",
    }
    assert {
        launcher_vendor(fake(tmp_path, f"m{len(text)}", text)) for text in says.values()
    } == set(says)
    assert launcher_vendor(str(tmp_path / "none")) == ""


def test_without_mpi4py_the_cure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ccbench.backends.mpi.library.importlib.util.find_spec", lambda name: None
    )
    library.installed.cache_clear()
    try:
        assert str(library.installed()).startswith(
            "mpi4py is not installed; pip install '.[mpi]'"
        )
    finally:
        library.installed.cache_clear()


# -- algorithms -------------------------------------------------------------------------------------------

OMPI_INFO = """\
mca:coll:tuned:param:coll_tuned_allreduce_algorithm:enumerator:value:0:ignore
mca:coll:tuned:param:coll_tuned_allreduce_algorithm:enumerator:value:4:ring
mca:coll:tuned:param:coll_tuned_use_dynamic_rules:enumerator:value:1:true
mca:coll:tuned:param:coll_tuned_bcast_algorithm:enumerator:value:3:pipeline
"""

MPIVARS = """\
466 MPI Control Variables
\tMPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=0\tSCOPE_ALL_EQ\tNo-object\tMPI_INT\tVariable to select algorithm
auto - Internal algorithm selection
nb   - Force nonblocking algorithm
recursive_doubling - Force recursive doubling algorithm
\tMPIR_CVAR_ALLREDUCE_KVAL=2\tk value
other - of another variable
\tMPIR_CVAR_BCAST_INTRA_ALGORITHM =0\tSCOPE_ALL_EQ
binomial - Force binomial
"""


def test_every_library_lists_its_algorithms_its_own_way() -> None:
    assert open_mpi_algorithms(OMPI_INFO) == {
        "allreduce": {"ring": "4"},
        "bcast": {"pipeline": "3"},
    }
    assert mpich_algorithms(MPIVARS) == {
        "allreduce": {"recursive_doubling": "recursive_doubling"},
        "bcast": {"binomial": "binomial"},
    }
    assert intel_presets("Arguments\n range: 0-3 \n") == {
        "preset_1": "1",
        "preset_2": "2",
        "preset_3": "3",
    }
    assert intel_presets("nothing") == {}


@given(st.text())
def test_what_tools_print_never_breaks_the_readers(text: str) -> None:
    for parsed in (open_mpi_algorithms(text), mpich_algorithms(text), intel_presets(text)):
        assert isinstance(parsed, dict)


def test_an_algorithm_is_forced_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(command: list[str], environment: Mapping[str, str]) -> str:
        tool = Path(command[0]).name
        return {"ompi_info": OMPI_INFO, "mpivars": MPIVARS, "impi_info": "range: 0-2"}[tool]

    monkeypatch.setattr(library, "tool_output", answer)
    library.algorithms_of_library.cache_clear()
    ompi, mpich, intel = (
        installed("Open MPI 5"),
        installed("MPICH 5"),
        installed("Intel MPI 2021"),
    )
    assert names_of(ompi, "all_reduce") == ("mpi:ring",)
    assert (
        dict(settings(ompi, "all_reduce", "mpi:ring"))[
            "OMPI_MCA_coll_tuned_allreduce_algorithm"
        ]
        == "4"
    )
    assert settings(mpich, "broadcast", "mpi:binomial") == (
        ("MPIR_CVAR_DEVICE_COLLECTIVES", "none"),
        ("MPIR_CVAR_BCAST_INTRA_ALGORITHM", "binomial"),
    )
    assert settings(intel, "reduce_scatter", "mpi:preset_2") == (
        ("I_MPI_ADJUST_REDUCE_SCATTER_BLOCK", "2"),
    )
    for of in (ompi, mpich, intel):
        assert settings(of, "all_reduce", "default") == ()
        assert settings(of, "all_reduce", "mpi:no_such") == ()
        assert names_of(of, "send_recv") == ()


# -- launching --------------------------------------------------------------------------------------------


def test_ranks_of_this_host_are_started_by_the_library_s_own_launcher() -> None:
    launch = local_launch(installed("Open MPI 4.1.4"), 2)
    assert launch.command == ("/opt/Open MPI 4.1.4/bin/mpiexec", "-n", "2")
    assert dict(launch.environment)["OMPI_MCA_hwloc_base_binding_policy"] == "none"
    assert not launch.several_hosts
    assert dict(local_launch(installed("Intel MPI 2021"), 2).environment) == {"I_MPI_PIN": "0"}


def test_root_is_told_to_open_mpi_twice() -> None:
    assert [name for name, _ in as_root(0)] == [
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    ]
    assert as_root(1000) == ()


def test_the_user_s_own_launcher_is_read_as_a_shell_would(tmp_path: Path) -> None:
    launch = users_launch("srun -n 4 --comment 'a b'")
    assert launch.command == ("srun", "-n", "4", "--comment", "a b")
    assert launch.several_hosts
    assert launch.passed_by == ""
    own = fake(tmp_path, "mpirun", "mpirun (Open MPI) 4.1.4")
    assert users_launch(f"{own} -n 2").passed_by == "-x"
    with pytest.raises(UsageError, match="No closing quotation"):
        users_launch("mpirun 'x")
    with pytest.raises(UsageError, match="is empty"):
        users_launch(" ")


# -- another library --------------------------------------------------------------------------------------


def test_a_folder_stands_for_the_library_in_it_and_never_for_a_text_that_links_to_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so").write_text("libmpi.so.40")
    real = tmp_path / "lib" / "libmpi.so.40"
    real.write_bytes(b"\x7fELF...")
    settings = dict(library.loading(str(tmp_path)))
    assert settings["MPI4PY_LIBMPI"] == str(real)
    assert settings["LD_LIBRARY_PATH"].split(":")[0] == str(tmp_path / "lib")
    assert dict(library.loading(str(real)))["MPI4PY_LIBMPI"] == str(real)


def test_a_library_that_mpi4py_does_not_load_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = json.dumps(["Open MPI v4.1.4", "4.0.3", ["/usr/lib/libmpi.so.40"], True])
    done = subprocess.CompletedProcess([], 0, output, "")
    monkeypatch.setattr(
        "ccbench.backends.mpi.library.importlib.util.find_spec", lambda name: object()
    )
    monkeypatch.setattr("ccbench.backends.mpi.library.subprocess.run", lambda *_, **__: done)
    assert library.installed((("MPI4PY_LIBMPI", "/opt/other/libmpi.so"),)) == (
        "mpi4py 4.0.3 loads /usr/lib/libmpi.so.40, not /opt/other/libmpi.so; "
        "install mpi4py 4.1 or newer as a wheel"
    )
    library.installed.cache_clear()


@pytest.mark.parametrize(
    ("variant", "begin"), [("", "mpi4py is"), ("tuned", "variant tuned: ")]
)
def test_what_mpi_lacks_is_named_after_a_variant_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, variant: str, begin: str
) -> None:
    monkeypatch.setattr(
        "ccbench.backends.mpi._installed_with", lambda environment: "mpi4py is not installed"
    )
    case = Case("s", "mpi", "all_reduce", "default", "float32", "sum", 8, 2, 2, variant=variant)
    assert (BACKEND.variant_refused(case) or "").startswith(begin)
