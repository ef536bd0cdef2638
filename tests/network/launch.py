"""The plainest launcher: ``python -m tests.network.launch HOST,HOST,... COMMAND...`` starts one rank on each.

Ranks get their number and how many there are as ccbench itself would tell them, and run until all have ended;
when one fails or this process is told to end, all are.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time

from tests.network.namespaces import AGENT_VARIABLE

LOOK_SECONDS = 0.05


def main(hosts: str, *command: str) -> int:
    """The exit status of the first rank that fails, else 0."""
    names = hosts.split(",")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ranks = [
        subprocess.Popen(
            [os.environ[AGENT_VARIABLE], name, shlex.join(command)],
            env={**os.environ, "CCBENCH_RANK": str(rank), "CCBENCH_RANKS": str(len(names))},
        )
        for rank, name in enumerate(names)
    ]
    try:
        while True:
            ended = [rank.poll() for rank in ranks]
            failed = [status for status in ended if status]
            if failed or None not in ended:
                return failed[0] if failed else 0
            time.sleep(LOOK_SECONDS)
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
