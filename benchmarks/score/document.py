"""Scores as plain values for ``--json``: errors are fractions of the measured time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.score.scores import Errors, LogScore, Scores
from benchmarks.score.statistics import Score
from benchmarks.score.validation import (
    ANCHORS,
    SystemErrors,
    Validation,
    coverage,
    figures,
    pooled,
    residuals_of,
)
from ccbench.model.library import LibrarySystem
from ccbench.model.library.intervals import residuals

Plain = dict[str, Any]


def document(
    scores: Scores,
    by_system: Sequence[SystemErrors],
    held_out: Validation | None = None,
    notices: Sequence[str] = (),
) -> Plain:
    """Everything; ``total`` and every entry of ``logs`` carry points, median_error, mape, bias and bands.

    ``total`` is of the logs whose ``counted`` is true: known to be healthy, and modelled. ``not_modelled``
    and ``unhealthy`` name the others, ``unknown_health`` those of which nobody knows. ``by_system``:
    figures in which each system weighs the same. ``coverage_80``, ``coverage_95`` and ``median_width`` are of the
    intervals that ship, a system's own residuals left out.
    """
    total = {**_score(scores.total), "comparison": _comparison(scores.comparison)}
    if by_system:
        held = coverage(by_system, residuals())
        total |= held | {
            "bands": {
                name: band | held["bands"][name] for name, band in total["bands"].items()
            },
            "by_system": figures(by_system),
        }
    made: Plain = {
        "total": total,
        "logs": [_log(log) for log in scores.logs],
        "counted": sum(log.counted for log in scores.logs),
        "not_modelled": [
            {"file": log.entry.file, "reason": log.reason} for log in scores.not_modelled
        ],
        "not_modelled_count": len(scores.not_modelled),
        "unhealthy": _files(log for log in scores.logs if log.entry.healthy is False),
        "unknown_health": _files(log for log in scores.logs if log.entry.healthy is None),
        "notices": list(notices),
    }
    if held_out is not None:
        made["learned_without_the_system"] = _tested(held_out.other_systems)
        made["learned_without_the_generation"] = _tested(held_out.other_generations)
        made["told_every_other_size"] = _tested(held_out.between)
        # Intervals are of all anchored predictions together, as those that ship.
        known = residuals_of(pooled(held_out.anchored))
        made["anchored"] = {
            name: {
                "by_system": figures(tested),
                **(coverage(tested, known) if ANCHORS.get(name) else {}),
            }
            for name, tested in held_out.anchored.items()
        }
    return made


def system_plain(system: LibrarySystem) -> Plain:
    """A system's figures and where each is from."""
    network = system.network
    return {
        "name": system.name,
        "generation": system.generation.value,
        "nodes": system.nodes,
        "ranks_per_node": system.ranks_per_node,
        "ranks": system.ranks,
        "intra": system.intra.value,
        "intra_bytes_per_second": system.intra_bytes_per_second,
        "links_per_gpu": system.links_per_gpu,
        "multicast": system.multicast,
        "network": None if network is None else asdict(network),
        "host": system.host.value,
        "origins": dict(system.origins),
    }


def _score(score: Score) -> Plain:
    return {
        **asdict(score.overall),
        "bands": {name: asdict(band) for name, band in score.bands.items()},
    }


def _comparison(found: Mapping[str, Score]) -> Plain:
    return {name: _score(score) for name, score in found.items()}


def _log(log: LogScore) -> Plain:
    return {
        "file": log.entry.file,
        "healthy": log.entry.healthy,
        "counted": log.counted,
        "reason": log.reason or None,
        "left_out": list(log.left_out),
        **_score(log.score),
        "comparison": _comparison(log.comparison),
        "systems": [system_plain(system) for system in log.systems],
    }


def _files(logs: Iterable[LogScore]) -> list[str]:
    return [log.entry.file for log in logs]


def _tested(systems: Sequence[SystemErrors]) -> Plain:
    learned = residuals_of(systems)
    one_by_one = [
        {
            "system": system.system.name,
            "files": list(system.files),
            **_score(system.errors.score),
        }
        for system in systems
    ]
    return {
        "total": _score(sum((system.errors for system in systems), Errors()).score),
        "by_system": figures(systems),
        **coverage(systems, learned),
        "systems": one_by_one,
    }
