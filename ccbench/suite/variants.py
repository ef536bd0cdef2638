"""Variants of a suite: libraries and variables that the ranks are started with, each by a name.

``{base: {}, new: {library: /opt/nccl/lib/libnccl.so.2}, buf8: {env: {NCCL_BUFFSIZE: 8M}}}``. Only the form is
read here: which variables may be set, and whether a library is there, is asked before a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ccbench.cases.axes import Variant
from ccbench.suite.readers import MisfitError, Reads, one_text, read_at, refuse_unknown
from ccbench.units import shown

MOST_VARIANTS = 64
LONGEST_SETTING = 4096

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,31}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_KEYS = ("library", "env")

_read_name = one_text(
    "name of a variant", _NAME.fullmatch, "letters, digits, '.', '_', '+', '-', at most 32"
)
_read_variable = one_text(
    "name of a variable", _VARIABLE.fullmatch, "a name such as NCCL_BUFFSIZE"
)
_read_library = one_text(
    "path",
    lambda text: 0 < len(text) <= LONGEST_SETTING and text.isprintable(),
    "the path of a library",
)


def read_variants(value: Any) -> tuple[Variant, ...]:
    """Each variant, in the order of the file."""
    if isinstance(value, tuple) and all(isinstance(variant, Variant) for variant in value):
        return value
    if not isinstance(value, Mapping):
        raise MisfitError(
            f"{shown(value)} is no mapping of names; write {{base: {{}}, new: {{env: ...}}}}"
        )
    if len(value) > MOST_VARIANTS:
        raise MisfitError(f"has {len(value)} variants; write at most {MOST_VARIANTS}")
    return tuple(
        read_at((), _read_name, name) and _one(name, settings)
        for name, settings in value.items()
    )


def _one(name: str, settings: Any) -> Variant:
    if not isinstance(settings, Mapping):
        cure = "write {} for nothing, or the keys library and env"
        raise MisfitError(f"{shown(settings)} is not a mapping; {cure}", name)
    refuse_unknown(settings, _KEYS, name)
    variables = settings.get("env", {})
    if not isinstance(variables, Mapping):
        raise MisfitError(
            f"{shown(variables)} is not a mapping; write {{NAME: value}}", name, "env"
        )
    library = settings.get("library", "")
    return Variant(
        name,
        library and read_at((name, "library"), _read_library, library),
        tuple(
            (read_at((name, "env"), _read_variable, variable), _setting(name, variable, word))
            for variable, word in variables.items()
        ),
    )


def _setting(name: str, variable: str, word: Any) -> str:
    """Text or a number; what it is, is not said in an error: it may be a secret."""
    # YAML's true would become a word that no library documents.
    # Of 1.50 and 1e3 YAML keeps the value, not what was written: they need quotes.
    fits = isinstance(word, (str, int)) and not isinstance(word, bool)
    if not fits or len(str(word)) > LONGEST_SETTING or not str(word).isprintable():
        cure = f"write at most {LONGEST_SETTING} printable letters, or a whole number"
        raise MisfitError(f"is no value of a variable; {cure}", name, "env", variable)
    return str(word)


_SETTINGS_SCHEMA = {
    "type": "object",
    "properties": {
        "library": {"type": "string"},
        "env": {"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
    },
    "additionalProperties": False,
}
VARIANTS = Reads(
    read_variants,
    {"type": "object", "additionalProperties": _SETTINGS_SCHEMA},
    write=lambda variants: {
        variant.name: {
            key: value
            for key, value in (("library", variant.library), ("env", dict(variant.environment)))
            if value
        }
        for variant in variants
    },
)
