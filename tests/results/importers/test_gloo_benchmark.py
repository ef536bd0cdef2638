from __future__ import annotations

import pytest

from ccbench.results.importers import readers
from tests.results.importers import outputs
from tests.results.importers.logs import text_of

gloo_benchmark = readers()["gloo_benchmark"]


def test_the_published_table_is_read() -> None:
    (table,) = gloo_benchmark.read(text_of({"file": "awkward_cpu_gloo_allreduce_ring_chunked.txt"})).tables
    assert (table.collective, table.algorithm, table.ranks) == ("all_reduce", "ring_chunked", 4)
    (row,) = table.rows
    assert (row.size_bytes, row.count, row.dtype) == (2**30, 268435456, "float32")
    assert row.seconds == pytest.approx(1.443672)
    assert row.extra["iterations"] == 1
    # The printed rate is of the size found, in binary units.
    assert row.extra["rate_gb_per_second"] == pytest.approx(2**30 / 1.443672 / 1e9, abs=6e-4)


def test_the_time_is_the_median_and_the_rate_of_the_mean_stands_beside_it() -> None:
    row = gloo_benchmark.read(outputs.GLOO).tables[0].rows[1]
    assert row.seconds == pytest.approx(3907e-6)
    assert (row.algbw, row.extra["rate_gb_per_second"]) == (None, pytest.approx(2**30 / 1e9))
    assert row.extra["p99_seconds"] == pytest.approx(4400e-6)


def test_half_precision_shows_in_the_rate() -> None:
    text = outputs.GLOO.replace("1.000        500", "0.500        500")
    rows = gloo_benchmark.read(text).tables[0].rows
    assert [(row.size_bytes, row.dtype) for row in rows] == [(200, "float16"), (2097152, "float16")]


def test_nanoseconds_and_a_gathered_buffer_are_converted() -> None:
    (table,) = gloo_benchmark.read(outputs.GLOO_NANOSECONDS).tables
    (row,) = table.rows
    assert (table.collective, table.algorithm, table.ranks) == ("all_gather", "ring", 4)
    assert row.size_bytes == 4 * 4 * 1048576
    assert row.seconds == pytest.approx(2e-3)
    assert row.algbw is None  # the printed rate counts one block


def test_a_size_column_gives_the_bytes_of_an_element() -> None:
    text = (
        "Algorithm:   broadcast_one_to_all\nOptions:     processes=3, inputs=1\n"
        "   size (B)   elements   min (us)   p50 (us)   p99 (us)   max (us)   bandwidth (GB/s)   iterations\n"
        "        800        100        172        172        172        172              0.004            1\n"
    )
    (table,) = gloo_benchmark.read(text).tables
    assert (table.collective, table.ranks) == ("broadcast", 3)
    assert [(row.size_bytes, row.root) for row in table.rows] == [(800, 0)]


def test_an_unknown_algorithm_keeps_its_name() -> None:
    (table,) = gloo_benchmark.read(outputs.GLOO.replace("allreduce_halving", "sparse_halving")).tables
    assert (table.collective, table.algorithm) == ("sparse_halving_doubling", "default")
