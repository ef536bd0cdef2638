from __future__ import annotations

from dataclasses import replace

from ccbench.results.importers import osu
from ccbench.results.importers.ranks import with_whole_sizes
from tests.results.importers import outputs


def test_a_block_becomes_the_buffer_once_the_ranks_are_known() -> None:
    (unknown,) = osu.read(outputs.OSU_ALL_GATHER.partition("\n")[2]).tables
    (known,) = osu.read(outputs.OSU_ALL_GATHER).tables
    assert with_whole_sizes(unknown) == unknown
    whole = with_whole_sizes(replace(unknown, ranks=4))
    assert [(r.size_bytes, r.flags) for r in whole.rows] == [(r.size_bytes, r.flags) for r in known.rows]
    assert with_whole_sizes(whole) == whole
