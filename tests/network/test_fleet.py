"""A fleet check of eight hosts names what is planted in them: a trial of two kinds; more by hand."""

from __future__ import annotations

import pytest

from ccbench.backends.gloo import BACKEND as GLOO
from tests.network.fleet_namespaces import main

pytestmark = pytest.mark.network


@pytest.mark.exhaustive
@pytest.mark.alone
@pytest.mark.skipif(GLOO.unavailable() is not None, reason=str(GLOO.unavailable()))
@pytest.mark.usefixtures("_namespaces")
@pytest.mark.parametrize("scenario", ["slow-host", "hang"])
def test_what_is_planted_is_named_and_nothing_else(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--scenario", scenario]) == 0, capsys.readouterr().out
