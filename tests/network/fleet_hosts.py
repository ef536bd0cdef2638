"""Hosts of namespaces on which ranks start at once: a process on each has imported all that a rank needs.

Eight ranks that import torch on two cores take half a minute, and a trial of a fleet check starts them two
to six times. So each host forks its ranks: ``host SOCKET`` serves on a host, and ``launch FOLDER HOST,HOST``
is the launcher that ``ccbench run --launch`` starts, with a command that always is the agent's.
"""

from __future__ import annotations

import array
import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

READY = "ready"


def launch(folder: str, hosts: str, *_command: str) -> int:
    """Start a rank on each host; the exit status of the first that fails, else 0."""
    names = hosts.split(",")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lines: list[socket.socket] = []
    for rank, name in enumerate(names):
        line = socket.socket(socket.AF_UNIX)
        line.connect(os.path.join(folder, name))
        numbers = {"CCBENCH_RANK": str(rank), "CCBENCH_RANKS": str(len(names))}
        text = json.dumps({**os.environ, **numbers}).encode()
        descriptors = array.array("i", [sys.stdout.fileno()])
        line.sendmsg(
            [len(text).to_bytes(4, "big")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)],
        )
        line.sendall(text)
        lines.append(line)
    while lines:  # ranks end with this process: their hosts see the lines close
        for ended in wait(lines):
            line = next(line for line in lines if line is ended)
            status = int.from_bytes(line.recv(1) or b"\1", "big")
            if status:
                return status
            lines.remove(line)
    return 0


def host(path: str) -> int:
    """Serve until killed."""
    import ccbench.backends.gloo
    import ccbench.runner.workers.agent
    import ccbench.runner.workers.discovery  # noqa: F401

    importlib.import_module("torch.distributed")  # what ranks would wait for
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    Path(path + READY).touch()
    while True:
        line, _ = server.accept()
        if os.fork() == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(_keep(line))
        line.close()


def _keep(line: socket.socket) -> int:
    """Fork one rank, end it with the line, tell the line how it ended."""
    first, descriptors, _, _ = socket.recv_fds(line, 4, 1)
    text = b""
    while len(text) < int.from_bytes(first, "big"):
        text += line.recv(1 << 16)
    rank = os.fork()
    if rank == 0:
        line.close()
        status = 1
        with suppress(BaseException):
            _be_rank(json.loads(text), descriptors[0])
            status = 0
        os._exit(status)
    ended = os.pidfd_open(rank)
    wait([line, ended])
    with suppress(ProcessLookupError):
        os.killpg(rank, signal.SIGKILL)
    _, status = os.waitpid(rank, 0)
    with suppress(OSError):
        line.send(bytes([min(255, abs(os.waitstatus_to_exitcode(status)))]))
    return 0


def _be_rank(environment: dict[str, str], output: int) -> None:
    from ccbench.runner.workers.agent import serve_one_team

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output, 1)
    os.dup2(output, 2)
    serve_one_team()


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    sys.exit(launch(*arguments) if role == "launch" else host(*arguments))
