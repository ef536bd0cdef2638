"""Few cases in which every two values of any two parameters meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

CANDIDATES = 30


def pairwise(parameters: Mapping[str, Sequence[Any]], seed: int) -> list[dict[str, Any]]:
    """Cases that cover all pairs; greedy: the best of some random candidates, one after another."""
    generator = random.Random(seed)
    names = list(parameters)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(parameters[names[a]]))
        for j in range(len(parameters[names[b]]))
    }
    cases = []
    while missing:
        wanted = min(generator.sample(sorted(missing), 1))
        best, covered = None, set[tuple[int, int, int, int]]()
        for _ in range(CANDIDATES):
            choice = [generator.randrange(len(parameters[name])) for name in names]
            choice[wanted[0]], choice[wanted[2]] = wanted[1], wanted[3]
            pairs = {(a, choice[a], b, choice[b]) for a, b in itertools.combinations(range(len(names)), 2)}
            if best is None or len(pairs & missing) > len(covered):
                best, covered = choice, pairs & missing
        assert best is not None
        missing -= covered
        cases.append({name: parameters[name][index] for name, index in zip(names, best, strict=True)})
    return cases
