"""What one NVLink carries in one direction, by the version or by the GPU's compute capability.

Versions as in hwloc's topology-nvml.c: 20, 25, 25, 25 and 50 GB/s for 1 to 5. hwloc_distances has a table of
its own by model, because it divides what hwloc multiplied, which knows no 14.06 GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping

AMPERE_CARDS = 14.0625e9
"""GeForce and workstation cards of the Ampere line: 14.062 GB/s in nvidia-smi."""

OF_VERSION: Mapping[int, tuple[str, float]] = {
    1: ("1.0", 20e9),
    2: ("2.0", 25e9),
    3: ("2.2", 25e9),
    4: ("3.0", 25e9),
    5: ("3.1", AMPERE_CARDS),
    6: ("4.0", 25e9),
    7: ("5.0", 50e9),
}
"""NVML's number -> (version, bytes per second)."""

OF_CAPABILITY: Mapping[int, float] = {
    60: 20e9,
    70: 25e9,
    75: 25e9,
    80: 25e9,
    86: AMPERE_CARDS,
    90: 25e9,
    100: 50e9,
    103: 50e9,
}
"""Compute capability x 10 -> bytes per second. 7.5 is from NVIDIA's Turing architecture whitepaper."""
