"""Processes that a run starts: ``python -m ccbench.runner.workers leader FD [HUB_FD]`` and ``... agent``."""

from __future__ import annotations

import gc
import sys

from ccbench.runner.workers.agent import serve_one_team
from ccbench.runner.workers.leader import run_leader

if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    run_leader(*map(int, arguments)) if role == "leader" else serve_one_team()
    gc.freeze()  # whoever waits for this process's end does not wait for its garbage to be collected
