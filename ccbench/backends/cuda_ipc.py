"""``cuda-ipc``: one process for each GPU, each other's memory opened through CUDA IPC."""

from __future__ import annotations

from ccbench.backends.cuda import IPC_BACKEND

BACKEND = IPC_BACKEND
