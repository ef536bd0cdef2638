"""Functions of the user's files in suites, ``FILE.py:FUNCTION``: where the files are, and what runs the functions."""

from __future__ import annotations

from collections.abc import Iterable
from os.path import normpath
from pathlib import Path

from ccbench.cases.axes import CALLABLE
from ccbench.cases.callables import tensors_of
from ccbench.cases.capabilities import backend_names, capabilities_of
from ccbench.errors import UsageError
from ccbench.units import shown


def functions_of(algorithms: Iterable[str]) -> dict[str, str]:
    """Return the functions among ``algorithms``, each with the backend that runs it. Raises UsageError."""
    return {word: backend_of(word) for word in filter(CALLABLE.fullmatch, algorithms)}


def backend_of(word: str) -> str:
    """Return the backend that takes what the function's file takes. Raises UsageError; runs nothing."""
    file = Path(word.rpartition(":")[0])
    if not CALLABLE.fullmatch(word):
        raise UsageError(
            f"{shown(word)} is no FILE.py:FUNCTION, of letters, digits and . / + - _ alone"
        )
    try:
        compile(file.read_bytes(), file, "exec")
        tensors = tensors_of(file)
    except OSError as problem:
        raise UsageError(f"{file}: cannot be read: {problem.strerror}") from None
    except SyntaxError as problem:
        raise UsageError(f"{file}:{problem.lineno}: {problem.msg}") from None
    takers = {
        kind: name for name in backend_names() for kind in capabilities_of(name).callables
    }
    if tensors not in takers:
        raise UsageError(f"{file}: TENSORS is {tensors!r}, expected one of {', '.join(takers)}")
    return takers[tensors]


def normal_word(word: str, folder: Path = Path()) -> str:
    """Return an algorithm's one spelling; the file of a function is found from ``folder`` on."""
    file, _, function = word.rpartition(":")
    return f"{normpath(folder / file)}:{function}" if CALLABLE.fullmatch(word) else word
