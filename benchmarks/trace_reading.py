"""Time and memory that reading a large trace takes: a real one is repeated until it has the size asked for.

python -m benchmarks.trace_reading TRACE.json[.gz] [--megabytes 500] [--gzip]
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from ccbench.readers.traces.reading import read_traces

LATER = ("External id", "correlation")


def repeated(trace: dict[str, Any], target: Path, size_bytes: int) -> int:
    """Write ``trace`` with its events over and over, each time later and with other ids; return the times."""
    events = [event for event in trace["traceEvents"] if isinstance(event, dict)]
    starts = [float(event["ts"]) for event in events if "ts" in event]
    span, ids = max(starts) - min(starts) + 1e6, 1 << 24
    opened = gzip.open if target.suffix == ".gz" else open
    written = times = 0
    with opened(target, "wt") as file:
        members = {name: value for name, value in trace.items() if name != "traceEvents"}
        file.write(json.dumps(members)[:-1] + ', "traceEvents": [\n')
        while written < size_bytes:
            for event in events:
                args = dict(event.get("args") or {})
                args |= {
                    key: args[key] + times * ids
                    for key in LATER
                    if isinstance(args.get(key), int)
                }
                moved = (
                    event
                    | {"args": args}
                    | ({"ts": float(event["ts"]) + times * span} if "ts" in event else {})
                )
                text = (",\n" if written else "") + json.dumps(moved)
                written += file.write(text)
            times += 1
        file.write("]}\n")
    return times


def main() -> None:
    """Make the file, read it, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--gzip", action="store_true")
    chosen = parser.parse_args()
    opened = gzip.open if chosen.trace.suffix == ".gz" else open
    with opened(chosen.trace, "rt") as file:
        trace = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / ("trace.json.gz" if chosen.gzip else "trace.json")
        times = repeated(trace, target, chosen.megabytes * 1_000_000)
        del trace
        before = resource.getrusage(resource.RUSAGE_SELF)
        begin = time.perf_counter()
        read = read_traces([target])
        seconds = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{chosen.megabytes} MB, {times} times the trace: {len(read.communications)} communications"
    )
    print(f"{seconds:.1f} s ({after.ru_utime - before.ru_utime:.1f} s of a processor)")
    print(
        f"at most {after.ru_maxrss / 1e6:.2f} GB, {before.ru_maxrss / 1e6:.2f} GB of it before reading"
    )


if __name__ == "__main__":
    main()
