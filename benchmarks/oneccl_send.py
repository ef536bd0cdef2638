"""A send of oneCCL between two processes on host memory, without ccbench: it ends both with SIGSEGV.

    python benchmarks/oneccl_send.py /path/to/lib      (the folder with libccl.so.2; in LD_LIBRARY_PATH too)

Seen with oneCCL 2022.1.2, CCL_PLUGIN=ONECCL_LEGACY_CPU: ccl_send -> ccl_stream::get_ze_device of no stream.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLOAT32, UNIQUE_ID_BYTES = 7, 4096


class UniqueId(ctypes.Structure):
    """onecclUniqueId."""

    _fields_ = (("data", ctypes.c_char * UNIQUE_ID_BYTES),)


def rank(number: int, library: ctypes.CDLL, met: Path) -> None:
    """Send 10 floats from rank 0 to rank 1."""
    if number == 0:
        made = UniqueId()
        assert library.onecclGetUniqueId(ctypes.byref(made)) == 0
        met.with_suffix(".new").write_bytes(bytes(made))
        met.with_suffix(".new").rename(met)
    while not met.exists():
        time.sleep(0.01)
    communicator, unique = ctypes.c_void_p(), UniqueId.from_buffer_copy(met.read_bytes())
    library.onecclCommInitRank.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        UniqueId,
        ctypes.c_int,
    ]
    assert library.onecclCommInitRank(ctypes.byref(communicator), 2, unique, number) == 0
    data = (ctypes.c_float * 10)()
    call = library.onecclSend if number == 0 else library.onecclRecv
    call.argtypes = [
        *(
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )
    ]
    print(
        "rank",
        number,
        "gives",
        call(data, 10, FLOAT32, 1 - number, communicator, None),
        flush=True,
    )


def main(folder: str, *own: str) -> int:
    """Start both ranks, and tell how each ended."""
    if own:
        rank(int(own[0]), ctypes.CDLL(f"{folder}/libccl.so.2"), Path(own[1]))
        return 0
    expected = {
        "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
        "CCL_ATL_TRANSPORT": "ofi",
        "LD_LIBRARY_PATH": folder,
    }
    with tempfile.TemporaryDirectory() as place:
        both = [
            subprocess.Popen(
                [sys.executable, __file__, folder, str(number), f"{place}/id"],
                env={**os.environ, **expected},
            )
            for number in range(2)
        ]
        ends = [one.wait() for one in both]
    print("ended with", ends)
    return max(map(abs, ends))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: oneccl_send.py FOLDER, in which libccl.so.2 lies")
    sys.exit(main(*sys.argv[1:]))
