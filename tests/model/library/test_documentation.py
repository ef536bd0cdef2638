from __future__ import annotations

import re
from pathlib import Path

import pytest

from ccbench.model.library.constants import CONSTANTS, Constant

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "model.md"


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda constant: constant.name)
def test_every_constant_is_documented_with_its_start_and_origin(constant: Constant) -> None:
    row = f"| `{constant.name}` | {constant.start:g} | {constant.spread:g} | {constant.origin} |"
    assert row in DOCUMENT.read_text(encoding="utf-8")


def test_no_constant_is_documented_that_is_gone() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").split("| constant | start | spread |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE) == [constant.name for constant in CONSTANTS]
