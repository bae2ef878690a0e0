"""Writes the pages of docs/reference that the program itself knows best.

python docs/generate.py [--check]

With --check nothing is written; the exit status says whether the pages are current.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any

from vram.cli.app import COMMANDS
from vram.diagnosis import manual
from vram.report.schema import generate

REFERENCE = Path(__file__).resolve().parent / "reference"
SCHEMA = "../../src/vram/report/why.schema.json"
NOTE = "<!-- written by docs/generate.py: change the source, then run `make docs` -->"


def rules() -> Iterator[str]:
    yield "# Rules\n"
    yield "Every finding carries a code that never changes its meaning; `vram explain CODE` shows its page.\n"
    yield "| code | cause |"
    yield "|---|---|"
    for code in manual.codes():
        yield f"| [{code}](#{code.lower()}) | {manual.summary(code)} |"
    for code in manual.codes():
        yield f"\n## {code}\n"
        body = cleandoc(manual.page(code)).removeprefix(code).strip()
        yield re.sub(r"^(.+)\n-{3,}$", r"### \1\n", body, flags=re.MULTILINE)


def commands() -> Iterator[str]:
    yield "# Commands\n"
    yield "What `vram COMMAND --help` tells. The [exit codes](exit-codes.md) are the same everywhere."
    for name in COMMANDS:
        command = import_module(f"vram.cli.commands.{name}")
        # argparse lays its help out differently from one Python to the next: only its facts are used.
        parser = argparse.ArgumentParser(prog=f"vram {name}", add_help=False)
        command.add_arguments(parser)
        yield f"\n## vram {name}\n"
        yield _sentence(command.HELP)
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        if shown:
            yield "\n| argument | meaning |"
            yield "|---|---|"
        for action in shown:
            yield f"| `{_spelling(action)}` | {_cell(action.help % vars(action) if action.help else '')} |"


def json_fields() -> Iterator[str]:
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


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "rules.md": rules,
    "commands.md": commands,
    "json-fields.md": json_fields,
}


def main(arguments: list[str]) -> int:
    stale = [name for name, page in PAGES.items() if _current(name) != _rendered(page)]
    if "--check" in arguments:
        for name in stale:
            print(f"docs/reference/{name} is not current: run `make docs`")
        return 1 if stale else 0
    for name in stale:
        (REFERENCE / name).write_text(_rendered(PAGES[name]))
        print(f"docs/reference/{name} written")
    return 0


def _rendered(page: Callable[[], Iterator[str]]) -> str:
    return f"{NOTE}\n\n" + "\n".join(page()) + "\n"


def _current(name: str) -> str | None:
    path = REFERENCE / name
    return path.read_text() if path.exists() else None


def _spelling(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    value = {None: value, "?": f"[{value}]", "*": f"[{value}...]", 0: ""}.get(action.nargs, value)
    return " ".join(filter(None, [", ".join(action.option_strings), value]))


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


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
