"""What a case is set to besides algorithm, protocol and mode: fields, and the words for them.

Whatever tells lines, tables, legends, sources and baselines apart reads the same list from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ccbench.cases import ALL_GROUPS

SETTING_DEFAULTS: Mapping[str, Any] = {
    "pair": "",
    "groups": "",
    "alone": ALL_GROUPS,
    "beside": "",
    "traffic": "",
    "computing": "",
    "channels": 0,
    "transport": "default",
    "registration": "none",
    "aggregation": 1,
    "misalignment_bytes": 0,
}
"""Fields of a case with their values in a plain one."""

SETTING_FIELDS = tuple(SETTING_DEFAULTS)

WORK_FIELDS = ("pair", "groups", "alone", "beside", "traffic", "computing", "aggregation")
"""Of these, what changes the work that is done; times of different work do not race."""

_WORDS: Mapping[str, Callable[[Any], str]] = {
    "pair": lambda value: f"pair {value}",
    "groups": lambda value: f"groups {value}",
    "alone": lambda value: f"group {value} alone",
    "beside": lambda value: f"beside {value}",
    "traffic": lambda value: f"traffic {value}",
    "computing": lambda value: f"computing {value}",
    "channels": lambda value: f"{value} channels",
    "transport": lambda value: f"transport {value}",
    "registration": lambda value: f"registration {value}",
    "aggregation": lambda value: f"{value} at once",
    "misalignment_bytes": lambda value: f"{value} B off",
}

_PLAIN_WORDS: Mapping[str, str] = {
    "pair": "ring of all ranks",
    "groups": "all ranks together",
    "alone": "all groups at once",
    "beside": "nothing beside",
    "traffic": "balanced",
    "computing": "nothing computed",
    "channels": "channels default",
    "transport": "transport default",
    "registration": "registration none",
    "aggregation": "1 at once",
    "misalignment_bytes": "aligned",
}


def setting_words(values: Mapping[str, Any], varying: Collection[str] = ()) -> list[str]:
    """Words for every field of ``values`` that is not plain, and for plain ones among ``varying``."""
    words = []
    for name, plain_value in SETTING_DEFAULTS.items():
        if values[name] != plain_value:
            words.append(_WORDS[name](values[name]))
        elif name in varying:
            words.append(_PLAIN_WORDS[name])
    return words
