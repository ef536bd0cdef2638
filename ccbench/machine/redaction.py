"""Variables and command lines as they may be kept and shown, without secrets.

Values are kept of variables of an allow-list of exact names (``variables.yaml``); of a library's other
variables the name is. In command lines are known ``NAME=value`` anywhere (so also after ``-x``, ``--env`` and
``--export=ALL,``), ``-env NAME value`` and ``-genv NAME value`` of hydra, ``--mca name value`` of Open MPI,
and options and headers whose own name says secret. Not known are options such as ``-p value`` that mean a
secret to one program only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml

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


@cache
def _kept() -> tuple[tuple[str, ...], frozenset[str]]:
    """Prefixes of libraries, and the names whose values are kept, of ``variables.yaml``."""
    text = Path(__file__).with_name("variables.yaml").read_text(encoding="utf-8")
    lists = {prefix: names.split() for prefix, names in yaml.safe_load(text).items()}
    prefixes = tuple(prefix for prefix in lists if prefix.endswith("_"))
    return prefixes, frozenset(
        (prefix if prefix in prefixes else "") + name for prefix, names in lists.items() for name in names
    )


def has_kept_value(name: str) -> bool:
    """True where the value of the variable ``name`` may stand in what others read."""
    return name in _kept()[1]


def kept_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of a library and of the job, sorted, printable; values off the list and secrets are blanked."""
    return {
        printable(name): blanked(variables[name])[:LONGEST_VALUE] if has_kept_value(name) else REDACTED
        for name in sorted(variables)
        if has_kept_value(name) or name.startswith(_kept()[0])
    }


def blanked(text: str) -> str:
    """``text`` as it may be kept: printable, without names of users, blank where it looks secret."""
    text = printable(text)
    return REDACTED if _SECRET_VALUE.search(text) else without_names(text)


def without_names(text: str) -> str:
    """``/home/ada/lib`` -> ``/home/<user>/lib``."""
    return _OWN_FOLDER.sub(r"\1<user>", text)


def printable(text: str) -> str:
    """``text`` as UTF-8 can carry it."""
    # os.environ carries bytes that are not UTF-8 as lone surrogates, which JSON files cannot.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


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
