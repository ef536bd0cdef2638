"""``python -m ccbench.runner.workers leader FD`` and ``... agent``: the processes that a run starts."""

from __future__ import annotations

import sys

from ccbench.runner.workers.agent import serve_one_team
from ccbench.runner.workers.leader import run_leader

if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    run_leader(int(arguments[0])) if role == "leader" else serve_one_team()
