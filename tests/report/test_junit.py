from __future__ import annotations

from xml.etree import ElementTree

from ccbench.report.junit import verdict_junit
from ccbench.results import Run
from tests.analysis.test_fleet_rounds import Fleet, round_robin


def checked(fleet: Fleet) -> Run:
    return fleet.checked(fleet.planned(round_robin(fleet.nodes)))


def ends(run: Run) -> dict[str, str]:
    """The kind of each test case's end, by its name; '' of one that passed."""
    return {
        one.attrib["name"]: next((child.tag for child in one), "")
        for one in ElementTree.fromstring(verdict_junit(run)).iter("testcase")
    }


def test_a_verdict_in_doubt_is_an_error_which_ci_does_not_let_pass() -> None:
    hung = checked(Fleet(6, hung=frozenset({1}), dead=True))
    assert (ends(hung)["h1"], ends(hung)["verdict"]) == ("failure", "error")
