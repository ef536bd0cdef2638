"""Releases in order of their numbers."""

from __future__ import annotations

from itertools import pairwise

from ccbench.analysis.releases import release_order


def test_releases_are_in_order_of_their_numbers_and_candidates_come_before_them() -> None:
    ordered = [
        "NCCL 2.9.8",
        "NCCL 2.21.5",
        "NCCL 2.21.5.post1",
        "TRTLLM 1.2.0rc5",
        "TRTLLM 1.2.0rc20",
        "TRTLLM 1.2.0",
        "vLLM 0.14.0",
        "vLLM 0.14.1.dev1+gd68209402",
        "vLLM 0.14.1",
    ]
    keys = list(map(release_order, ordered))
    assert all(before < after for before, after in pairwise(keys))
