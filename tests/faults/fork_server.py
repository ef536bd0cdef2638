"""Forks runners that have everything imported, so that a test can afford to kill fifty of them.

Reads lines ``SUITE OUTPUT RESUME`` (RESUME is 0 or 1) and answers with the process id of a runner; answers
``ended CODE`` when told ``wait PID``. Being killed is code -9.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from ccbench.results.schema import arrow_schema
from ccbench.runner.planning import RunOptions
from ccbench.runner.progress import Progress
from ccbench.runner.run import run_suite
from ccbench.suite.model import load_suite


def _runner(suite: str, output: str, resume: bool) -> int:
    where = {"resume": Path(output)} if resume else {"output": Path(output)}
    options = RunOptions(machine="cpu-shared-memory", **where)  # type: ignore[arg-type]  # one of two known names
    return run_suite(load_suite(suite), options, Progress()).exit_code


def main() -> None:
    """Serve until stdin ends."""
    arrow_schema()  # imports pyarrow
    for line in sys.stdin:
        words = line.split()
        if words[0] == "wait":
            code = os.waitstatus_to_exitcode(os.waitpid(int(words[1]), 0)[1])
            print(f"ended {code}", flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                status = _runner(words[0], words[1], words[2] == "1")
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
