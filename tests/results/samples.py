"""Measurements for the tests of the run folder: one plain builder and one hypothesis strategy."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Conditions, Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.groups import Pair
from ccbench.model import Prediction
from ccbench.results import Manifest, Run, RunFolder, arrow_schema
from ccbench.results.loading import in_order

CASE = Case("smoke", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 4)

PREDICTION = Prediction(1e-5, 2e-5, 5e-6, 1.5e-5, "link 0-1 carries 6144 B")


def run_of_rows(
    rows: Sequence[Mapping[str, Any]], manifest: Mapping[str, Any], path: Path | str = "run"
) -> Run:
    """A run of ``rows`` (of ``row_of``) as it would be loaded."""
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

    table = pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema())
    return Run(Path(path), Manifest(manifest), in_order(table))


def edited(run: Run, **texts: str) -> Run:
    """``run`` with these texts in every row."""
    rows = [{**row, **texts} for row in run.table.to_pylist()]
    return run_of_rows(rows, run.manifest.document, run.path)


def measured(size_bytes: int = 4096, seconds: float = 1e-4, **changes: object) -> Measurement:
    """An OK measurement of 12 samples around ``seconds`` on four ranks, the third a little slower."""
    case = replace(CASE, size_bytes=size_bytes, count=size_bytes // 4)
    samples = tuple(seconds * (1 + 0.01 * (index % 5)) for index in range(12))
    plain = Measurement(
        case=case,
        status=Status.OK,
        backend_version="numpy 2",
        algorithm_used="ring",
        launches_per_sample=8,
        samples_seconds=samples,
        warmup_seconds=samples[:2],
        skew_seconds=tuple(0.01 * sample for sample in samples),
        rank_samples_seconds=tuple(
            tuple(sample * (1.0 if rank != 2 else 1.05) for sample in samples)
            for rank in range(4)
        ),
        wrong_elements=0,
        stop_reason="interval narrow enough",
        started_at="2026-03-04T05:06:07Z",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # the caller names fields of Measurement


def failed(
    size_bytes: int, status: Status = Status.FAILED, detail: str = "rank 2 died"
) -> Measurement:
    """A measurement that has nothing but a status and a reason."""
    case = replace(CASE, size_bytes=size_bytes, count=size_bytes // 4)
    return Measurement(case, status, detail=detail)


def left_by_a_kill(path: Path, *all_measured: Measurement) -> Path:
    """A run folder whose run never closed it."""
    with RunFolder.create(path.with_name("open"), {}) as folder:
        for measurement in all_measured:
            folder.write(measurement, PREDICTION)
        shutil.copytree(folder.path, path)
    return path


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_whole = st.integers(0, 2**62)
_times = st.lists(st.floats(0, 1e6, allow_nan=False), max_size=8).map(tuple)
_share = st.none() | st.floats(0, 1)

_pairs = st.tuples(st.integers(0, 99), st.integers(100, 199), st.booleans()).map(
    lambda p: str(Pair(*p))
)

_any_cases = st.builds(
    Case,
    suite=_text,
    backend=_text,
    collective=st.sampled_from([*COLLECTIVES, "hypercube"]),
    algorithm=_text,
    dtype=_text,
    op=_text,
    size_bytes=_whole,
    count=_whole,
    ranks=st.integers(1, 2**31),
    root=st.integers(-1, 2**31),
    in_place=st.booleans(),
    mode=_text,
    protocol=_text,
    nodes=st.integers(1, 2**31),
    channels=_whole,
    transport=_text,
    memory=_text,
    registration=_text,
    cta_policy=_text,
    aggregation=_whole,
    misalignment_bytes=_whole,
    pair=st.just("") | _pairs,
    groups=st.just("") | st.just("rank // 1"),
    concurrent=st.sampled_from(["", "all_gather", "all_gather on rank % 2"]),
    active_group=st.just(-1),
    traffic=st.sampled_from(["", "zipf:1.2", "hot:0.5"]),
    overlap_with=_text,
)


def _groups_fit_in_memory(case: Case) -> Case:
    """``case`` with ranks that a suite may ask for, where their groups are listed rank by rank."""
    grouped = "rank" in case.groups + case.concurrent
    return replace(case, ranks=max(2, min(case.ranks, 4096) // 2 * 2)) if grouped else case


def _pair_is_of_ranks(case: Case) -> Case:
    return replace(case, ranks=max(case.ranks, 200)) if case.pair else case


_cases = _any_cases.map(_groups_fit_in_memory).map(_pair_is_of_ranks)


def _what_is_ok_has_samples(measurement: Measurement) -> Measurement:
    """``measurement`` as a backend gives it: timed, checked and right where it is OK."""
    if measurement.status != Status.OK:
        return measurement
    return replace(
        measurement, samples_seconds=measurement.samples_seconds or (1e-6,), wrong_elements=0
    )


measurements = st.builds(
    Measurement,
    case=_cases,
    status=st.sampled_from(Status),
    detail=_text,
    backend_version=_text,
    algorithm_used=_text,
    launches_per_sample=_whole,
    blocked_launches=st.none() | _whole,
    samples_seconds=_times,
    warmup_seconds=_times,
    skew_seconds=_times,
    rank_samples_seconds=st.lists(_times, max_size=4).map(tuple),
    rank_waiting_seconds=st.lists(_times, max_size=4).map(tuple),
    rank_cpu_share=_times,
    rank_queued_share=_times,
    round_samples=st.lists(_whole, max_size=4).map(tuple),
    launching_seconds=st.floats(0, 1e6),
    wrong_elements=st.none() | _whole,
    stop_reason=_text,
    started_at=_text,
    simulated=st.booleans(),
    protocol_used=_text,
    channels_used=_whole,
    library_estimate_seconds=st.none() | st.floats(0, 1e6),
    group_names=st.lists(_text, max_size=3).map(tuple),
    group_samples_seconds=st.lists(_times, max_size=3).map(tuple),
    hosts=st.lists(_text, max_size=3).map(tuple),
    node_of_rank=st.lists(_whole, max_size=3).map(tuple),
    device_readings=_text,
    library_settings=_text,
    conditions=st.builds(
        Conditions,
        core_latency_before_seconds=_share,
        core_latency_after_seconds=_share,
        other_cpu_share=_share,
        steal_share=_share,
        binding=st.lists(st.integers(0, 4096), max_size=4).map(tuple),
        oversubscribed=st.booleans(),
        flags=st.lists(_text, max_size=3).map(tuple),
    ),
).map(_what_is_ok_has_samples)
