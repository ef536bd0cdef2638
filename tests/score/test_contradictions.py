from __future__ import annotations

from pathlib import Path

from benchmarks.score.contradictions import contradictions, other_gpu
from benchmarks.score.logs import points_of
from ccbench.results.importers.log import DeviceLine
from tests.score.corpora import entry, log, row


def devices(hosts: int, per_host: int, model: str = "NVIDIA H100 80GB HBM3") -> tuple[DeviceLine, ...]:
    return tuple(
        DeviceLine(rank, host=f"node{rank // per_host}", device=rank % per_host, model=model)
        for rank in range(hosts * per_host)
    )


def test_a_log_of_other_gpus_than_the_manifest_s_is_not_modelled() -> None:
    other = log([row(1 << 20, 30e-6)], devices=devices(1, 8, "NVIDIA A100-SXM4-80GB"))
    found = points_of(entry(), Path(), lambda _: other)
    assert found.observations == ()
    assert found.left_out == (
        "the manifest's gpu is H100 SXM, and the log lists NVIDIA A100-SXM4-80GB; correct the manifest",
    )
    assert other_gpu(entry(gpu="H100 SXM (a100 in another room)"), other)
    assert not other_gpu(entry(gpu="A100-SXM4-40GB (ND96asr_v4)"), other)


def test_other_hosts_than_the_manifest_s_are_told() -> None:
    two = log([row(1 << 20, 30e-6)], devices=devices(2, 4))
    found = points_of(entry(), Path(), lambda _: two)
    assert found.observations
    assert found.contradictions == (
        "the manifest says 1 nodes of 8 GPUs, and the log lists 2 hosts of 4 GPUs",
    )
    assert contradictions(entry(gpus_per_node=(4,), nodes=(2,)), two) == ()


def test_lists_that_do_not_tell_hosts_apart_contradict_nothing() -> None:
    one_name = tuple(DeviceLine(rank, host="node", device=rank % 4) for rank in range(8))
    only_some = tuple(DeviceLine(rank, host="node", device=0) for rank in (0, 8))
    shared = (DeviceLine(0, host="node", device=0), DeviceLine(1, host="node", device=0))
    nameless = tuple(DeviceLine(rank) for rank in range(2))
    for listed in (one_name, only_some, shared, nameless, ()):
        assert contradictions(entry(nodes=(4,), gpus_per_node=(4,)), log([], devices=listed)) == ()


def test_another_collective_than_the_manifest_s_is_told() -> None:
    (line,) = contradictions(entry(collective="all_gather"), log([]))
    assert line == "the manifest's collective is all_gather, and the log's, which counts, all_reduce"
    assert contradictions(entry(collective=""), log([])) == ()
    assert contradictions(entry(collective="several"), log([])) == ()
