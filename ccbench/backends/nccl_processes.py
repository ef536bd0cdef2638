"""``nccl-processes``: NCCL with one process for each GPU, as training jobs have it."""

from __future__ import annotations

from ccbench.backends.nccl import PROCESSES_BACKEND

BACKEND = PROCESSES_BACKEND
