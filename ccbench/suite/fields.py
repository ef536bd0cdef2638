"""How a pydantic field gets its value from one reader function, and how it says so in a JSON schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core.core_schema import CoreSchema


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Reads:
    """Annotation of a field: ``read`` makes its value or raises ValueError; ``write`` makes it plain again.

    schema: the JSON schema of what a file may say there.
    """

    read: Callable[[Any], Any]
    schema: dict[str, Any]
    write: Callable[[Any], Any] = _same

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Called by pydantic: the reader replaces its own checks of the type."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Called by pydantic for the JSON schema."""
        return dict(self.schema)


def one_or_many(*items: dict[str, Any]) -> dict[str, Any]:
    """The schema of one of ``items`` or a list of them."""
    item = items[0] if len(items) == 1 else {"anyOf": list(items)}
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]}


def range_schema(end: dict[str, Any], rules: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of ``{from, to}`` and one rule."""
    return {
        "type": "object",
        "properties": {"from": end, "to": end, **rules},
        "required": ["from", "to"],
        "additionalProperties": False,
    }
