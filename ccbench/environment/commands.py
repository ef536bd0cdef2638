"""Command lines as they may be kept and shown: values of variables off the allow-list are blanked.

Known are ``NAME=value`` anywhere (so also after ``-x``, ``--env`` and ``--export=ALL,``), ``-env NAME value``
and ``-genv NAME value`` of hydra, ``--mca name value`` of Open MPI, and options and headers whose own name
says secret. Not known are options such as ``-p value`` that mean a secret to one program only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ccbench.environment.variables import REDACTED, blanked, has_kept_value

_PAIR = re.compile(r"--?(g?env|(?:g|o|omp|prte|pmix)?mca)|setenv|(.*/)?sshpass")
"""What two words follow, a name (of sshpass an option) and a value."""

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


def command_shown(command: str) -> str:
    """``command``, a line of a shell that ``shlex`` can split, without values that may be secret."""
    return shlex.join(_shown(shlex.split(command), set()))


def line_shown(text: str) -> str:
    """A line of somebody's log without values that may be secret."""

    def shown(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return found[0] if has_kept_value(name) else found[0].replace(found[2] or found[4], REDACTED)

    return blanked(_SETTING.sub(shown, text))


def without_values(text: str, command: Sequence[str]) -> str:
    """``text`` that a program said, without the values that are blanked in its ``command``."""
    hidden: set[str] = set()
    _shown(command, hidden)
    for value in sorted(hidden, key=len, reverse=True):
        if len(value) >= SHORTEST_HIDDEN:
            text = text.replace(value, REDACTED)
    return text


def _shown(words: Sequence[str], hidden: set[str]) -> list[str]:
    """``words`` as they may be shown; what they hide is added to ``hidden``."""
    shown: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        shown.append(_word_shown(word, hidden))
        if _PAIR.fullmatch(word) and len(left) > 1 and "=" not in left[0]:
            name, value = left.pop(0), left.pop(0)
            known = any(map(has_kept_value, (name, f"OMPI_MCA_{name}", f"PRTE_MCA_{name}")))
            shown += [name, blanked(value) if known else _hide(value, hidden)]
        elif left and "=" not in word and left[0][:1] != "-" and _SECRET_OPTION.fullmatch(word):
            shown.append(_hide(left.pop(0), hidden))
    return shown


def _word_shown(word: str, hidden: set[str]) -> str:
    if _HEADER.search(word):
        return _hide(word, hidden)
    first = word.split()[0] if any(letter.isspace() for letter in word.strip()) else word
    if first != word and REDACTED not in _word_shown(first, set()):  # a line for another shell, no value
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
    return option + equals + "".join(_part_shown(part, hidden) for part in _NEXT_ASSIGNMENT.split(value))


def _part_shown(part: str, hidden: set[str]) -> str:
    found = _ASSIGNMENT.fullmatch(part)
    if found and not has_kept_value(found[2]):
        return f"{found[1]}{found[2]}={_hide(found[3], hidden)}"
    shown = blanked(part)
    return _hide(part, hidden) if shown == REDACTED else shown


def _hide(value: str, hidden: set[str]) -> str:
    hidden.add(value)
    return REDACTED
