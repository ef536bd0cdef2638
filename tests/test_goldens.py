"""The list of goldens: none is renewed, added or dropped unseen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tests.goldens import LIST, TESTS, digests, plain


def test_goldens_are_those_of_the_list() -> None:
    assert digests() == LIST.read_text(encoding="utf-8"), "'make goldens' writes the list"


def test_every_expected_file_has_its_input() -> None:
    for expected in TESTS.rglob("goldens/**/*.expected.*"):
        name = expected.name.partition(".expected")[0]
        assert [*expected.parent.glob(f"{name}.in*")], expected


@dataclass
class Sample:
    size_bytes: int = 0
    ratio: float = 1.0
    names: list[str] = field(default_factory=list)


def test_values_are_written_without_their_defaults() -> None:
    value = {"made": Sample(ratio=2 / 3, names=["b", "a"]), "same": {Sample().ratio, 0.5}}
    assert plain(value) == {
        "made": {"ratio": 0.666666667, "names": ["b", "a"]},
        "same": [0.5, 1.0],
    }
    frame = pd.DataFrame({"time_us": [1.5, np.nan], "count": np.array([3, 4])})
    assert plain(frame) == [{"time_us": 1.5, "count": 3}, {"count": 4}]
