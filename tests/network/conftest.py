"""Hosts to run on, where they can be made."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from tests.network.namespaces import Network, hosts, why_not


@lru_cache
def reason() -> str:
    return why_not()


@pytest.fixture
def _namespaces() -> None:
    if reason():
        pytest.skip(reason())


@pytest.fixture
def network(_namespaces: None) -> Iterator[Network]:
    """Three hosts on one switch."""
    with hosts(3) as made:
        yield made
