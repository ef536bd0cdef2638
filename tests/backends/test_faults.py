"""What ``CCBENCH_FAULT`` may say."""

from __future__ import annotations

import pytest

from ccbench.backends.faults import VARIABLE, fault_from_environment
from ccbench.errors import UsageError

MISTAKES = [
    ("sloow:rank=1", "'sloow:rank=1' is not a fault; .* a kind of kill, stop"),
    (
        "slow:rnk=1",
        "'slow:rnk=1' is not a fault; .* and the keys rank, collective, algorithm, size",
    ),
    ("slow:rank=x", "rank is 'x'; write a whole number or 'all'"),
    ("slow:rank=-1", "rank is '-1'; write a whole number or 'all'"),
    ("nan:size=4 KiB", "size is '4 KiB'; write a whole number of bytes"),
]


@pytest.mark.parametrize(("text", "sentence"), MISTAKES)
def test_a_mistake_is_told_with_what_to_write(
    monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=f"^{VARIABLE}: .*{sentence}"):
        fault_from_environment()
