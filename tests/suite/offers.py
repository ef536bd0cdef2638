"""What the backends of these tests offer, and contexts built on it."""

from __future__ import annotations

from typing import Any

from ccbench.suite.expansion import ExpansionContext

ALGORITHMS = {
    "all_reduce": (
        "ring",
        "binary_tree",
        "double_binary_tree",
        "one_shot",
        "two_shot",
        "recursive_doubling",
        "halving_doubling",
        "hierarchical",
    ),
    "all_gather": ("ring", "bruck", "direct", "recursive_doubling"),
    "reduce_scatter": ("ring", "direct", "pairwise", "recursive_halving"),
    "broadcast": ("binomial", "chain", "direct", "scatter_all_gather"),
    "reduce": ("binomial", "chain", "direct", "reduce_scatter_gather"),
    "all_to_all": ("pairwise", "bruck", "direct"),
    "all_to_all_v": ("direct",),
    "gather": ("binomial", "linear", "direct"),
    "scatter": ("binomial", "linear", "direct"),
    "send_recv": ("shift",),
    "barrier": ("dissemination",),
}


KERNELS = {
    "all_reduce": (
        "ring",
        "tree",
        "mesh_one_shot",
        "mesh_pull",
        "mesh_two_shot",
        "ll",
        "ll_two_shot",
        "schedule:ring",
    ),
    "broadcast": ("ring", "tree", "mesh", "ll"),
    "send_recv": ("put", "ring"),
    "barrier": ("barrier",),
}


def algorithms_of(backend: str, collective: str) -> tuple[str, ...]:
    """The CPU offers everything, NCCL and kernels a little of their own, others nothing but their default."""
    if backend in ("cpu", "simulated"):
        return ALGORITHMS[collective]
    if backend == "nccl" and collective == "all_reduce":
        return ("ring", "tree", "collnet", "nvls", "nvlstree")
    if backend in ("cuda", "cuda-host"):
        return KERNELS.get(collective, ("mesh",))
    return ()


def context(**changes: Any) -> ExpansionContext:
    """Four ranks on the CPU, changed as said."""
    values: dict[str, Any] = {
        "backends": None,
        "auto_backends": ("cpu",),
        "ranks": None,
        "auto_ranks": 4,
        "algorithms_of": algorithms_of,
    }
    return ExpansionContext(**{**values, **changes})
