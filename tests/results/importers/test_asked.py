from __future__ import annotations

from typing import Any

import pytest

from benchmarks.score.manifest import ManifestEntry
from ccbench.model.library.system import LibraryRequest
from ccbench.results.importers.observed import asked_of
from tests.score.corpora import entry, log, row


def asked(words: ManifestEntry, **changes: Any) -> LibraryRequest:
    shown = log([row(8, 1e-5)], **changes)
    found = asked_of(words, shown, shown.tables[0])
    assert isinstance(found, LibraryRequest), found
    return found


def refused(words: ManifestEntry, **changes: Any) -> str:
    shown = log([row(8, 1e-5)], **changes)
    found = asked_of(words, shown, shown.tables[0])
    assert isinstance(found, str)
    return found


def test_nothing_forced_leaves_the_choice_to_the_library() -> None:
    found = asked(entry(forced="none known"))
    assert (found.algorithm, found.protocol, found.multicast_off) == ("default", "default", False)


@pytest.mark.parametrize(
    ("forced", "algorithm", "protocol", "multicast_off"),
    [
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
    found = asked(entry(forced=forced))
    assert (found.algorithm, found.protocol, found.multicast_off) == (algorithm, protocol, multicast_off)


def test_the_log_counts_more_than_the_manifest() -> None:
    found = asked(entry(forced="NCCL_PROTO=LL"), environment={"NCCL_PROTO": "Simple"}, algorithm="ring")
    assert (found.algorithm, found.protocol) == ("ring", "simple")


def test_trees_that_are_switched_off_leave_rings() -> None:
    assert asked(entry(), environment={"NCCL_TREE_THRESHOLD": "0"}).algorithm == "ring"


def test_the_collective_comes_from_the_manifest_where_the_log_names_none() -> None:
    assert asked(entry(collective="broadcast"), collective="").collective == "broadcast"
    assert asked(entry(collective="broadcast"), collective="all_gather").collective == "all_gather"


def test_gpus_of_a_process_and_versions_come_from_the_log_or_the_manifest() -> None:
    found = asked(entry(nccl_version="unknown"), facts={"gpus_per_thread": 8}, versions={"NCCL": "2.26.2"})
    assert (found.gpus_per_process, found.version) == (8, (2, 26, 2))
    assert asked(entry(nccl_version="RCCL 2.22.3")).version == (2, 22, 3)
    assert asked(entry(nccl_version="unknown (old)")).version == ()


def test_tools_and_algorithms_that_the_model_is_not_of_are_reasons() -> None:
    assert "mscclpp" in refused(entry(), tool="mscclpp", library="")
    assert "MPI" in refused(entry(), tool="osu", library="MPI")
    assert "kernel:3" in refused(entry(), algorithm="kernel:3")
    assert "collective" in refused(entry(collective=""), collective="")
    assert "collective" in refused(entry(), collective="barrier")


def test_a_variable_that_is_not_understood_is_named_with_its_value() -> None:
    told = asked_of(entry(), log([], environment={"NCCL_ALGO": "Foo"}), log([]).tables[0])
    assert told == "NCCL_ALGO=Foo: nothing that the model describes"
    both = asked_of(entry(forced="NCCL_ALGO=Foo NCCL_PROTO=LL256"), log([]), log([]).tables[0])
    assert both == "NCCL_ALGO=Foo and NCCL_PROTO=LL256: nothing that the model describes"
    stated = log([], algorithm="msccl")
    assert asked_of(entry(), stated, stated.tables[0]) == "msccl: nothing that the model describes"
