"""Words that say a part of a machine is not there, put together in the ways that people write them."""

from __future__ import annotations

from hypothesis import strategies as st

PARTS = (
    "bridge",
    "bridges",
    "NVLink bridge",
    "NVLink",
    "NVLinks",
    "NV12",
    "nvswitch",
    "NVSwitch",
    "nvswitch3",
    "nvlink-cube-mesh",
    "xgmi",
    "Infinity Fabric",
    "HCCS",
    "nvswitch4-nvl72",
    "NVLink or NVSwitch",
)
NETWORKS = (
    "IB",
    "InfiniBand",
    "ib-ndr-400x8",
    "roce-400x8",
    "EFA",
    "SHARP",
    "IB SHARP",
    "slingshot-200x4",
)
WAYS = (
    "no {}",
    "without {}",
    "w/o {}",
    "no working {}",
    "{} not installed",
    "{} is not present",
    "{} disabled",
    "{}: none",
    "{} (not connected)",
    "not a {}",
    "lacks {}",
    "missing {}",
    "{} is off",
    "{} removed",
    "neither {}",
    "non-{}",
    "there is no {}",
    "zero {}",
    "0 {} links",
    "0 % of the {} links",
    "{}=off",
    "none of the {}",
)


def denials(parts: tuple[str, ...] = PARTS) -> st.SearchStrategy[str]:
    """One of ``parts``, denied in any of the ways."""
    return st.builds(str.format, st.sampled_from(WAYS), st.sampled_from(parts))


SHARES = (
    "half of the {}",
    "half the {}",
    "a quarter of the {}",
    "two thirds of all {}",
    "50 % of its {}",
    "{} at half rate",
    "{} running at a quarter of full speed",
    "no more than half of the {}",
    "half of them",
    "90 percent of their {}",
)
COUNTED = ("NVLinks", "NVLink links", "links", "NICs", "HCAs", "ports", "xGMI links")


def shares() -> st.SearchStrategy[str]:
    """Part of what a machine has, in any of the ways."""
    return st.builds(str.format, st.sampled_from(SHARES), st.sampled_from(COUNTED))
