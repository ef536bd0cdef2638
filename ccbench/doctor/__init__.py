"""Looks at the machine the way a person does before believing its figures, and says what to change.

Reads files, asks the system and the GPUs' driver; changes nothing, loads no CUDA, MPI or torch library.
"""

from ccbench.doctor.checks import Check, CheckStatus, Surroundings
from ccbench.doctor.examining import examine

__all__ = ["Check", "CheckStatus", "Surroundings", "examine"]
