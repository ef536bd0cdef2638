"""The command line of benchmarks/cpu.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.points import MPIS, PEERS, TITLES

DESCRIPTION = (
    "ccbench's CPU backend against Open MPI, MPICH, Intel MPI and Gloo, interleaved in one run."
)


@dataclass(frozen=True)
class Options:
    """The command line. pinned: peers whose ranks are pinned. pythons: interpreter of each peer."""

    ranks: tuple[int, ...]
    rounds: int
    quick: bool
    peers: tuple[str, ...]
    pinned: tuple[str, ...]
    pythons: dict[str, str]
    json: Path | None
    into: Path | None
    replay: Path | None
    note: str
    seed: int


def parse(arguments: Sequence[str]) -> Options:
    """The command line as Options; exits with 2 and a line that says what is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        ranks = tuple(sorted({int(word) for word in options.ranks.split(",")}))
    except ValueError:
        parser.error(f"--ranks: {options.ranks!r} is not a list of whole numbers; write 2,4")
    if min(ranks) < 2:
        parser.error(f"--ranks: {options.ranks!r} has a team of fewer than 2; write 2,4")
    rounds = options.rounds if options.rounds is not None else 2 if options.quick else 5
    if rounds < 1:
        parser.error(f"--rounds: {rounds} rounds measure nothing; write 1 or more")
    return Options(
        ranks=ranks,
        rounds=rounds,
        quick=options.quick,
        peers=_peers(parser, "--peers", options.peers),
        pinned=_peers(parser, "--pin", options.pin),
        pythons={peer: getattr(options, f"python_{peer}") for peer in PEERS},
        json=options.json,
        into=options.into,
        replay=options.replay,
        note=options.note,
        seed=options.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/cpu.py", description=DESCRIPTION)
    add, names = parser.add_argument, ", ".join(PEERS)
    add("--ranks", default="2,4", help="team sizes, separated by commas (default: 2,4)")
    add("--rounds", type=int, help="rounds over all points (default: 5, quick: 2)")
    add("--quick", action="store_true", help="only sizes up to 1 MiB")
    add("--peers", default=",".join(PEERS), help=f"of {names} (default: all)")
    add(
        "--pin",
        default=",".join(MPIS),
        help="peers to pin as ccbench pins its ranks (default: the MPIs)",
    )
    for peer in PEERS:
        text = f"interpreter that has {TITLES[peer]} (default: this one)"
        add(f"--python-{peer}", metavar="PATH", default=sys.executable, help=text)
    add("--json", type=Path, metavar="FILE", help="keep every sample")
    add("--into", type=Path, metavar="FILE", help="put the tables between FILE's markers")
    add(
        "--replay",
        type=Path,
        metavar="FILE",
        help="measure nothing, print the tables of a --json file",
    )
    add("--note", default="", help="a sentence to put above the tables")
    add("--seed", type=int, default=0, help="of the order of visits (default: 0)")
    return parser


def _peers(parser: argparse.ArgumentParser, option: str, text: str) -> tuple[str, ...]:
    peers = tuple(word for word in text.split(",") if word)
    if unknown := sorted(set(peers) - set(PEERS)):
        parser.error(f"{option}: {', '.join(unknown)} not known; choose of {', '.join(PEERS)}")
    return peers
