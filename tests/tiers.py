"""Properties that are tried on few examples in the quick tier, and on many in the exhaustive one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

Test = Callable[..., None]


def examples(
    quick: int, exhaustive: int, like: settings | None = None, **strategies: SearchStrategy[Any]
) -> Callable[[Test], Test]:
    """``given(**strategies)`` with so many examples. like: settings for the rest."""

    def in_both_tiers(holds: Test) -> Test:
        @pytest.mark.parametrize(
            "number", [quick, pytest.param(exhaustive, marks=pytest.mark.exhaustive)], ids=str
        )
        def test(number: int) -> None:
            settings(like, max_examples=number, deadline=None)(given(**strategies)(holds))()

        test.__name__, test.__doc__ = holds.__name__, holds.__doc__
        return test

    return in_both_tiers
