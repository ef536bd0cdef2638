"""The kernels' sources: which entries there are, and the program text of one instance of one entry."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ccbench.backends.kernels.abi import COPY_TYPES, TYPE_BYTES, op_number, type_number
from ccbench.errors import UsageError
from ccbench.resources import shipped_folder

GLOBAL_NAME = "ccb_kernel"
"""What the one ``__global__`` function of a program is called."""

_ENTRY = re.compile(r"^CCB_ENTRY\((\w+), (REDUCES|COPIES)\)$", re.MULTILINE)


@dataclass(frozen=True)
class KernelEntry:
    """One launchable function. reduces: it combines elements, so type and op matter; else only their size."""

    name: str
    file: str
    reduces: bool


@dataclass(frozen=True)
class Program:
    """What a run-time compiler is given: the text, the files it includes by name, the options without the
    architecture."""

    text: str
    headers: Mapping[str, str]
    options: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Changes when anything does that the compiled code depends on, architecture and compiler aside."""
        parts = [
            self.text,
            *self.options,
            *(f"{name}\0{self.headers[name]}" for name in sorted(self.headers)),
        ]
        return hashlib.sha256("\1".join(parts).encode()).hexdigest()


def kernel_folder() -> Path:
    """Where the sources lie."""
    return shipped_folder("kernels")


@lru_cache(maxsize=1)
def entries() -> Mapping[str, KernelEntry]:
    """Every entry of every shipped ``.cu`` file, by name; read once."""
    found: dict[str, KernelEntry] = {}
    for file in sorted(kernel_folder().glob("*.cu")):
        for name, kind in _ENTRY.findall(file.read_text(encoding="utf-8")):
            found[name] = KernelEntry(name, file.name, kind == "REDUCES")
    return found


def entry_named(name: str) -> KernelEntry:
    """The entry called ``name``; UsageError lists the names when there is none."""
    known = entries()
    if name not in known:
        raise UsageError(f"kernel: {name!r} is not known; one of {', '.join(known)}")
    return known[name]


def instance(entry: KernelEntry, dtype: str, op: str) -> tuple[str, str]:
    """The (dtype, op) that ``entry`` is compiled for to serve these: copies need the size only."""
    type_number(dtype), op_number(op)
    return (dtype, op) if entry.reduces else (COPY_TYPES[TYPE_BYTES[dtype]], "sum")


def program(entry: KernelEntry, dtype: str, op: str, folder: Path | None = None) -> Program:
    """The program of one instance. It needs no file on disk: headers are given by name.

    Never add -ftz=true or -use_fast_math: subnormal numbers count.
    """
    folder = folder or kernel_folder()
    dtype, op = instance(entry, dtype, op)
    files = [*folder.glob("*.cuh"), folder / entry.file]
    headers = {file.name: file.read_text(encoding="utf-8") for file in files}
    text = f'#include "{entry.file}"\nCCB_GLOBAL({entry.name})\n'
    options = ("-std=c++17", f"-DCCB_TYPE={type_number(dtype)}", f"-DCCB_OP={op_number(op)}")
    return Program(text, headers, options)
