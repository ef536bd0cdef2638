from __future__ import annotations

from xml.etree import ElementTree

import numpy as np

from ccbench.analysis.machine_verdict import fleet_document
from ccbench.report.junit import verdict_junit
from ccbench.results import Run
from tests.analysis.health.machines import collectives, run_of
from tests.analysis.test_fleet_rounds import Fleet, round_robin


def checked(fleet: Fleet) -> Run:
    return fleet.checked(fleet.planned(round_robin(fleet.nodes)))


def ends(run: Run) -> dict[str, str]:
    """The kind of each test case's end, by its name; '' of one that passed."""
    return {
        one.attrib["name"]: next((child.tag for child in one), "")
        for one in ElementTree.fromstring(verdict_junit(run)).iter("testcase")
    }


def test_nodes_and_links_to_blame_fail_and_the_others_pass() -> None:
    run = checked(Fleet(6, slow=frozenset({2})))
    assert ends(run) == {
        "h2": "failure",
        "verdict": "",
        **dict.fromkeys(("h0", "h1", "h3", "h4", "h5"), ""),
    }
    root = ElementTree.fromstring(verdict_junit(run))
    assert (root.attrib["tests"], root.attrib["failures"], root.attrib["errors"]) == (
        "7",
        "1",
        "0",
    )
    assert "--exclude=h2" in (root.findtext("system-out") or "")
    linked = checked(Fleet(6, slow_links=frozenset({(0, 3)})))
    assert {name for name, end in ends(linked).items() if end} == {"path between h0 and h3"}


def test_a_verdict_in_doubt_is_an_error_which_ci_does_not_let_pass() -> None:
    hung = checked(Fleet(6, hung=frozenset({1}), dead=True))
    assert (ends(hung)["h1"], ends(hung)["verdict"]) == ("failure", "error")


def test_a_health_check_of_one_machine_has_its_findings() -> None:
    assert ends(run_of(collectives(np.random.default_rng(1), late=2)))["rank 2"] == "failure"


def test_a_run_without_a_collective_that_can_be_judged_is_an_error_with_the_cure() -> None:
    run = run_of([], {"suite": {"verdict": "speed"}})
    assert ends(run) == {"verdict": "error"}
    assert "ccbench compare BASELINE RUN" in verdict_junit(run)


def test_json_says_the_same() -> None:
    run = checked(Fleet(6, slow=frozenset({2})))
    document = fleet_document(run)
    assert document is not None
    assert (document["verdict"], document["exclude"], document["exit_code"]) == (
        "NOT HEALTHY",
        "h2",
        1,
    )
    assert fleet_document(run_of([], {"suite": {"verdict": "speed"}})) is None
