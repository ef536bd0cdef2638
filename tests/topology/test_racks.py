"""Racks of hosts, as Slurm's configuration and people's tables name them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.topology.racks import racks_of

HOSTS = ("node01", "node02.cluster.example", "node16", "gpu-3")
CONF = """
# leaf switches
SwitchName=r1 Nodes=node[01-02] LinkSpeed=100
switchname=r2 \\
    nodes=gpu-3,node[15-16,20]
SwitchName=spine Switches=r[1-2]
"""


@pytest.mark.parametrize(
    "text",
    [
        CONF,
        "node[01-02] r1\nnode[03-16],gpu-3   r2  # row 2",
        "host,rack\nnode01,r1\nnode02,r1\nnode16,r2\ngpu-3,r2\n",
        "node01;r1\nnode0?;r1\n*;r2",
        "BlockName=r1 Nodes=node[01-02]\nBlockName=r2 Nodes=node16,gpu-[1-9]\nBlockSizes=2\n",
    ],
)
def test_every_way_to_write_racks_gives_each_host_its_own(text: str) -> None:
    assert racks_of(HOSTS, text, "racks") == ("r1", "r1", "r2", "r2")


def test_the_number_of_digits_counts_and_a_host_may_have_no_rack() -> None:
    assert racks_of(("node1", "node01", "node001"), "node[1-9] a\nnode[01-09] b", "racks") == (
        "a",
        "b",
        "",
    )


@given(st.text(alphabet="node[]0129-,;=*? \n\\#SwitchName", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert len(racks_of(HOSTS, text, "racks")) == len(HOSTS)
