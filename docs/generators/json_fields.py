"""docs/reference/json-fields.md: every field of ``vram why --json``, from its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

from generators import Page
from vram.report.schema import generate

SCHEMA = "../../src/vram/report/why.schema.json"


def pages() -> Iterator[Page]:
    yield Page("docs/reference/json-fields.md", "\n".join(_page()) + "\n", ("src/vram/report/json.py",))


def _page() -> Iterator[str]:
    definitions: dict[str, Any] = generate()["$defs"]
    yield "# Fields of `vram why --json`\n"
    yield "Its promises are in [json.md](json.md), its JSON Schema in [why.schema.json](" + SCHEMA + ")."
    for name, definition in definitions.items():
        yield f"\n## {name}\n"
        if "description" in definition:
            yield cleandoc(definition["description"]).replace("``", "`")
        if "properties" in definition:
            yield "\n| field | type |"
            yield "|---|---|"
        for field, schema in definition.get("properties", {}).items():
            yield f"| `{field}` | {_type(schema)} |"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    return str(schema.get("type", "any"))
