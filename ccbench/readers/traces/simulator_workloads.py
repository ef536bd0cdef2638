"""Text workloads of simulators: those that aicb writes for SimAI, and those of ASTRA-sim 1.x.

The first line is the kind of parallelism with sizes of groups, the second the number of layers, then a row a
layer: name, dependency, and for the forward pass, the gradient of inputs and that of weights each computing
time, collective and bytes. Both simulators run the first two in the tensor-parallel group and the third in the
data-parallel one; a suffix (ALLTOALL_EP, ALLGATHER_DP_EP) names another. Bytes are the larger buffer of a
rank, but for ASTRA-sim's all-gather, whose bytes are of one rank's block. Nothing was measured. Sources:
astra-sim-alibabacloud/astra-sim/workload/Workload.cc of github.com/aliyun/SimAI;
SimAI_training_workload_generator.py of github.com/aliyun/aicb; system/collective/Ring.cc and
inputs/workload of github.com/astra-sim/astra-sim.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ccbench.findings import SourceWarning
from ccbench.readers.lines import plain, without_tags
from ccbench.readers.traces.events import Communication, ProcessGroup, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.words import buffers, collective_of, count, number, told_damage
from ccbench.units import plain as shortened

LONGEST_LINE = 1 << 12

SENDS_NOTHING = "calls of 0 bytes, which send nothing"

_POLICY = re.compile(r"(?:DATA|MODEL|MICRO|HYBRID_[A-Z_]{3,40}|DISTRIBUTED_INFERENCE)(?:\s|$)")
_SETTING = re.compile(r"(\w{1,40}):?\s+([0-9]{1,18}(?:\.0*)?)(?=\s|$)")
_PHASES = (("tp", 3), ("tp", 6), ("dp", 9))
"""Group of a collective without a suffix, and the column of its name: forward, inputs, weights."""

_ROW_WORDS = 12
_OF_AICB = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
_BLOCKS = (
    "the bytes of an all-gather are taken for those of one rank's block, as ASTRA-sim does"
)
_NOT_SAID = (
    "does not say the size of every group; a group whose size is not known makes no case"
)


def recognises(head: bytes) -> bool:
    """Tell whether a file begins with a kind of parallelism, a number of layers and a row of one."""
    lines = [words for line in head.split(b"\n", 40)[:40] if (words := _words(line))]
    policy, layers, row = [*lines, [], [], []][:3]
    if not _POLICY.match(" ".join(policy)):
        return False
    # A cut file may have no row; nothing else has these words in its first line.
    named = "model_parallel_NPU_group:" in policy
    counted = len(layers) == 1 and count(layers[0]) is not None
    return counted and (named or (len(row) >= _ROW_WORDS and count(number(row[2])) is not None))


def read(file: TraceFile) -> Trace:
    """Return a communication for each collective of each layer, without times, rank and element type."""
    warnings: list[SourceWarning] = []
    not_taken: Counter[str] = Counter()
    communications: list[Communication] = []
    settings: dict[str, int] = {}
    header: Sequence[str] = ()
    layers, rows = -1, 0
    for line, raw in file.lines(LONGEST_LINE):
        words = _words(raw)
        if not words:
            continue
        if not header:
            header = words
            pairs = _SETTING.findall(" ".join(words))
            settings = {name: count(number(value)) or 0 for name, value in pairs}
            # Older aicb named neither ranks nor itself, but always this parallelism.
            settings["blocks"] = int(words[0] != _OF_AICB and "all_gpus" not in settings)
        elif layers < 0:
            layers = count(words[0]) or 0
        elif rows < layers and (calls := _calls(words)) is not None:
            rows += 1
            for group, word, size in calls:
                if size:
                    communications.append(_communication(settings, group, word, size, line))
                else:
                    not_taken[SENDS_NOTHING] += 1
        else:
            kind = "damaged_line" if raw.endswith(b"\n") else "truncated"
            text = f"no row of a layer: {shortened(' '.join(words))!r}"
            told_damage(warnings, kind, text, line)
    if rows < layers:
        text = f"ends after {rows} of the {layers} layers that its second line names"
        warnings.append(SourceWarning("truncated", text))
    if settings.get("blocks") and any(
        call.collective == "all_gather" for call in communications
    ):
        warnings.append(SourceWarning("assumed", _BLOCKS))
    if any(not communication.group.size for communication in communications):
        warnings.append(SourceWarning("not_visible", _NOT_SAID))
    return Trace(
        communications=tuple(communications),
        world_size=settings.get("all_gpus", 0),
        not_taken=not_taken,
        facts=_facts(header, settings, warnings),
        warnings=tuple(warnings),
    )


def _words(raw: bytes) -> list[str]:
    return without_tags(plain(raw.decode("utf-8-sig", "replace")).strip()).split()


def _calls(words: Sequence[str]) -> list[tuple[str, str, int]] | None:
    """(group, word, bytes) of each collective of a layer's row; None where it is no row."""
    if len(words) < _ROW_WORDS:
        return None
    calls = []
    for usual, column in _PHASES:
        size = count(number(words[column + 1]))
        if number(words[column - 1]) is None or size is None:
            return None
        name, _, suffix = words[column].partition("_")
        if name != "NONE":
            calls.append((suffix.lower() or usual, words[column], size))
    return calls


def _communication(
    settings: Mapping[str, int], group: str, word: str, size: int, line: int
) -> Communication:
    ranks = _sizes(settings).get(group, 0)
    collective = collective_of(word.partition("_")[0])
    sent, received = buffers(collective, size, ranks)
    if collective == "all_gather" and settings["blocks"]:
        sent, received = size, size * ranks or None
    return Communication(
        rank=None,
        collective=collective,
        name=shortened(word),
        group=ProcessGroup(shortened(group), ranks),
        input_bytes=sent,
        output_bytes=received,
        line=line,
    )


def _sizes(settings: Mapping[str, int]) -> dict[str, int]:
    """Ranks of each group, 0 where the first line does not say or its sizes do not divide evenly."""
    tensor, experts = settings.get("model_parallel_NPU_group", 0), settings.get("ep", 0)
    stages, world = settings.get("pp", 1), settings.get("all_gpus", 0)
    data = _quotient(world, tensor * stages)
    return {"tp": tensor, "ep": experts, "dp": data, "dp_ep": _quotient(data, experts)}


def _quotient(whole: int, part: int) -> int:
    return whole // part if part and whole % part == 0 else 0


def _facts(
    header: Sequence[str], settings: Mapping[str, int], warnings: list[SourceWarning]
) -> dict[str, str]:
    """Facts of the first line besides groups; what rows lack goes to ``warnings``."""
    facts = {"parallelism": shortened(header[0])} if header else {}
    if settings.get("pp", 1) > 1 and (activations := settings.get("pp_comm")):
        facts["between pipeline stages"] = f"{activations} bytes"
        text = f"messages of {activations} bytes between pipeline stages (pp_comm) have no row"
        warnings.append(SourceWarning("not_visible", text))
    if settings.get("checkpoints"):
        text = "checkpoints repeat forward passes in the backward pass; each row is taken once"
        warnings.append(SourceWarning("not_visible", text))
    return facts
