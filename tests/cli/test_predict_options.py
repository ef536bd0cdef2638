"""``ccbench predict``: what is asked for and cannot be is refused, and rates are those of the time shown."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command

ASKED = ("predict", "--machine", "hgx-h100", "--collective", "all_reduce", "--sizes", "1MiB")


@pytest.mark.parametrize("more", [(), ("--nodes", "1"), ("--ranks", "8")])
def test_a_network_of_one_machine_is_refused(ccbench: Command, more: tuple[str, ...]) -> None:
    ended = ccbench(*ASKED, "--network", "ib-ndr-400x8", *more)
    assert ended.code == 2
    assert "--network ib-ndr-400x8: 8 ranks are one hgx-h100" in ended.err
    assert "give --nodes" in ended.err


def test_a_network_of_several_machines_is_taken(ccbench: Command) -> None:
    assert ccbench(*ASKED, "--network", "ib-ndr-400x8", "--nodes", "2").code == 0
    assert ccbench(*ASKED, "--network", "ib-ndr-400x8", "--ranks", "16").code == 0


def test_algorithms_and_protocols_may_be_spelt_as_nccl_does(ccbench: Command) -> None:
    theirs = ccbench(*ASKED, "--algorithm", "Ring", "--protocol", "LL128", "--json")
    ours = ccbench(*ASKED, "--algorithm", "ring", "--protocol", "ll128", "--json")
    assert theirs.code == 0, theirs.err
    assert theirs.json == ours.json


def test_the_table_says_what_was_priced_and_in_which_units(ccbench: Command) -> None:
    title, head, row = ccbench(*ASKED, "--dtype", "bfloat16").out.splitlines()
    assert title == (
        "all_reduce bfloat16 on hgx-h100, 8 ranks, as a collective library would run it "
        "(times of one launch; 1 GB/s is 1e9 B/s)"
    )
    assert "algbw GB/s  busbw GB/s" in head
    (point,) = ccbench(*ASKED, "--dtype", "bfloat16", "--json").json
    assert f" {point['algbw_GB_s']:.3f} " in row
    own = ccbench(*ASKED, "--model", "schedule", "--algorithm", "ring").out
    assert "8 ranks, as ccbench's own schedules would run it" in own
