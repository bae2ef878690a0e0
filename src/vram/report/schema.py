"""The JSON Schema of ``vram why --json``, generated from the model.

``python -m vram.report.schema`` rewrites the copy that is shipped beside this file.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from vram.report.json import WhyReport

SHIPPED = Path(__file__).with_name("why.schema.json")


def generate() -> dict[str, Any]:
    """Describe what the program prints.

    msgspec describes what it would accept, where a field with a default may be missing;
    the program prints every field, so here all are required.
    """
    (root,), definitions = msgspec.json.schema_components([WhyReport], ref_template="#/$defs/{name}")
    for definition in definitions.values():
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
        if "description" in definition:
            # From Python 3.13 on docstrings come without their indent; the file must not change.
            definition["description"] = cleandoc(definition["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vram why --json",
        **root,
        "$defs": definitions,
    }


def rendered() -> bytes:
    """Return the shipped file's exact contents."""
    return msgspec.json.format(msgspec.json.encode(generate()), indent=2) + b"\n"


if __name__ == "__main__":
    SHIPPED.write_bytes(rendered())
