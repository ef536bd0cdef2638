"""NVIDIA's collective library: ``nccl``, where one process drives all GPUs, and ``nccl-processes``.

This module is what the runner sees: it asks files and package metadata, and imports neither CuPy nor NCCL.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ccbench.backends.base import Team, TeamRequest
from ccbench.backends.cuda import CUPY_DISTRIBUTIONS
from ccbench.backends.nccl.settings import algorithms_for, environment_of, impossible
from ccbench.cases import Case
from ccbench.collectives import collective
from ccbench.dtypes import EXACT_LIMIT, item_bytes
from ccbench.environment import installed_version
from ccbench.kernels.compiler import INSTALL
from ccbench.teams import ProcessTeam

if TYPE_CHECKING:
    from ccbench.backends.crew import TeamEndpoint
    from ccbench.exchange import Exchange

MODES = ("streaming", "isolated", "graph", "cold")
NCCL_DISTRIBUTIONS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
OPS = ("sum", "prod", "min", "max", "avg", "premulsum")
