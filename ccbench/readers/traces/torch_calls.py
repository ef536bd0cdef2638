"""Calls of a PyTorch process to its communication library, from the profiler's events on the host.

From PyTorch 2.2 on, a call of NCCL, of libraries like it too, lies in a ``record_param_comms`` that says
it all. Elsewhere operators tell it by their shapes: ``record_words`` puts that in the words of a record. Sources:
pytorch/pytorch torch/csrc/distributed/c10d/Ops.cpp (arguments of operators), ParamCommsUtils.hpp and
torch/csrc/profiler/util.cpp (records).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.readers.traces.events import BARRIER, RECV, SEND, Communication, ProcessGroup
from ccbench.readers.traces.words import (
    collective_of,
    count,
    dtype_of,
    figures,
    listed,
    text,
    uneven,
)
from ccbench.units import plain

RECORD = "record_param_comms"

# Words of a record, as torch/csrc/profiler/util.cpp writes them.
NAME, ASYNCHRONOUS = "Collective name", "Is asynchronized op"
INPUT, OUTPUT = "In msg nelems", "Out msg nelems"
IN_SPLITS, OUT_SPLITS = "In split size", "Out split size"

IN_BYTES, OUT_BYTES = "bytes in", "bytes out"
"""What other tools say instead of elements."""

WORDS = (
    NAME,
    ASYNCHRONOUS,
    INPUT,
    OUTPUT,
    IN_SPLITS,
    OUT_SPLITS,
    "dtype",
    "Group size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Rank",
    "Dst Rank",
    "Src Rank",
    "Seq",
    "Concrete Inputs",
    "Input Dims",
    "Input type",
)
"""All that is read of an event's arguments, besides where it ran."""

LIBRARY_EVENT = re.compile(r"(?:[a-z]{0,3}ccl|gloo|ucc|mpi):")
OPERATOR = "c10d::"

_OUTPUT_FIRST = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}
"""Operators of these take (output, input, ...)."""

_ROOT_AT = {"broadcast": 2, SEND: 2, RECV: 2, "reduce": 3, "gather": 3, "scatter": 3}
"""Place of the root or the peer, as a rank of the group, among the arguments of operators."""

_IN_KERNELS = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|_reduce_", re.IGNORECASE
)
_MOST_DIMENSIONS = _DEEPEST = 64


@dataclass(slots=True, eq=False)
class TorchCall:
    """An operator, record or event of a library on a thread of the host, or a kernel; times in microseconds.

    number: of the event. stream: of a kernel. outer: the call around it. answered: what ran for it was found.
    """

    number: int
    start: float
    end: float
    name: str
    thread: tuple[object, object]
    args: Mapping[str, Any]
    stream: str = ""
    outer: TorchCall | None = None
    answered: bool = False

    @property
    def recorded(self) -> bool:
        """True of the record of a communication; others are of wait and init, or old and say nothing."""
        return self.name == RECORD and collective_of(text(self.args.get(NAME))) != ""

    def chain(self, at: float) -> list[TorchCall]:
        """The call and those around it that last until ``at``, from the innermost."""
        calls: list[TorchCall] = []
        call: TorchCall | None = self
        while call is not None and len(calls) < _DEEPEST:
            if call.end >= at:
                calls.append(call)
            call = call.outer
        return calls


def by_thread(calls: Sequence[TorchCall]) -> dict[object, list[TorchCall]]:
    """Return the calls of each thread by their start, and tell each of them the one around it."""
    threads: dict[object, list[TorchCall]] = {}
    # Of calls that begin together the longest comes first, as the one around the others.
    for call in sorted(calls, key=lambda call: (call.start, -call.end)):
        own = threads.setdefault(call.thread, [])
        # The last one may be over: up from it to the first that lasts as long as this.
        call.outer = own[-1] if own else None
        while call.outer is not None and call.outer.end < call.end:
            call.outer = call.outer.outer
        own.append(call)
    return threads


def fit(call: TorchCall) -> tuple[str, int | None]:
    """(collective, elements of input): equal for an operator and the event of Gloo that it caused."""
    collective = collective_of(call.name)
    tensors = [] if collective == BARRIER else _tensors(call)
    place = 1 if call.name.startswith(OPERATOR) and collective in _OUTPUT_FIRST else 0
    # Gloo's reduce_scatter is an all_reduce.
    name = "all_reduce" if collective == "reduce_scatter" else collective
    return name, next((elements for at, elements, _ in tensors if at == place), None)


def record_words(chain: Sequence[TorchCall], kernel: str = "") -> Mapping[str, Any]:
    """Return the record among the calls around a launch, innermost first, or what it would say.

    kernel: name of what was launched, for where calls do not tell the collective.
    """
    operator = next((call for call in chain if call.name.startswith(OPERATOR)), None)
    words: dict[str, Any] = {}
    if operator is not None:
        values = listed(operator.args.get("Concrete Inputs"))
        place = _ROOT_AT.get(collective_of(operator.name), len(values))
        if place < len(values):
            words["Rank"] = values[place]
        if operator.name == "c10d::alltoall_base_":
            words |= zip((OUT_SPLITS, IN_SPLITS), values[3:5], strict=False)
        # The arguments have no names here; the last flag of an operator of c10d is asyncOp.
        if flags := [value for value in values if value in ("True", "False")]:
            words[ASYNCHRONOUS] = flags[-1] == "True"
    if record := next((call for call in chain if call.recorded), None):
        # The operator fills in what records of old versions lack: whether the call is asynchronous.
        return {**words, **record.args}
    names = [call.name for call in ([operator] if operator else []) + list(chain)]
    words[NAME] = next((name for name in names if collective_of(name)), collective_in(kernel))
    collective = collective_of(words[NAME])
    for call in chain:
        tensors = _tensors(call)
        if call is operator and collective in _OUTPUT_FIRST:
            words |= {
                (OUTPUT, INPUT)[place]: elements for place, elements, _ in tensors if place < 2
            }
        elif tensors and INPUT not in words:
            # Events of libraries list all inputs; others take outputs and buffers after the first.
            taken = tensors if LIBRARY_EVENT.match(call.name) else tensors[:1]
            words[INPUT] = sum(elements for _, elements, _ in taken)
        # The outermost call decides: it is the one that the program made.
        if tensors and dtype_of(tensors[0][2])[1] is not None:
            words["dtype"] = tensors[0][2]
    # These write where they read, and have one tensor to tell of both.
    if collective in ("all_reduce", "broadcast", RECV):
        words[OUTPUT] = words.get(INPUT)
    return words


def _tensors(call: TorchCall) -> list[tuple[int, int, str]]:
    """(place, elements, element type) of the arguments that are tensors or lists of tensors."""
    pairs = zip(
        listed(call.args.get("Input Dims")), listed(call.args.get("Input type")), strict=False
    )
    tensors = []
    for place, (shape, word) in enumerate(pairs):
        # A number and a group have the shape [], as a tensor of one element has: its type tells them apart.
        if not isinstance(shape, list) or (not shape and dtype_of(text(word))[1] is None):
            continue
        shapes = shape if shape and isinstance(shape[0], list) else [shape]
        sizes = [elements_of(shape) for shape in shapes]
        counted = [size for size in sizes if size is not None]
        total = count(sum(counted))
        if len(counted) == len(sizes) and total is not None:
            tensors.append((place, total, text(word)))
    return tensors


def elements_of(shape: object) -> int | None:
    """Elements of one tensor, None where its dimensions are no counts."""
    lengths = [count(length) for length in listed(shape)]
    counted = [length for length in lengths if length is not None]
    sound = isinstance(shape, list) and len(counted) == len(lengths) <= _MOST_DIMENSIONS
    return count(math.prod(counted)) if sound else None


def group_size(words: Mapping[str, Any]) -> int:
    """Ranks of a group by what one rank gives and gets, 0 where that does not tell."""
    collective = collective_of(text(words.get(NAME)))
    if collective == "all_to_all":
        splits, cut = figures(words.get(IN_SPLITS))
        return 0 if cut else len(splits)
    pairs = ((INPUT, IN_BYTES), (OUTPUT, OUT_BYTES))
    small, large = sorted(
        count(words.get(elements)) or words.get(size) or 0 for elements, size in pairs
    )
    # Bytes tell the number of ranks only where one side is a block of the other.
    derivable = collective in ("all_gather", "reduce_scatter") and small and large % small == 0
    return large // small if derivable else 0


def communication(words: Mapping[str, Any], group: ProcessGroup, **facts: Any) -> Communication:
    """Return what a record, or words that stand for one, describes. facts: what no record says."""
    name = plain(text(words.get(NAME)))
    collective = collective_of(name)
    dtype, item = dtype_of(plain(text(words.get("dtype"))))
    elements = [count(words.get(key)) for key in (INPUT, OUTPUT)]
    sent, received = (
        words.get(key) if some is None or item is None else some * item
        for some, key in zip(elements, (IN_BYTES, OUT_BYTES), strict=True)
    )
    if collective == BARRIER:
        dtype, sent, received = "", 0, 0
    elif collective in (SEND, RECV):  # records have the same number for both
        sent, received = (sent, None) if collective == SEND else (None, received)
    place = count(words.get("Rank"))
    # A record has the place in the group, not the rank of the job.
    member = group.ranks[place] if place is not None and place < len(group.ranks) else None
    peer = count(words.get("Dst Rank", words.get("Src Rank")))
    asynchronous = words.get(ASYNCHRONOUS)
    return Communication(
        collective=collective,
        name=name,
        group=group,
        dtype=dtype,
        input_bytes=sent,
        output_bytes=received,
        input_splits=_splits(words.get(IN_SPLITS), sent, group.size),
        output_splits=_splits(words.get(OUT_SPLITS), received, group.size),
        root=member if collective in COLLECTIVES and COLLECTIVES[collective].rooted else None,
        peer=(member if peer is None else peer) if collective in (SEND, RECV) else None,
        sequence=count(words.get("Seq")),
        asynchronous=asynchronous if isinstance(asynchronous, bool) else None,
        **facts,
    )


def _splits(value: object, total: int | None, ranks: int) -> tuple[int, ...]:
    """Bytes of each split; a trace has them in rows of the first dimension, all of one size."""
    rows, cut = figures(value)
    if cut or not total or (ranks and len(rows) != ranks) or total % (sum(rows) or total + 1):
        return ()
    return uneven([row * (total // sum(rows)) for row in rows])


def collective_in(kernel: str) -> str:
    """The collective in the name of a kernel, "" where it has none (SendRecv, Generic).

    Algorithm and protocol in NCCL's names are not what ran: one kernel of a collective calls all variants.
    """
    if match := _IN_KERNELS.search(kernel):
        return match[0]
    return "all_reduce" if re.search(r"cross_device_reduce|multimem|lamport", kernel) else ""
