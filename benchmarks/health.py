"""Trials of the health verdict: ``python -m benchmarks.health [--trials 50] [--ranks 4] [--short]``.

Each trial is one ``ccbench run health`` in a folder of its own; ``--short`` leaves out sizes above 8 KiB and
takes fewer, shorter visits, so that many trials fit into an hour. By turns nothing is wrong, one rank sleeps
in every launch (CCBENCH_FAULT), and one rank's process gets half of its processor: it is stopped and
continued every 10 ms, as cpulimit does. What each verdict names is counted and printed; the exit code is 1 if
a planted rank was missed or a healthy machine accused.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ccbench.runner.workers.rendezvous import rank_and_size
from ccbench.suite.model import load_suite

SHORT_BYTES = 8192
HALF_PERIOD_SECONDS = 0.01
TIME_LIMIT_SECONDS = 600.0

KINDS = HEALTHY, ASLEEP, LIMITED = ("healthy", "sleeping", "limited")


@dataclass(frozen=True)
class Trial:
    """What was planted and what the verdict said. named: the slow ranks, or groups, it accuses."""

    planted: str
    rank: int
    word: str
    named: tuple[str, ...]
    seconds: float

    @property
    def right(self) -> bool:
        """The planted rank and nobody else, or nobody."""
        expected = () if self.planted == HEALTHY else (f"rank {self.rank}",)
        return tuple(
            name for name in self.named if name.startswith("rank ")
        ) == expected and not (self.planted == HEALTHY and self.named)


def trial(planted: str, rank: int, options: argparse.Namespace, folder: Path) -> Trial:
    """One run with one fault, or none."""
    command = [
        sys.executable,
        "-m",
        "ccbench",
        "run",
        options.suite,
        "--ranks",
        str(options.ranks),
    ]
    command += [
        "--backend",
        options.backend,
        "-o",
        str(folder / "run"),
        "--json",
        "--no-report",
        "--quiet",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "CCBENCH_FAULT"}
    if planted == ASLEEP:
        environment["CCBENCH_FAULT"] = f"slow:rank={rank}"
    began = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        over = threading.Event()
        limiter = threading.Thread(target=_limit, args=(run.pid, rank, options.ranks, over))
        if planted == LIMITED:
            limiter.start()
        try:
            printed, _ = run.communicate(timeout=TIME_LIMIT_SECONDS)
        finally:
            over.set()
            if planted == LIMITED:
                limiter.join()
            run.kill()
    verdicts = json.loads(printed)["verdicts"]
    word = re.match(r"(NOT HEALTHY|NO VERDICT|HEALTHY)", verdicts[0])
    return Trial(
        planted,
        rank,
        word.group(1) if word else "?",
        named_in(verdicts),
        time.monotonic() - began,
    )


def named_in(verdicts: Sequence[str]) -> tuple[str, ...]:
    """Return the slow ranks, pairs and groups that a verdict's lines accuse."""
    found = (
        re.match(r"\s+Problem: Slow (?:rank|pair|group): ([^;]+);", line) for line in verdicts
    )
    return tuple(one.group(1) for one in found if one)


def _limit(runner: int, rank: int, ranks: int, over: threading.Event) -> None:
    """Stop and continue the process of ``rank`` by turns, whichever process that is at the time."""
    stopped = 0
    while not over.is_set():
        process = process_of_rank(runner, rank, ranks)
        if process:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
                stopped = process
            over.wait(HALF_PERIOD_SECONDS)
        if stopped:
            with suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)
            stopped = 0
        over.wait(HALF_PERIOD_SECONDS)


def process_of_rank(runner: int, rank: int, ranks: int) -> int:
    """The process of a rank, 0 if there is none (yet): the worker forks ranks, or a launcher starts them."""
    left = [runner]
    while left:
        parent = left.pop()
        children = _children(parent)
        left += children
        forked = _runs(parent, "leader")
        own = [
            child
            for child in children
            if (forked and _runs(child, "leader")) or _runs(child, "agent")
        ]
        if len(own) == ranks:
            return sorted(own, key=lambda process: (_told_rank(process), process))[rank]
    return 0


def _runs(process: int, role: str) -> bool:
    """Whether this is an interpreter that ccbench started as a leader or an agent, not what launches it."""
    words = _words(process, "cmdline")
    return words[3:4] == [role] and "run_module('ccbench.runner.workers'" in words[2]


def _told_rank(process: int) -> int:
    """What its launcher told it, -1 for a forked one: these come in the order of their ranks."""
    variables = dict(word.partition("=")[::2] for word in _words(process, "environ"))
    return rank_and_size(variables)[0]


def _words(process: int, name: str) -> list[str]:
    with suppress(OSError):
        return (
            Path(f"/proc/{process}/{name}").read_bytes().decode("utf-8", "replace").split("\0")
        )
    return []


def _children(process: int) -> list[int]:
    with suppress(OSError):
        return sorted(
            int(word)
            for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        )
    return []


def short_suite(folder: Path) -> Path:
    """The shipped suite with small sizes and short sampling, as a file."""
    import yaml

    document = load_suite("health").as_document()
    for sweep in document["sweep"]:
        sweep["size"] = [
            size for size in sweep["size"] if isinstance(size, int) and size <= SHORT_BYTES
        ]
    document["sweep"] = [sweep for sweep in document["sweep"] if sweep["size"]]
    document["sampling"] |= {"rounds": 3, "budget": "30 ms", "warmup": "3 ms"}
    path = folder / "health.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def main() -> int:
    """Run the trials and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=50, help="of each kind")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is planted, by turns"
    )
    parser.add_argument("--short", action="store_true", help="small sizes, short visits")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ccbench-health-") as place:
        options.suite = str(short_suite(Path(place))) if options.short else "health"
        trials = run_trials(options)
    for planted in options.kinds:
        of_kind = [one for one in trials if one.planted == planted]
        words = Counter(one.word for one in of_kind)
        print(
            f"{planted}: {sum(one.right for one in of_kind)} of {len(of_kind)} right; "
            + ", ".join(f"{word} {count} x" for word, count in words.items())
        )
    return 0 if all(one.right for one in trials) else 1


def run_trials(options: argparse.Namespace) -> list[Trial]:
    """All of them, by turns; each is printed as it ends."""
    trials: list[Trial] = []
    for number in range(options.trials):
        for planted in options.kinds:
            with tempfile.TemporaryDirectory(prefix="ccbench-health-") as place:
                one = trial(planted, number % options.ranks, options, Path(place))
            trials.append(one)
            mark = "" if one.right else "  <-- WRONG"
            names = ", ".join(one.named) or "nobody"
            text = f"{number:3} {planted:8} rank {one.rank}: {one.word}, names {names}, {one.seconds:.1f} s"
            print(text + mark, flush=True)
    return trials


if __name__ == "__main__":
    sys.exit(main())
