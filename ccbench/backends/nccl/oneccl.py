"""oneCCL on processors: one process per rank, samples by the host's clock.

oneCCL opens a plug-in that CCL_PLUGIN names: ONECCL_LEGACY_CPU takes addresses of the host, no stream, and
returns when the collective is over. So samples are by the host's clock, as of MPI and Gloo, and buffers are
the rank's own. Ranks find each other by the unique id; CCL_ATL_TRANSPORT=ofi needs no MPI for that, whoever
starts them.
"""

from __future__ import annotations

import os

from ccbench.backends.base import ControlChannel
from ccbench.backends.nccl.dialects import ONECCL
from ccbench.backends.nccl.library import open_by_loader
from ccbench.backends.nccl.library_rank import HostLibraryBackend, LibraryRank
from ccbench.machine.host import usable_cores

SETTINGS = (
    ("CCL_PLUGIN", "ONECCL_LEGACY_CPU"),
    ("CCL_ATL_TRANSPORT", "ofi"),
    ("CCL_LOG_LEVEL", "error"),  # else it prints each of these as a warning
)
"""oneCCL reads them when it is loaded; what the user has set stays."""

YIELDING = ("CCL_YIELD", "sched_yield")
"""Threads that poll must give up a processor that they share, or each waits for the scheduler's turn."""

THREADS = 2
"""Of a rank, that poll: the caller's and CCL_WORKER_COUNT workers, one by default."""


def open_oneccl_rank(exchange: ControlChannel) -> LibraryRank:
    """Return this process's rank of oneCCL. Collective."""
    here = exchange.hosts.count(exchange.hosts[exchange.rank])
    defaults = dict((*SETTINGS, *([YIELDING] if THREADS * here > usable_cores() else [])))
    settings = {name: os.environ.setdefault(name, value) for name, value in defaults.items()}
    return LibraryRank(exchange, open_by_loader(ONECCL), settings=settings)


BACKEND = HostLibraryBackend(ONECCL)
