"""Writes what the program itself knows best: reference pages.

python docs/generate.py [--check]

With --check nothing is written; the exit status says whether everything is current. A page
that no generator writes any more, because its command or rule is gone, goes too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from generators import codes, commands, json_fields, lab, python_api, statements

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- written by docs/generate.py: change the source, then run `make reference` -->\n\n"
GENERATORS = (codes, lab, statements, commands, json_fields, python_api)
# Nothing else lies in these, so what is not written any more can be told.
OWN_FOLDERS = ("docs/reference/rules", "docs/reference/commands", "docs/reference/lab")


def main(arguments: list[str]) -> int:
    wanted = {path: _whole(path, text) for generator in GENERATORS for path, text in generator.pages()}
    stale = [path for path, text in wanted.items() if _current(path) != text]
    gone = sorted(set(_existing()) - set(wanted))
    if "--check" in arguments:
        for path in stale + gone:
            print(f"{path} is not current: run `make reference`")
        return 1 if stale or gone else 0
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(wanted[path])
        print(f"{path} written")
    for path in gone:
        (ROOT / path).unlink()
        print(f"{path} removed")
    return 0


def _whole(path: str, text: str) -> str:
    return NOTE + text if path.endswith(".md") else text


def _current(path: str) -> str | None:
    file = ROOT / path
    return file.read_text() if file.exists() else None


def _existing() -> Iterator[str]:
    for folder in OWN_FOLDERS:
        yield from (str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
