"""Algorithms that are functions of the user's files, ``FILE.py:FUNCTION``, as far as the file's text tells."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ccbench.cases.axes import CALLABLE

if TYPE_CHECKING:
    from ccbench.cases.axes import Case

_PARSING = Lock()
"""CPython 3.11 mixes up the depths of trees that threads parse at once."""

NUMPY = "numpy"
"""What functions of a file take that does not say."""


def file_of(case: Case) -> Path:
    """Return the file of the function that the case names."""
    return Path(case.algorithm.rpartition(":")[0])


def tensors_of(file: Path) -> str:
    """Return what functions of ``file`` take by its TENSORS, a value of ``Capabilities.callables`` where it is right.

    Raises OSError and SyntaxError.
    """
    with _PARSING:
        tree = ast.parse(file.read_bytes(), str(file))
    for node in ast.walk(tree):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if any(isinstance(target, ast.Name) and target.id == "TENSORS" for target in targets):
            value = node.value  # type: ignore[attr-defined]  # both kinds of node have one
            is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
            return value.value if is_text else ast.unparse(node)
    return NUMPY


def digest_of(file: Path) -> str:
    """Return what tells a file's text from another, 12 hexadecimal digits. Raises OSError."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def digests_of(algorithms: Iterable[str]) -> dict[str, str]:
    """Return the digest of every file that ``algorithms`` name a function of."""
    files = {Path(word.rpartition(":")[0]) for word in algorithms if CALLABLE.fullmatch(word)}
    return {str(file): digest_of(file) for file in sorted(files) if file.is_file()}
