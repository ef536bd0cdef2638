"""All-reduces that servers of language models call: collected tables, and what the servers' own benchmarks print.

Collected tables are ai-dynamo/aiconfigurator's custom_allreduce_perf and nccl_perf (commit 095f58a51): a row for
each op, kernel, number of GPUs of one host and message. The benchmarks are vLLM's benchmarks/kernels/
benchmark_device_communicators.py (commit 048d679ad) and TensorRT-LLM's tests/microbenchmarks/all_reduce.py (commit
03d89c48c): a column, or a row, for each kernel.

message_size is in elements of nccl-tests' size for every collective, the buffer of all blocks: on eight H100,
all-gather of 268,435,456 halves takes 1.40 ms, a bus bandwidth of 336 GB/s; were that one rank's block, it would be
2,685 GB/s over links of 450 GB/s. The other tables say how many tokens of which length, whose product it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from ccbench.cases.axes import DEFAULT
from ccbench.dtypes import ITEM_BYTES
from ccbench.readers.benchmarks import log, words
from ccbench.readers.lines import PrintedFigure, figure, searches

_HEADINGS = re.compile(
    r"(?P<collected>\bnum_gpus\b.*\bmessage_size\b)|(?P<vllm>Tensor Shape\s+Tensor Size\s)"
    r"|(?P<trtllm>size\s+ntok\s+hdim\s|world_size\b.*\bhidden_size\b.*\bstrategy\b.*\btime[ _]\(?us\b)"
)
_FORMS = {
    "collected": {"graph": "unless NCCL", "per": "1e3"},
    "vllm": {
        "framework": "vLLM",
        "server": "vllm_",
        "graph": "True",
        "per": "1e3",
        "dtype": "bfloat16",
    },
    "trtllm": {"framework": "TRTLLM", "server": "trtllm_", "graph": "False", "per": "1e6"},
}
"""What holds for a table, by its headings, where neither a line nor a cell says otherwise; per: times in a second."""

_ASSUMED = {"op": "all_reduce", "fusion": "NONE", "dtype": "", "framework": "", "server": ""}
_CONTEXT = re.compile(
    r"World Size: (?P<ranks>\d{1,5}), Data Type: (?P<dtype>\S{1,40}),|TP ?= ?(?P<ranks_>\d{1,5})\s*$"
    r"|\s*world_size=(?P<ranks__>\d{1,5})\s+dtype=(?P<dtype_>\w{1,40}).*\bcudagraph=(?P<graph>\w{4,5})"
    r"|# Fusion: (?P<fusion>\w{1,80})\s|.*(?P<graph_>--enable_cudagraph)\b"
)
_NAMES = {
    "message_size": "elements",
    "Tensor Shape": "elements",
    "num_tokens": "elements",
    "ntok": "elements",
    "hidden_size": "length",
    "hdim": "length",
    "latency": "time",
    "time (us)": "time",
    "time_us": "time",
    "kernel_source": "kernel",
    "strategy": "kernel",
    "num_gpus": "ranks",
    "world_size": "ranks",
    "op_name": "op",
    "nccl_dtype": "dtype",
    "allreduce_dtype": "dtype",
    "implementation": "backend",
}
_LIBRARIES = dict(nccl="NCCL", pynccl="NCCL", oneccl="oneCCL")  # noqa: C408 - no backends: what tables call libraries

recognises = searches(_HEADINGS)


def read(text: str) -> log.ImportedLog:
    """One table for each kernel, version, element type, number of ranks and way of launching."""
    context: dict[str, str] = {}
    headings = ["best"]
    rows: list[tuple[log.ImportedTable, log.ImportedRow]] = []
    warnings = []
    lines = list(words.source_lines(text))
    for line in lines:
        if stated := _CONTEXT.match(line.text):
            context |= {k.strip("_"): word for k, word in stated.groupdict().items() if word}
        cells = re.split(r"\s{2,}|,(?! )", line.text.strip("# \t"))
        if form := _HEADINGS.search(line.text):
            headings = [_NAMES.get(cell, cell) for cell in cells]
            assumed = _ASSUMED | _FORMS[form.lastgroup or ""]
            continue
        timed = [
            _row(line.number, assumed | context | record, figure(time))
            for record in _records(headings, cells)
            if line.text[0] != "#"
            and (time := record.get("time", log.NOT_PRINTED)) != log.NOT_PRINTED
        ]
        rows += filter(None, timed)
        warnings += [words.no_row(line)] if None in timed else []
    tables = log.tables_of(rows)
    by_tests = any(table.facts["gpus_per_thread"] for table in tables)
    models = dict.fromkeys(table.facts["device"] for table in tables)
    return log.log_of(
        "nccl-tests" if by_tests else "serving-tables",
        lines,
        tables,
        warnings,
        devices=tuple(log.DeviceLine(0, model=model) for model in models if model),
    )


def _records(headings: Sequence[str], cells: Sequence[str]) -> Iterator[dict[str, str]]:
    """What a row says of each kernel that it has a time of."""
    if headings[-1][:4].lower() != "best":
        more = len(cells) - len(headings)
        if more in (0, 1):  # pandas prints an index before each row
            yield dict(zip(headings, cells[more:], strict=True))
        return
    left, each = (3, 2) if "length" in headings else (2, 1)
    shared = dict(zip(headings[:left], cells, strict=False))
    for kernel, time in zip(headings[left:-1], cells[left:-1:each], strict=False):
        yield shared | {"kernel": kernel, "time": time}


def _row(
    line: int, record: Mapping[str, str], time: PrintedFigure | None
) -> tuple[log.ImportedTable, log.ImportedRow] | None:
    """A kernel's time, with the table that it belongs to, which is equal for all its rows; None where it is none."""
    counts = re.findall(r"\d{1,12}", f"{record.get('elements')} {record.get('length')}")
    dtype = words.dtype_name(record["dtype"])
    size = math.prod(map(int, counts)) * ITEM_BYTES.get(dtype, 0)
    if time is None or not counts or not size:
        return None
    collected = record["graph"] == "unless NCCL"
    printed = record.get("kernel", "").lower()
    kernel = re.sub("_(eager|graph)$", "", printed)
    library = _LIBRARIES.get(kernel, "")
    eager = "_eager" in printed or record["graph"] == "False" or (collected and library)
    backend = library or record["framework"]
    collective = words.collective_name(record["op"])
    table = log.ImportedTable(
        f"{collective}_{record['fusion'].lower()}".removesuffix("_none"),
        (),
        words.whole(record.get("ranks", "")) or None,
        int(collected),
        algorithm=DEFAULT if library else record["server"] + kernel,
        mode="streaming" if eager else "graph",
        facts={
            "backend": backend,
            "backend_version": f"{backend} {record.get('version', '')}".strip(),
            "implementation": record.get("backend", ""),
            "dtype": dtype,
            "device": record.get("device", ""),
            # nccl-tests -t: one process, a thread for each GPU.
            "gpus_per_thread": int(collected and library == "NCCL"),
        },
    )
    op, per = words.op_of(collective, "sum"), float(record["per"])
    return table, log.row_of(
        line, {"seconds": time.over(per)}, size_bytes=size, dtype=dtype, op=op
    )
