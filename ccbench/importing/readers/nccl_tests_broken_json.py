"""JSON that a tool never finished writing: what is whole of it."""

from __future__ import annotations

import json
import re
from typing import Any

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],"]', re.DOTALL)
_CLOSERS = {"{": "}", "[": "]"}
_DEEPEST = 64
"""Levels of nesting that are followed; the tools' documents have six."""


def loaded(text: str) -> tuple[Any, bool]:
    """(value, whole): the JSON value in ``text``; where it is cut or broken, what stands before the break.

    Returns (None, False) where nothing can be taken; raises nothing.
    """
    try:
        return json.loads(text), True
    except json.JSONDecodeError as error:
        sound = text[: error.pos]
    except (ValueError, RecursionError):
        return None, False
    return next(filter(None, (_attempt(_closed(part)) for part in (text, sound))), None), False


def _attempt(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _closed(text: str) -> str:
    """``text`` up to its last whole element, with everything open closed."""
    stack: list[str] = []
    end, open_then = 0, ""
    for piece in _PIECE.finditer(text):
        mark = piece[0]
        if mark == '"' or len(stack) > _DEEPEST:
            break
        if mark in _CLOSERS:
            stack.append(_CLOSERS[mark])
        elif mark in "}]":
            if not stack or stack.pop() != mark:
                break
            end, open_then = piece.end(), "".join(stack)
        elif mark == ",":
            end, open_then = piece.start(), "".join(stack)
    return text[:end] + open_then[::-1]
