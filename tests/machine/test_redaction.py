"""Command lines and variables are kept and shown without values that may be secret."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.files import (
    REDACTED,
    command_shown,
    kept_variables,
    line_shown,
    without_names,
    without_values,
)

SECRET = "hunter2"


@pytest.mark.parametrize(
    "words",
    [
        "mpiexec -env MY_PASSWORD hunter2 -n 2",
        "mpiexec -genv AWS_SECRET_ACCESS_KEY hunter2",
        "mpiexec -genv CUDA_CREDS=hunter2",
        "mpirun -x DB_TOKEN=hunter2 -np 2",
        "mpirun --mca plm_rsh_args 'a hunter2'",
        "srun --export=ALL,DB_TOKEN=hunter2,NCCL_ALGO=Ring",
        "srun --export=DB=first,hunter2,OTHER",
        "docker run -e PW=hunter2 --env=MPICH_PASS=hunter2 -eX=hunter2 image",
        "env lower=hunter2 mpirun",
        "bash -c 'export TOKEN=hunter2; mpirun'",
        "bash -c 'open \"hunter2'",
        "launch --password hunter2 --auth-token=hunter2",
        "launch https://me:hunter2@example.org/x",
        "launch https://hunter2@example.org/x",
        "launch 'https://example.org/x?sig=hunter2'",
        "srun --export=ALL,DB='two words hunter2',NCCL_ALGO=Ring",
        "kubectl run --env=db.pw=hunter2",
        "env db-pw=hunter2 mpirun",
        "bash -c 'NCCL_ALGO=Ring;DB_PW=hunter2 mpirun'",
        "bash -c 'DB_PW=\"two hunter2\" mpirun'",
        "csh -c 'setenv DB hunter2; mpirun'",
        "curl -H 'X-Api-Key: hunter2'",
        "curl -H 'Authorization: Token hunter2'",
        'launch \'{"token": "hunter2"}\'',
        "launch --jwt hunter2",
        "sshpass -p hunter2 ssh host mpirun",
    ],
)
def test_a_value_off_the_list_is_blanked_however_it_is_given(words: str) -> None:
    shown = command_shown(words)
    assert SECRET not in shown
    assert REDACTED in shown
    assert SECRET not in without_values(f"cannot run {words}", shlex.split(words))


@pytest.mark.parametrize(
    "words",
    [
        "mpiexec -env NCCL_ALGO Ring -genv UCX_TLS rc,sm -n 2 -hosts a,b",
        "mpirun -x NCCL_ALGO=Ring -x UCX_TLS=rc,sm -x LD_LIBRARY_PATH -np 16 --hostfile hosts -H a:2,b:2",
        "mpirun --mca btl_tcp_if_include eth0 --mca pml ucx --map-by ppr:2:node",
        "srun --mpi=pmix --nodelist=a,b -n 4 --export=ALL,NCCL_PROTO=LL128",
        "bash -c 'cd /x && mpirun -n 2'",
        "bash -c 'NCCL_ALGO=Ring mpirun -n 2 --mca btl tcp,self'",
        "torchrun --nnodes=2 --rdzv-endpoint=a:29500 --map-by ppr:2:node:pe=4",
    ],
)
def test_what_matters_to_a_result_stays(words: str) -> None:
    assert command_shown(words) == shlex.join(shlex.split(words))
    assert without_values(words, shlex.split(words)) == words


@given(st.lists(st.text(alphabet="abAB_=,-' \"/:", max_size=12)))
def test_any_command_is_shown_and_showing_it_twice_shows_nothing_more(words: list[str]) -> None:
    once = command_shown(shlex.join(words))
    twice = command_shown(once)
    # A quote that was hidden leaves its other end alone, and what is behind that is hidden then, too.
    left, left_before = (len(text.replace(REDACTED, "")) for text in (twice, once))
    assert twice == once or left < left_before


def test_a_line_of_a_log_keeps_its_own_words() -> None:
    line = "all_reduce_perf nThread=1 minbytes=8 (mpirun -x DB_KEYS=hunter2 -env DB hunter2 -x NCCL_ALGO=Ring)"
    shown = line_shown(line)
    assert shown == line.replace(SECRET, REDACTED)


@pytest.mark.parametrize(
    "name",
    [
        *("HOME", "USER", "PATH", "AWS_SECRET_ACCESS_KEY", "SLURM_JOB_USER", "SLURM_JOB_NAME"),
        *("SLURM_SUBMIT_DIR", "SLURM_JOB_ACCOUNT", "SLURM_CLUSTER_NAME"),
    ],
)
def test_variables_off_the_list_are_dropped(name: str) -> None:
    assert kept_variables({name: "anything"}) == {}


UTF8 = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(UTF8, UTF8))
def test_kept_variables_are_always_allowed_sorted_and_utf8(variables: dict[str, str]) -> None:
    variables = {f"NCCL_{name}": value for name, value in variables.items()}
    kept = kept_variables({**variables, "HOME": "/root"})
    assert list(kept) == sorted(kept)
    assert "HOME" not in kept
    json.dumps(kept, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("/home/ada/nccl/lib:/usr/lib", "/home/<user>/nccl/lib:/usr/lib"),
        ("/Users/ada", "/Users/<user>"),
        ("file=/home/ada,/home/bob/x", "file=/home/<user>,/home/<user>/x"),
        ("/opt/home-grown/lib", "/opt/home-grown/lib"),
    ],
)
def test_names_of_users_in_paths_are_blanked(value: str, kept: str) -> None:
    assert kept_variables({"LD_LIBRARY_PATH": value}) == {"LD_LIBRARY_PATH": kept}


@given(st.text())
def test_blanking_twice_is_blanking_once(text: str) -> None:
    assert without_names(without_names(text)) == without_names(text)
