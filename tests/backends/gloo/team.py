"""Gloo's ranks without ccbench's leader: forked processes that exchange things through the test's process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from ccbench.backends.gloo import GlooEndpoint
from ccbench.cases.axes import Case
from ccbench.cases.measurement import CaseFacts, Sampling
from ccbench.machine.host import die_with_parent
from ccbench.runner.measure import RankResult, measure
from tests.backends.measuring import Channel

PATIENCE_SECONDS = 120.0

QUICK = Sampling(
    rounds=1, maximum_samples=4, minimum_samples=2, warmup_seconds=0.0, budget_seconds=1.0
)


@dataclass
class PipedExchange(Channel):
    """Implements ``ccbench.backends.base.ControlChannel`` over a pipe to the parent, which tells all."""

    rank: int
    ranks: int
    hosts: tuple[str, ...]
    pipe: Connection
    one_clock: bool = True
    oversubscribed: bool = False

    def all_gather(self, mine: bytes) -> list[bytes]:
        self.pipe.send(("all", mine))
        payloads: list[bytes] = self.pipe.recv()
        return payloads


Work = Callable[[PipedExchange], Any]


def on_ranks(
    ranks: int, work: Work, hosts: Sequence[str] = (), one_clock: bool = True
) -> list[Any]:
    """What ``work`` returns on each rank, or the text of what it raised, all ranks at once."""
    pipes, pids = [], []
    if find_spec("torch"):
        import_module(
            "torch"
        )  # once here, not in each rank, which takes seconds where there are few processors
    names = tuple(hosts) or ("host",) * ranks
    for rank in range(ranks):
        ours, theirs = Pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                die_with_parent(parent)
                theirs.send(
                    ("end", _answer(work, PipedExchange(rank, ranks, names, theirs, one_clock)))
                )
            os._exit(0)
        theirs.close()
        pipes.append(ours)
        pids.append(pid)
    try:
        return _hub(pipes)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
            os.waitpid(pid, 0)


def _answer(work: Work, exchange: PipedExchange) -> Any:
    try:
        return work(exchange)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def _hub(pipes: list[Connection]) -> list[Any]:
    answers: dict[int, Any] = {}
    payloads: dict[int, bytes] = {}
    while len(answers) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in answers}
        ready = wait(list(waiting), PATIENCE_SECONDS)
        assert ready, f"ranks are silent; {sorted(answers)} have ended"
        for pipe in ready:
            assert isinstance(pipe, Connection)
            kind, value = pipe.recv()
            if kind == "end":
                answers[waiting[pipe]] = value
            else:
                payloads[waiting[pipe]] = value
        if len(payloads) == len(pipes):
            for pipe in pipes:
                pipe.send([payloads[rank] for rank in range(len(pipes))])
            payloads.clear()
    return [answers[rank] for rank in range(len(pipes))]


def measured(
    ranks: int, cases: Sequence[Case], one_clock: bool = True
) -> list[list[RankResult]]:
    """Results of each case on each rank; a rank that failed fails the test with its own words."""
    return [
        [result for result, _ in by_rank]
        for by_rank in measured_with_facts(ranks, cases, one_clock)
    ]


def measured_with_facts(
    ranks: int, cases: Sequence[Case], one_clock: bool = True
) -> list[list[tuple[RankResult, CaseFacts]]]:
    """As ``measured``, and what each rank's endpoint tells besides."""

    def work(exchange: PipedExchange) -> list[tuple[RankResult, CaseFacts]]:
        endpoint = GlooEndpoint(exchange)
        results = []
        for case in cases:
            endpoint.prepare(case)
            result = measure(endpoint, case, QUICK, endpoint.next_seed())
            results.append((result, endpoint.facts()))
            endpoint.finish()
        endpoint.close()
        return results

    by_rank = on_ranks(ranks, work, one_clock=one_clock)
    for answer in by_rank:
        assert not isinstance(answer, str), answer
    return [[answer[number] for answer in by_rank] for number in range(len(cases))]
