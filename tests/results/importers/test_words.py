from __future__ import annotations

import pytest

from ccbench.results.importers.words import Launch, collective_name, dtype_name, launch_of


@pytest.mark.parametrize(
    ("line", "launch"),
    [
        ("mpirun -np 8 ./osu_allreduce", Launch(8, None)),
        ("$ mpirun -np 8 --map-by ppr:4:node ./x", Launch(8, 2)),
        ("mpiexec.hydra -n 16 -ppn 8 IMB-MPI1", Launch(16, 2)),
        ("/opt/bin/mpirun -n 144 -N 36 ./IMB-MPI1", Launch(144, 4)),
        ("srun -N 4 -n 32 ./x", Launch(32, 4)),
        ("srun --nodes=4 --ntasks-per-node=8 ./x", Launch(32, 4)),
        ("flux run -N2 -n 192 ./x", Launch(192, 2)),
        ("mpirun -np 4 -pernode ./x", Launch(4, 4)),
        ("mpirun ./x -n", Launch()),
        ("the mpi library runs", None),
    ],
)
def test_a_launchers_line_says_ranks_and_nodes(line: str, launch: Launch | None) -> None:
    assert launch_of(line) == launch


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("Allreduce", "all_reduce"),
        ("AllGather", "all_gather"),
        ("Reduce_scatter", "reduce_scatter"),
        ("bcast", "broadcast"),
        ("alltoallv", "alltoallv"),
    ],
)
def test_collectives_get_our_names_and_others_keep_theirs(word: str, name: str) -> None:
    assert collective_name(word) == name


@pytest.mark.parametrize(
    ("word", "name"), [("fp32", "float32"), ("torch.bfloat16", "bfloat16"), ("hfp8", "hfp8")]
)
def test_element_types_get_our_names_and_others_keep_theirs(word: str, name: str) -> None:
    assert dtype_name(word) == name
