from __future__ import annotations

import json

import pytest

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers import readers
from tests.results.importers import outputs
from tests.results.importers.logs import text_of

mscclpp = readers()["mscclpp"]

PUBLISHED = [("awkward_mscclpp_ndmv4.jsonl.txt", 19), ("awkward_mscclpp_ndmv5.jsonl.txt", 10)]


@pytest.mark.parametrize(("name", "count"), PUBLISHED)
def test_every_published_line_is_a_row(name: str, count: int) -> None:
    printed = [json.loads(line) for line in text_of({"file": name}).splitlines()]
    log = mscclpp.read(text_of({"file": name}))
    rows = sorted((row for table in log.tables for row in table.rows), key=lambda row: row.line)
    assert [(r.size_bytes, r.seconds, r.algbw, r.busbw) for r in rows] == [
        (p["size"], p["time"] / 1e6, p["algBw"], p["busBw"]) for p in printed
    ]
    assert len(rows) == count
    for table in log.tables:  # sizes are those that the bus bandwidth stands on, which was rounded by hand
        factor = COLLECTIVES[table.collective].bus_factor(table.ranks or 0)
        rates = [row.size_bytes / (row.seconds or 0.0) / 1e9 * factor for row in table.rows]
        assert rates == pytest.approx([row.busbw for row in table.rows], rel=0.05)
    assert log.notices == ()


def test_kernels_and_ranks_are_tables_of_their_own() -> None:
    log = mscclpp.read(outputs.MSCCLPP)
    assert [(t.collective, t.algorithm, t.ranks, t.nodes) for t in log.tables] == [
        ("all_reduce", "kernel:6", 8, 1),
        ("all_reduce", "kernel:6", 16, 2),
    ]
    assert log.tables[0].rows[0].half_units == pytest.approx((5e-9, 5e-4, 5e-4))
    assert log.tables[0].rows[0].extra == {"target": "latency"}


@pytest.mark.parametrize(
    "broken", ['{"name":"allreduce", "ker', '{"name":[1],"ranks":2,"size":3,"time":4,"algBw":5}']
)
def test_a_line_that_is_no_measurement_is_told(broken: str) -> None:
    log = mscclpp.read(outputs.MSCCLPP + broken)
    assert sum(len(table.rows) for table in log.tables) == 2
    assert [(notice.kind, notice.line) for notice in log.notices] == [("damaged_line", 3)]


def test_lines_of_the_program_between_are_passed_over() -> None:
    log = mscclpp.read("#   Using devices\n" + outputs.MSCCLPP + "Stop.\n")
    assert log.notices == ()
