"""Times that the other sizes of the same run imply: levels of this machine in the place of the model's own.

A run that measured some sizes of a library knows the machine's latency and rates, so that each further size
can be held against these: a size alone that is slow shows, whatever the machine's speed is. Each size is left
out of its own expectation. Whether the machine is normal says ``speed_verdict``, against other machines.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ccbench.analysis.speed_verdict import is_measurement
from ccbench.cases.axes import DEFAULT
from ccbench.cases.capabilities import PricedBy, capabilities_of
from ccbench.errors import MachineError
from ccbench.model.calibrated import from_other_sizes
from ccbench.model.library.calibration import Observation
from ccbench.results import Point, Run
from ccbench.results.keys import CURVE
from ccbench.results.observed import request_of, sized
from ccbench.results.systems import recorded_system


def with_other_sizes(run: Run) -> tuple[Point, ...]:
    """The points of ``run``, those of a library's own choice with what its other sizes imply.

    Nothing is implied where the machine or what was asked of the library is not known, or sizes are too few.
    """
    line = CURVE.beside("source", "source_table")
    lines: dict[tuple[object, ...], list[int]] = {}
    for place, point in enumerate(run.points):
        free = (point.algorithm, point.protocol, point.channels) == (DEFAULT, DEFAULT, 0)
        priced = capabilities_of(point.backend).priced_by is PricedBy.GPU_LIBRARY
        if free and priced and point.trusted and is_measurement(point):
            lines.setdefault(line(point), []).append(place)
    points = list(run.points)
    for places in lines.values():
        first, measured = points[places[0]], [points[place] for place in places]
        library_request = request_of(run.manifest, first)
        if isinstance(library_request, str):
            continue
        request = sized(
            library_request,
            (point.size_bytes for point in measured),
            first.dtype,
            first.in_place,
        )
        seconds = tuple(point.median_seconds or 0.0 for point in measured)
        try:
            implied = _implied(
                Observation(recorded_system(run.manifest, first), request, seconds)
            )
        except MachineError:
            continue
        for number, prediction in implied.items():
            assert prediction.interval is not None  # every prediction of a library has one
            points[places[number]] = replace(
                measured[number],
                by_other_sizes_seconds=prediction.predicted_seconds,
                by_other_sizes_low_seconds=prediction.interval.low_95_seconds,
                by_other_sizes_high_seconds=prediction.interval.high_95_seconds,
            )
    return tuple(points)


_implied = lru_cache(maxsize=1024)(from_other_sizes)
"""A report asks for the same points several times, and a curve takes about 50 ms."""
