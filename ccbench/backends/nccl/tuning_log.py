"""What NCCL says it chose: lines of its tuning log as algorithm, protocol and channels.

NCCL writes them with ``NCCL_DEBUG=INFO`` and ``NCCL_DEBUG_SUBSYS=TUNING``, rank 0 of a communicator only.
Three forms are known, from NCCL's ``src/enqueue.cc`` and ``src/sym_kernels.cc`` and from published logs:

- from 2.24: ``AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}`` (names in any case);
- 2.6 to 2.23: ``AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008``, earlier without the name;
- from 2.27, kernels on symmetric memory: ``AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R
  nchannels 8 nthreads 512``.

Point-to-point calls, and what is made of them, write no such line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

ALGORITHM_NUMBERS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
"""NCCL_ALGO_* of src/include/nccl_common.h; 2 was plain CollNet before 2.14."""

PROTOCOL_NUMBERS = ("ll", "ll128", "simple")
"""NCCL_PROTO_*."""

FUNCTIONS = {
    "all_reduce": "AllReduce",
    "barrier": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
"""Collectives for which NCCL chooses an algorithm, by NCCL's names."""

_NAMED = re.compile(
    r"(?:(?P<function>\w+):\s+)?(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
_SYMMETRIC = re.compile(
    r"(?P<function>\w+) \[Symmetric\]: (?P<bytes>\d+) Bytes -> Kernel (?P<kernel>\w+)"
    r"(?:.*?nchannels (?P<channels>\d+))?"
)


@dataclass(frozen=True)
class Choice:
    """What ran. Empty and 0: not reported. ``protocol`` of a symmetric kernel is the kernel's name."""

    algorithm: str = ""
    protocol: str = ""
    channels: int = 0


def read_choice(text: str, collective: str) -> Choice:
    """What the log ``text`` says of ``collective``; an empty Choice where it says nothing.

    Of several lines (aggregation, groups) the first one's words count, with the most channels of all.
    """
    function = FUNCTIONS.get(collective)
    if function is None:
        return Choice()
    found = [choice for name, choice in _choices(text.splitlines()) if name in ("", function)]
    if not found:
        return Choice()
    first = found[0]
    return Choice(first.algorithm, first.protocol, max(one.channels for one in found))


def _choices(lines: Iterable[str]) -> Iterable[tuple[str, Choice]]:
    for line in lines:
        symmetric = _SYMMETRIC.search(line)
        if symmetric:
            channels = int(symmetric["channels"] or 0)
            yield symmetric["function"], Choice("symmetric", _kernel(symmetric["kernel"]), channels)
            continue
        named = _NAMED.search(line)
        if named:
            channels = int(named["high"]) - int(named["low"]) + 1 if named["high"] else 0
            algorithm = _word(named["algorithm"], ALGORITHM_NUMBERS)
            yield (
                named["function"] or "",
                Choice(algorithm, _word(named["protocol"], PROTOCOL_NUMBERS), channels),
            )


def _kernel(name: str) -> str:
    """``AGxLL_R`` of ``AllReduce_AGxLL_R``."""
    return name.partition("_")[2].lower() or name.lower()


def _word(text: str, numbered: tuple[str, ...]) -> str:
    if text.isdigit():
        return numbered[int(text)] if int(text) < len(numbered) else ""
    return text.replace("_", "").lower()
