"""What a variant may set, what is refused before anything starts, and how its teams and rounds are made."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends import open_backend
from ccbench.cases.axes import Case, Variant
from ccbench.cases.measurement import Measurement, Sampling
from ccbench.errors import SuiteError
from ccbench.results import load_run
from ccbench.runner import planning
from ccbench.runner.measure import turned
from ccbench.runner.planning import RunOptions, plan_suite
from ccbench.runner.progress import Progress
from ccbench.runner.run import run_suite
from ccbench.runner.variants import refuse_variants
from ccbench.suite.model import Suite, read_suite
from tests.runner.test_run import Teams, good

CASE = Case("s", "mpi", "all_reduce", "default", "float32", "sum", 8, 2, 2)


def suite(
    variants: str, sweep: str = "collective: all_reduce, size: [8, 64], ranks: 2"
) -> Suite:
    return read_suite(f"backends: [mpi]\nvariants: {variants}\nsweep: {{{sweep}}}")


def named(name: str, size: int = 8, **changes: object) -> Case:
    variant = Variant(name, **changes)  # type: ignore[arg-type]  # the caller names fields of Variant
    return replace(CASE, variant=name, started_with=variant, size_bytes=size, count=size // 4)


# -- what may be set --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_ALGO",
        "OMPI_MCA_pml",
        "I_MPI_ADJUST_ALLREDUCE",
        "CCL_ALLREDUCE",
        "LD_PRELOAD",
        "UCX_TLS",
    ],
)
def test_variables_of_libraries_and_the_loaders_may_be_set(name: str) -> None:
    refuse_variants(suite(f"{{a: {{env: {{{name}: {__file__}}}}}}}"), allowed=True)


def test_what_a_loader_would_not_find_is_refused() -> None:
    env = "{a: {env: {LD_PRELOAD: /usr /none.so}}}"
    with pytest.raises(
        SuiteError, match=r"LD_PRELOAD: names /none\.so, which is not there; write whole paths"
    ):
        refuse_variants(suite(env))
    refuse_variants(suite(env), elsewhere=True, allowed=True)


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "CCBENCH_LEADER", "PYTHONPATH", "SLURM_JOB_ID", "RANK"]
)
def test_other_variables_are_refused_with_their_place_and_the_cure(name: str) -> None:
    with pytest.raises(SuiteError) as refused:
        refuse_variants(suite(f"{{a: {{env: {{{name}: x}}}}}}"))
    assert str(refused.value) == (
        f"suite:2: variants.a.env.{name}: is no variable of a library of communication; "
        "write one such as NCCL_BUFFSIZE or OMPI_MCA_pml, or LD_LIBRARY_PATH or LD_PRELOAD"
    )


@given(
    st.sampled_from(
        ["NCCL_TOKEN", "UCX_API_KEY", "OMPI_MCA_password", "FI_SECRET_ID", "GLOO_AUTH"]
    ),
    st.text("abcdef0123456789", min_size=6, max_size=20),
)
def test_what_is_called_a_secret_is_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(
        SuiteError, match=f"variants.a.env.{name}: looks like a secret"
    ) as refused:
        refuse_variants(suite(f"{{a: {{env: {{{name}: 'x{value}'}}}}}}"))
    assert value not in str(refused.value)


@pytest.mark.parametrize(
    "value", ["ghp_0123456789abcdef", "https://me:word@host/x", "token=abcdefgh"]
)
def test_what_looks_like_a_secret_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(SuiteError, match="looks like a secret; leave it out") as refused:
        refuse_variants(suite(f"{{a: {{env: {{NCCL_NET_PLUGIN: '{value}'}}}}}}"))
    assert value not in str(refused.value)


def test_a_library_is_there_by_its_whole_path_unless_ranks_are_elsewhere(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        SuiteError, match=r"variants\.a\.library: is no whole path; write the whole path"
    ):
        refuse_variants(suite("{a: {library: libnccl.so}}"))
    absent = suite(f"{{a: {{library: {tmp_path / 'none.so'}}}}}")
    with pytest.raises(
        SuiteError, match=r"variants\.a\.library: is not there; write the path of a library"
    ):
        refuse_variants(absent)
    refuse_variants(absent, elsewhere=True, allowed=True)


LOADED = [
    "env: {LD_PRELOAD: /usr}",
    "env: {LD_LIBRARY_PATH: /usr}",
    "env: {NCCL_NET_PLUGIN: fast}",
    "env: {NCCL_TUNER_PLUGIN: /usr/lib/tuner.so}",
    "env: {NCCL_CONF_FILE: /etc/nccl.conf}",
    "env: {OMPI_MCA_mca_base_component_path: /usr}",
    "env: {OMPI_MCA_mca_base_env_list: 'LD_PRELOAD=/usr'}",
    "env: {OMPI_MCA_plm_rsh_agent: sh}",
    "env: {OMPI_MCA_plm_rsh_args: '-oProxyCommand=id'}",
    "env: {OMPI_MCA_orte_base_user_debugger: 'sh -c id'}",
    "env: {OMPI_MCA_orte_xterm: '0'}",
    "env: {OMPI_MCA_orte_fork_agent: '1'}",
    "env: {NCCL_NET_PLUGIN: '1'}",
    "env: {I_MPI_HYDRA_BOOTSTRAP: '1'}",
    "env: {I_MPI_GTOOL: gdb}",
    "env: {I_MPI_DEBUG_OUTPUT: x}",
    "env: {I_MPI_TMPDIR: x}",
    "env: {UCX_STATS_DEST: 'file:x'}",
    "env: {UCX_MEMTRACK_DEST: 'file:x'}",
    "env: {UCX_ERROR_MAIL_TO: 'a@b'}",
    "env: {CUDA_INJECTION64_PATH: /usr/lib/x.so}",
    "env: {FI_PROVIDER_PATH: /usr/lib}",
    "library: /usr",
]


@pytest.mark.parametrize("settings", LOADED)
def test_files_that_ranks_would_load_need_the_users_word(settings: str) -> None:
    sentence = r"variants\.a: has the ranks load files .* if you trust this suite, run it with --allow-libraries"
    with pytest.raises(SuiteError, match=sentence):
        refuse_variants(suite(f"{{a: {{{settings}}}}}"))
    refuse_variants(suite(f"{{a: {{{settings}}}}}"), allowed=True)


@pytest.mark.parametrize(
    "setting",
    [
        "NCCL_BUFFSIZE: 8M",
        "OMPI_MCA_btl_tcp_if_include: '10.0.0.0/8,fe80::/10'",
        "OMPI_MCA_pml: ucx",
        "UCX_NET_DEVICES: 'mlx5_0:1'",
        "I_MPI_DEBUG: 5",
        "CUDA_MODULE_LOADING: LAZY",
        "OMPI_MCA_coll_tuned_use_dynamic_rules: 1",
    ],
)
def test_settings_that_name_no_file_need_no_word(setting: str) -> None:
    refuse_variants(suite(f"{{a: {{env: {{{setting}}}}}}}"))


@pytest.mark.parametrize(
    "setting",
    [
        "LD_PRELOAD: evil.so",
        "LD_PRELOAD: ./evil.so",
        "LD_LIBRARY_PATH: '/usr:'",
        "NCCL_NET_PLUGIN: ./evil.so",
        "NCCL_TUNER_PLUGIN: a/1",
        "NCCL_BUFFSIZE: ab/1",
        "OMPI_MCA_mca_base_component_path: ./1",
        "OMPI_MCA_mca_base_component_path: '1'",
        "UCX_MODULE_DIR: '1'",
        "UCX_MODULE_DIR: modules",
        "OMPI_MCA_mca_base_component_path: '/usr:plugins'",
        "OMPI_MCA_mca_base_env_list: 'LD_PRELOAD=./evil.so'",
    ],
)
def test_files_that_depend_on_the_working_folder_are_refused_whatever_is_allowed(
    setting: str,
) -> None:
    with pytest.raises(
        SuiteError, match=r"which is no whole path; write whole paths, from '/' on"
    ):
        refuse_variants(suite(f"{{a: {{env: {{{setting}}}}}}}"), allowed=True)


@pytest.mark.parametrize("backend", ["mpi", "nccl"])
@pytest.mark.parametrize("settings", ["env: {LD_PRELOAD: %s}", "library: %s"])
def test_a_plan_loads_no_file_of_a_suite_and_says_what_a_run_needs(
    settings: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libmpi.so"
    library.touch()
    started: list[str] = []
    start = subprocess.Popen.__init__

    def watched(
        self: subprocess.Popen[str], command: object, *rest: Any, **options: Any
    ) -> None:
        started.append(f"{command} {options.get('env')}")
        start(self, command, *rest, **options)  # type: ignore[call-overload]  # passed on as it came

    monkeypatch.setattr(subprocess.Popen, "__init__", watched)
    text = suite(f"{{a: {{}}, b: {{{settings % library}}}}}").model_copy(
        update={"backends": (backend,)}
    )
    plan = plan_suite(text, RunOptions(only_plan=True))
    assert len(plan.cases) == 4
    assert not [command for command in started if str(library) in command]
    assert (
        "variant b: its files were not looked into; to run it, add --allow-libraries"
        in plan.notes
    )
    with pytest.raises(SuiteError, match="--allow-libraries"):
        plan_suite(text, RunOptions())


def test_a_backend_without_a_library_file_refuses_one_in_one_line() -> None:
    gloo = replace(named("new", library="/opt/x.so"), backend="gloo")
    sentence = "variant new: gloo has no library that another can replace; leave it out"
    assert open_backend("gloo").unsupported(gloo) == sentence
    assert open_backend("gloo").unsupported(replace(gloo, started_with=Variant("new"))) is None


def test_ranks_of_nccl_load_the_variants_library_before_any_other() -> None:
    new = replace(named("new", library="/opt/libnccl.so.2"), backend="nccl")
    assert open_backend("nccl").environment(new) == (("LD_PRELOAD", "/opt/libnccl.so.2"),)


# -- teams and rounds -------------------------------------------------------------------------------------


names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)


@given(st.lists(names, min_size=1, max_size=5))
def test_a_turn_reverses_variants_of_a_point_and_nothing_else(
    points: Sequence[Sequence[str]],
) -> None:
    cases = [
        named(name, 8 * (place + 1)) for place, those in enumerate(points) for name in those
    ]
    assert [variant_case.size_bytes for variant_case in turned(cases)] == [
        variant_case.size_bytes for variant_case in cases
    ]
    assert [variant_case.variant for variant_case in turned(cases)] == [
        name for those in points for name in reversed(those)
    ]
    assert turned(turned(cases)) == cases
    plain = [
        replace(variant_case, variant="", size_bytes=place)
        for place, variant_case in enumerate(cases)
    ]
    assert turned(plain) == plain


@pytest.fixture
def cases_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Case]]:
    """The cases that teams made of answers were asked, in order; interval: as narrow as can be, but of b."""
    cases: list[Case] = []
    launches: list[int] = []

    def answer(case: Case, sampling: Sampling) -> Measurement:
        cases.append(case)
        launches.append(sampling.launches)
        rounds = sum(earlier == case for earlier in cases)
        seconds = 1e-6 * (1 + rounds * (case.variant == "b"))
        return replace(good(case, sampling), samples_seconds=(seconds,) * 5)

    made = Teams(tmp_path, {"all_reduce": answer}, name="mpi")
    monkeypatch.setattr("ccbench.runner.run.open_backend", lambda _: made)
    monkeypatch.setattr("ccbench.runner.planning.open_backend", lambda _: made)
    yield cases
    # As many as the first round of the first variant found (``good`` says three).
    assert launches[0] == 0
    assert set(launches[1:]) == {3}


def test_rounds_go_a_b_b_a_and_variants_of_a_point_have_as_many(
    cases_run: list[Case], tmp_path: Path
) -> None:
    text = "backends: [mpi]\nvariants: {a: {}, b: {}}\nsampling: {rounds: 4}\norder: written\n"
    suite_read = read_suite(text + "sweep: {collective: all_reduce, size: 8, ranks: 2}")
    options = RunOptions(output=tmp_path / "run", machine="cpu-shared-memory")
    assert len(plan_suite(suite_read, options).cases) == 2
    run_suite(suite_read, options, Progress())
    assert "".join(case.variant for case in cases_run) == "abba" * 4
    assert {len(point.round_samples) for point in load_run(tmp_path / "run").points} == {8}


@pytest.mark.parametrize(("kind", "starts"), [("once", 2), ("each_round", 6)])
def test_each_round_can_have_ranks_that_are_started_for_it(
    cases_run: list[Case], kind: str, starts: int, tmp_path: Path
) -> None:
    text = f"""
backends: [mpi]
variants: {{a: {{}}, b: {{}}}}
sampling: {{rounds: 3, max_ci_width: 100%, start_ranks: {kind}}}
sweep: {{collective: all_reduce, size: 8, ranks: 2}}
"""
    run_suite(
        read_suite(text),
        RunOptions(output=tmp_path / "run", machine="cpu-shared-memory"),
        Progress(),
    )
    teams = vars(planning)["open_backend"]("mpi")
    assert isinstance(teams, Teams)
    assert teams.opened == teams.closed == starts
    assert len(cases_run) == 6
