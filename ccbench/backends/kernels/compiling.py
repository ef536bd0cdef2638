"""The system's compilers: which one there is, what it built a thing of, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ccbench.errors import UsageError

DIGEST_LETTERS = 20


def found_compiler(variable: str, name: str) -> tuple[str, str] | None:
    """(path, first line of its version) of ``name``, or of what the environment's ``variable`` names."""
    path = shutil.which(os.environ.get(variable, name))
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return path, said.partition("\n")[0]


def digest(*parts: str | bytes) -> str:
    """A short name for all that a file is made of: sources, options, compiler."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode() if isinstance(part, str) else part)
        whole.update(b"\0")
    return whole.hexdigest()[:DIGEST_LETTERS]


def compile_to(target: Path, path: str, words: Sequence[str], place: Path) -> None:
    """Run the compiler ``path`` in ``place``; the last word is the source.

    UsageError with the compiler's first error where it fails.
    """
    done = subprocess.run(
        [path, *words, "-o", str(target)], capture_output=True, text=True, check=False, cwd=place
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        reason = lines[0] if lines else "it gave no reason"
        raise UsageError(f"{place / words[-1]}: {Path(path).name} failed: {reason}")
