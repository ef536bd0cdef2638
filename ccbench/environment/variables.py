"""Variables that steer a run: values of an allow-list of exact names, of all others of a library the name."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
