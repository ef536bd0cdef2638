"""What a PyTorch process asked of its communication library, from the profiler's events on the host.

From PyTorch 2.2 on, a call of NCCL, of libraries like it too, lies in a ``record_param_comms`` that says
it all. Elsewhere operators tell it by their shapes: ``said`` puts that in the words of a record. Sources:
pytorch/pytorch torch/csrc/distributed/c10d/Ops.cpp (arguments of operators), ParamCommsUtils.hpp and
torch/csrc/profiler/util.cpp (records).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ccbench.results.traces.events import BARRIER, RECV, SEND
from ccbench.results.traces.reading import count, text
from ccbench.results.traces.words import collective_of, dtype_of

RECORD = "record_param_comms"
INPUT, OUTPUT = "In msg nelems", "Out msg nelems"

LIBRARY_EVENT = re.compile(r"(?:[a-z]{0,3}ccl|gloo|ucc|mpi):")
OPERATOR = "c10d::"

_OUTPUT_FIRST = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}
"""Operators of these take (output, input, ...)."""

_ROOT_AT = {"broadcast": 2, SEND: 2, RECV: 2, "reduce": 3, "gather": 3, "scatter": 3}
"""Place of the root or the peer, as a rank of the group, among the arguments of operators."""

_IN_KERNELS = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|(?<=_)reduce(?=_)", re.IGNORECASE
)
_MOST_DIMENSIONS, _DEEPEST = 64, 64


@dataclass(slots=True, eq=False)
class Call:
    """An operator, record or event of a library on a thread of the host; times are in microseconds.

    number: of the event. outer: the call around it. answered: what ran for it was found.
    """

    number: int
    start: float
    end: float
    name: str
    thread: tuple[object, object]
    args: Mapping[str, Any]
    outer: Call | None = None
    answered: bool = False

    @property
    def recorded(self) -> bool:
        """True of the record of a communication; others are of wait and init, or old and say nothing."""
        return self.name == RECORD and collective_of(text(self.args.get("Collective name"))) != ""

    def chain(self, at: float) -> list[Call]:
        """The call and those around it that last until ``at``, from the innermost."""
        found: list[Call] = []
        call: Call | None = self
        while call is not None and len(found) < _DEEPEST:
            if call.end >= at:
                found.append(call)
            call = call.outer
        return found


def by_thread(calls: Sequence[Call]) -> dict[object, list[Call]]:
    """Return the calls of each thread by their start, and tell each of them the one around it."""
    threads: dict[object, list[Call]] = {}
    for call in sorted(calls, key=lambda call: (call.start, -call.end)):
        own = threads.setdefault(call.thread, [])
        call.outer = own[-1] if own else None
        while call.outer is not None and call.outer.end < call.end:
            call.outer = call.outer.outer
        own.append(call)
    return threads


def fit(call: Call) -> tuple[str, int | None]:
    """(collective, elements of input): equal for an operator and the event of Gloo that it caused."""
    collective = collective_of(call.name)
    tensors = [] if collective == BARRIER else _tensors(call)
    place = 1 if call.name.startswith(OPERATOR) and collective in _OUTPUT_FIRST else 0
    # Gloo's reduce_scatter is an all_reduce.
    name = "all_reduce" if collective == "reduce_scatter" else collective
    return name, next((elements for at, elements, _ in tensors if at == place), None)


def said(chain: Sequence[Call], kernel: str = "") -> Mapping[str, Any]:
    """Return the record among the calls around a launch, innermost first, or what it would say.

    kernel: name of what was launched, for where calls do not tell the collective.
    """
    operator = next((call for call in chain if call.name.startswith(OPERATOR)), None)
    words = {} if operator is None else _arguments(operator)
    if record := next((call for call in chain if call.recorded), None):
        return {**words, **record.args}
    names = [call.name for call in ([operator] if operator else []) + list(chain)]
    words["Collective name"] = next((name for name in names if collective_of(name)), collective_in(kernel))
    collective = collective_of(words["Collective name"])
    for call in chain:
        tensors = _tensors(call)
        if call is operator and collective in _OUTPUT_FIRST:
            words |= {(OUTPUT, INPUT)[place]: elements for place, elements, _ in tensors if place < 2}
        elif tensors and INPUT not in words:
            # Events of libraries list all inputs; others take outputs and buffers after the first.
            taken = tensors if LIBRARY_EVENT.match(call.name) else tensors[:1]
            words[INPUT] = sum(elements for _, elements, _ in taken)
        if tensors and dtype_of(tensors[0][2])[1] is not None:
            words["dtype"] = tensors[0][2]
    if collective in ("all_reduce", "broadcast", RECV):
        words[OUTPUT] = words.get(INPUT)
    return words


def _arguments(operator: Call) -> dict[str, Any]:
    """Root or peer, splits, and whether it is asynchronous, as a record has them."""
    values = operator.args.get("Concrete Inputs")
    if not isinstance(values, list):
        return {}
    words: dict[str, Any] = {}
    place = _ROOT_AT.get(collective_of(operator.name), len(values))
    if place < len(values):
        words["Rank"] = values[place]
    if operator.name == "c10d::alltoall_base_":
        words |= zip(("Out split size", "In split size"), values[3:5], strict=False)
    if flags := [value for value in values if value in ("True", "False")]:
        words["Is asynchronized op"] = flags[-1] == "True"
    return words


def _tensors(call: Call) -> list[tuple[int, int, str]]:
    """(place, elements, element type) of the arguments that are tensors or lists of tensors."""
    dims, types = call.args.get("Input Dims"), call.args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    pairs = enumerate(zip(dims, types, strict=False))
    sized = [(place, _elements(shape, word), text(word)) for place, (shape, word) in pairs]
    return [(place, elements, word) for place, elements, word in sized if elements is not None]


def _elements(shape: object, word: object) -> int | None:
    """Elements of a tensor's shape, or of a list of them, where each number can be one."""
    if not isinstance(shape, list) or (not shape and dtype_of(text(word))[1] is None):
        return None
    shapes = shape if isinstance(shape[0] if shape else 0, list) else [shape]
    lengths = [
        [count(length) for length in one[:_MOST_DIMENSIONS]] for one in shapes if isinstance(one, list)
    ]
    known = [math.prod(length for length in one if length is not None) for one in lengths if None not in one]
    return count(sum(known)) if len(known) == len(shapes) else None


def group_size(words: Mapping[str, Any]) -> int:
    """Ranks of a group by what one rank gives and gets, 0 where that does not tell."""
    collective = collective_of(text(words.get("Collective name")))
    if collective == "all_to_all":
        splits, cut = figures(words.get("In split size"))
        return 0 if cut else len(splits)
    amounts = [count(words.get(key)) or 0 for key in (INPUT, OUTPUT)]
    told = collective in ("all_gather", "reduce_scatter")
    return max(amounts) // min(amounts) if told and min(amounts) and max(amounts) % min(amounts) == 0 else 0


def figures(value: object) -> tuple[list[int], bool]:
    """(whole numbers of a list, as text or not; whether its middle is cut out, as from 31 numbers on)."""
    parts = value.strip("[] ").split(",") if isinstance(value, str) else value
    if not isinstance(parts, list):
        return [], False
    return [figure for figure in map(count, parts) if figure is not None], "..." in str(parts[-2:-1])


def collective_in(kernel: str) -> str:
    """The collective in the name of a kernel, "" where it has none (SendRecv, Generic).

    Algorithm and protocol in NCCL's names are not what ran: one kernel of a collective calls all variants.
    """
    found = re.search(
        r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|_reduce_", kernel, re.I
    )
    if found:
        return found[0]
    return "all_reduce" if re.search(r"cross_device_reduce|multimem|lamport", kernel) else ""
