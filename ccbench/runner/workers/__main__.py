"""``python -m ccbench.runner.workers leader FD`` and ``... agent``: the processes that a run starts."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from ccbench.backends.crew import open_crew
from ccbench.errors import CcbenchError
from ccbench.machine.processes import die_with_parent
from ccbench.runner.workers.agent import run_agent
from ccbench.runner.workers.launched import LaunchedLeader
from ccbench.runner.workers.leader import ForkedLeader, Leader
from ccbench.runner.workers.messages import WorkerGroup
from ccbench.runner.workers.team import RUNNER_VARIABLE

SAMPLE_CAPACITY = 4096


def leader_of(group: WorkerGroup) -> Leader:
    """Return the leader that starts ``group``."""
    if group.launch is None:
        return ForkedLeader(open_crew(group.backend, group.ranks, SAMPLE_CAPACITY, group.processes))
    return LaunchedLeader(group.backend, group.ranks, group.launch)


def run_leader(file: int) -> None:
    """Lead a team until the runner, at the other end of the socket ``file``, hangs up."""
    runner = Connection(file)
    os.set_inheritable(file, False)
    die_with_parent(int(os.environ[RUNNER_VARIABLE]))
    leader = None
    try:
        leader = leader_of(runner.recv())
        leader.start(runner)
        leader.lead(runner)
    except CcbenchError as error:
        with suppress(OSError):
            runner.send(str(error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the runner is gone
    finally:
        if leader is not None:
            leader.end()


def main(role: str, *arguments: str) -> None:
    """Be a leader or an agent until there is nothing more to do."""
    if role == "leader":
        run_leader(int(arguments[0]))
    else:
        run_agent()


if __name__ == "__main__":
    main(*sys.argv[1:])
