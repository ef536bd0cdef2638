"""Variables and command lines as they may be kept and shown, without secrets.

Values are kept of variables of an allow-list of exact names (``variables.yaml``); of a library's other
variables the name is. In command lines are known ``NAME=value`` anywhere (so also after ``-x``, ``--env`` and
``--export=ALL,``), ``-env NAME value`` and ``-genv NAME value`` of hydra, ``--mca name value`` of Open MPI,
and options and headers whose own name says secret. Not known are options such as ``-p value`` that mean a
secret to one program only.

The one seam through which ``/proc``, ``/sys``, ``/dev`` and ``/etc`` are read.

Everything is read below one root folder, so that a test can lay out another machine's files. What is absent
or unreadable is no error: a container often sees less than the host.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ccbench.documents import read_installed

REDACTED = "<redacted>"

LONGEST_VALUE = 500

_SECRET_VALUE = re.compile(
    r"://[^/\s@]+@|://\S*\?\S*="  # user, password or query in an address
    r"|\b(bearer|basic)\s+\S{8}"
    r"|(password|passwd|secret|token|key)\s*[=:]"
    r"|-----BEGIN "
    r"|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\b(ghp|gho|ghs|github_pat|glpat|hf|xox[abp]|sk)[-_]\w{10}"
    r"|\beyJ[\w-]{10,}\."  # a JSON web token
    # A long run of letters and digits mixed; device UUIDs have dashes and stay.
    r"|(?<![\w+=])(?=[\w+=]*[0-9])(?=[\w+=]*[A-Za-z])[A-Za-z0-9+=]{32,}",
    re.IGNORECASE,
)

_OWN_FOLDER = re.compile(r"(/(?:home|Users|users)/)[^/:;,\s]+")
"""Home folders, whose next part is somebody's name."""

_PAIR = re.compile(r"--?(g?env|(?:g|o|omp|prte|pmix)?mca)|setenv|(.*/)?sshpass")
"""Options that two words follow: a name (of sshpass an option) and a value."""

_ASSIGNMENT = re.compile(r"(\s*-?)([\w.\[\]][\w.\[\]-]*)\+?=(.*)", re.DOTALL)
_NEXT_ASSIGNMENT = re.compile(r"([,;]\s*)(?=[\w.][\w.-]*=)")
_SECRET_WORD = "(TOKEN|SECRET|PASS|PWD|CRED|AUTH|KEY|BEARER|JWT|COOKIE)"
_SECRET_OPTION = re.compile(rf"-.*{_SECRET_WORD}.*|--?pw", re.IGNORECASE)
_HEADER = re.compile(rf"{_SECRET_WORD}[^\s=]*:", re.IGNORECASE)
"""``X-Api-Key: value``, ``{"token": "value"}``; the value may have several words."""

_SETTING = re.compile(r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]*)=(\S+)|(?<=env )(\w+) (\S+)")
"""A variable and its value in a line of a log, whose own lower-case words may have values too."""

SHORTEST_HIDDEN = 4
"""Characters of a blanked value that is blanked in what a launcher says too; shorter ones are in any word."""


@cache
def _kept() -> tuple[tuple[str, ...], frozenset[str]]:
    """Return prefixes of libraries, and the names whose values are kept, of ``variables.yaml``."""
    plain = read_installed(Path(__file__).with_name("variables.yaml"))
    lists = {prefix: names.split() for prefix, names in plain.items()}
    prefixes = tuple(prefix for prefix in lists if prefix.endswith("_"))
    return prefixes, frozenset(
        (prefix if prefix in prefixes else "") + name
        for prefix, names in lists.items()
        for name in names
    )


def has_kept_value(name: str) -> bool:
    """True where the value of the variable ``name`` may stand in what others read."""
    return name in _kept()[1]


def is_variable_of_library(name: str) -> bool:
    """True for variables of libraries, whether their values are kept or not."""
    return name.startswith(_kept()[0])


def is_secret(name: str, value: str) -> bool:
    """True where a variable's name or its value looks like a secret."""
    named = re.search(_SECRET_WORD, name, re.IGNORECASE) and not has_kept_value(name)
    return bool(named or _SECRET_VALUE.search(value))


def kept_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of a library and of the job, sorted; values off the list and secrets are blanked."""
    return {
        printable(name): blanked(variables[name])[:LONGEST_VALUE]
        if has_kept_value(name)
        else REDACTED
        for name in sorted(variables)
        if has_kept_value(name) or name.startswith(_kept()[0])
    }


def blanked(text: str) -> str:
    """Return ``text`` as it may be kept: printable, without names of users, blank where it looks secret."""
    text = printable(text)
    return REDACTED if _SECRET_VALUE.search(text) else without_names(text)


def without_names(text: str) -> str:
    """Return ``/home/<user>/lib`` for ``/home/ada/lib``."""
    return _OWN_FOLDER.sub(r"\1<user>", text)


def printable(text: str) -> str:
    """Return ``text`` as UTF-8 can carry it."""
    # os.environ carries bytes that are not UTF-8 as lone surrogates, which JSON files cannot.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def command_shown(command: str) -> str:
    """Return ``command``, a line of a shell that ``shlex`` can split, without values that may be secret."""
    return shlex.join(_shown(shlex.split(command), set()))


def line_shown(text: str) -> str:
    """Return a line of somebody's log without values that may be secret."""

    def shown(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return (
            match[0]
            if has_kept_value(name)
            else match[0].replace(match[2] or match[4], REDACTED)
        )

    return blanked(_SETTING.sub(shown, text))


def without_values(text: str, command: Sequence[str]) -> str:
    """Return ``text`` that a program said, without the values that are blanked in its ``command``."""
    hidden: set[str] = set()
    _shown(command, hidden)
    # Longest first, or a value that is part of another would leave the rest of that one.
    for value in sorted(hidden, key=len, reverse=True):
        if len(value) >= SHORTEST_HIDDEN:
            text = text.replace(value, REDACTED)
    return text


def _shown(words: Sequence[str], hidden: set[str]) -> list[str]:
    """Return ``words`` as they may be shown; what they hide is added to ``hidden``."""
    shown: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        shown.append(_word_shown(word, hidden))
        # A name and its value as two words; with "=" in it the name is an assignment, which is seen as such.
        if _PAIR.fullmatch(word) and len(left) > 1 and "=" not in left[0]:
            name, value = left.pop(0), left.pop(0)
            is_kept = any(map(has_kept_value, (name, f"OMPI_MCA_{name}", f"PRTE_MCA_{name}")))
            shown += [name, blanked(value) if is_kept else _hide(value, hidden)]
        elif left and "=" not in word and left[0][:1] != "-" and _SECRET_OPTION.fullmatch(word):
            shown.append(_hide(left.pop(0), hidden))
    return shown


def _word_shown(word: str, hidden: set[str]) -> str:
    if _HEADER.search(word):
        return _hide(word, hidden)
    first = word.split()[0] if any(letter.isspace() for letter in word.strip()) else word
    if first != word and REDACTED not in _word_shown(
        first, set()
    ):  # a line for another shell, no value
        try:
            inner = shlex.split(word)
        except ValueError:
            return _hide(word, hidden)
        within: set[str] = set()  # of this line alone: what another one hid does not count
        shown = shlex.join(_shown(inner, within)) if len(inner) > 1 else ""
        if within:
            hidden |= within
            return shown
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    if equals and _SECRET_OPTION.fullmatch(option):
        return f"{option}={_hide(value, hidden)}"
    shown_parts = []
    for part in _NEXT_ASSIGNMENT.split(value):
        match = _ASSIGNMENT.fullmatch(part)
        if match and not has_kept_value(match[2]):
            shown_parts.append(f"{match[1]}{match[2]}={_hide(match[3], hidden)}")
        else:
            kept = blanked(part)
            shown_parts.append(_hide(part, hidden) if kept == REDACTED else kept)
    return option + equals + "".join(shown_parts)


def _hide(value: str, hidden: set[str]) -> str:
    hidden.add(value)
    return REDACTED


class Files:
    """Files below ``root``; never an exception."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def text(self, path: str) -> str | None:
        """Return the stripped content of ``path``, odd bytes as ``\\xNN``; None when it cannot be read."""
        try:
            content = (self.root / path.lstrip("/")).read_bytes()
        except OSError:
            return None
        return content.decode("utf-8", "backslashreplace").strip()

    def content(self, path: str, most: int = 4096) -> bytes:
        """Return the first ``most`` bytes of ``path``; none when it cannot be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(most)
        except OSError:
            return b""

    def number(self, path: str) -> int | None:
        """Return the whole number ``path`` holds, decimal or ``0x`` hexadecimal; None for anything else."""
        text = self.text(path) or ""
        if re.fullmatch(r"-?[0-9]+", text):
            return int(text)
        return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else None

    def fields(self, path: str, separator: str = ":") -> dict[str, str]:
        """Return lines ``name: value`` of ``path``; the first of several equal names counts."""
        values: dict[str, str] = {}
        for line in (self.text(path) or "").splitlines():
            name, split, value = line.partition(separator)
            if split:
                values.setdefault(name.strip(), value.strip().strip('"'))
        return values

    def choice(self, path: str) -> str | None:
        """Return the word in brackets of a setting such as ``always [madvise] never``."""
        match = re.search(r"\[([^\]]+)\]", self.text(path) or "")
        return match[1] if match else None

    def cpus(self, path: str) -> list[int]:
        """Return the numbers of a list of the kernel, see ``expanded``."""
        return expanded(self.text(path))

    def matching(self, folder: str, pattern: str = "*") -> list[str]:
        """Return paths below ``folder`` that match ``pattern``, sorted, as the other methods take them."""
        try:
            paths = sorted((self.root / folder.lstrip("/")).glob(pattern))
        except OSError:
            return []
        return ["/" + path.relative_to(self.root).as_posix() for path in paths]

    def target(self, path: str) -> str | None:
        """Return the end of all links of ``path``, as the other methods take it; None when there is none."""
        root = os.path.realpath(self.root)
        try:
            real = os.path.realpath(Path(root) / path.lstrip("/"), strict=True)
        except OSError:
            return None
        return (
            real[len(root.rstrip("/")) :] if real.startswith(root.rstrip("/") + "/") else None
        )

    def space_bytes(self, path: str) -> tuple[int, int] | None:
        """Return (size, free) of the file system at ``path``; None where there is none."""
        try:
            space = os.statvfs(self.root / path.lstrip("/"))
        except OSError:
            return None
        return space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail

    def exists(self, path: str) -> bool:
        """True where there is anything at ``path``, a link that leads nowhere too."""
        return os.path.lexists(self.root / path.lstrip("/"))


def cache_folder() -> Path:
    """Return ``$CCBENCH_CACHE``, or ``ccbench`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Builds of kernels lie there, and what calibrations of this host found.
    """
    named = os.environ.get("CCBENCH_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ccbench"


def expanded(ranges: str | None) -> list[int]:
    """Return the numbers of a list of the kernel: 0, 1, 8 of ``0-1,8``; empty for anything else."""
    numbers: list[int] = []
    for part in (ranges or "").strip().split(","):
        first, _, last = part.partition("-")
        # Half a list is worse than none.
        if not first.isdecimal() or not (last or first).isdecimal() or part.endswith("-"):
            return []
        numbers += range(int(first), int(last or first) + 1)
    return numbers
