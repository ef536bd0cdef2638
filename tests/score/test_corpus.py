"""The whole way on real published logs."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from benchmarks.score.descriptions import described
from benchmarks.score.logs import LogPoints, points_of
from benchmarks.score.manifest import read_manifest
from benchmarks.score.predictors import first_principles, rivals
from benchmarks.score.scores import Scores, scored
from ccbench.errors import CcbenchError
from ccbench.machine.detection import load_topology
from ccbench.model.cluster import first_gpus
from ccbench.model.library.clusters import library_system
from ccbench.readers.benchmarks import read_log
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.results.imported_runs import import_logs
from ccbench.topology.node_nics import parse_network
from tests.readers.benchmarks.logs import LOGS, needs_logs

pytestmark = needs_logs


@functools.lru_cache(maxsize=1)
def logs() -> tuple[LogPoints, ...]:
    assert LOGS is not None
    return tuple(points_of(entry, LOGS) for entry in read_manifest(LOGS / "manifest.yaml"))


@functools.lru_cache(maxsize=1)
def scores() -> Scores:
    return scored(logs(), first_principles, rivals())


def test_every_log_is_either_modelled_or_has_a_reason() -> None:
    assert LOGS is not None
    found = scores().logs
    assert {log.entry.file for log in found} == {path.name for path in LOGS.glob("*.txt")}
    for log in found:
        assert bool(log.score.overall.points) is not bool(log.reason), log.entry.file


def test_the_model_is_nearer_to_the_measurements_than_its_rivals() -> None:
    total = scores().total.overall
    assert total.points > 1500
    assert total.median_error is not None
    for rival in scores().comparison.values():
        assert rival.overall.median_error is not None
        assert total.median_error < rival.overall.median_error


@pytest.mark.exhaustive
def test_machines_that_logs_show_are_those_of_the_manifest_or_left_open() -> None:
    assert LOGS is not None
    right = 0
    for entry in read_manifest(LOGS / "manifest.yaml"):
        try:
            (file,) = import_logs(
                [(Path(entry.file), read_log(LOGS / entry.file))], StatedSystem()
            )
        except CcbenchError:
            continue
        if not file.system.source:
            continue
        # Networks that the log does not show are any here: the machine is what is compared.
        ranks, nodes = next(
            (table.ranks, table.nodes) for table in file.log.tables if table.ranks
        )
        assert (ranks, nodes) == (entry.gpus_per_node[0] * entry.nodes[0], entry.nodes[0]), (
            entry.file
        )
        network = parse_network(file.system.network or "ib-100x1")
        words = entry.network if file.system.network else "ib-100x1" if nodes != 1 else "none"
        there = described(
            entry.gpu, entry.gpus_per_node[0], entry.nodes[0], entry.interconnect, words
        )
        taking_part = first_gpus(load_topology(file.system.source), entry.gpus_per_node[0])
        found = library_system(taking_part, entry.nodes[0], network)
        assert (found.intra, found.generation) == (there.intra, there.generation), entry.file
        assert abs(found.intra_bytes_per_second - there.intra_bytes_per_second) < 1e6, (
            entry.file
        )
        if there.network is not None:
            assert found.network == there.network, entry.file
        right += 1
    assert right >= 22
