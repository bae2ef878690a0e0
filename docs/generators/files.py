"""docs/project/files.md: every source file and its one job, from the first line of each.

``make map`` prints the same; ``make map ARGS=ledger`` the files of one folder.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from generators import Page

ROOT = Path(__file__).resolve().parents[2]
PYTHON, C = "src/vram", "native"
FIRST_LINE = re.compile(r'(?:#.*\n)*r?"""(.*?)(?:"""|\n)')
FIRST_SENTENCE = re.compile(r"(.+?[.?])(?= |$)")


def pages() -> Iterator[Page]:
    yield Page("docs/project/files.md", "\n".join(_page()) + "\n", (PYTHON,))


def _page() -> Iterator[str]:
    yield "# Files\n"
    yield "Every source file, and its one job. [The map](../architecture.md) says which folder to look in;"
    yield "`make map` prints this page, `make map ARGS=ledger` one folder of it."
    for folder, files in folders().items():
        yield f"\n## {folder}/\n"
        about = files.get("__init__.py")
        yield f"{about}\n" if about else ""
        yield "| file | |"
        yield "|---|---|"
        for name, job in files.items():
            if name != "__init__.py":
                yield f"| `{name}` | {_cell(job)} |"


def folders() -> dict[str, dict[str, str]]:
    """Each folder with source files: their names, and the one job of each."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted([*(ROOT / PYTHON).rglob("*.py"), *(ROOT / C).rglob("*.[ch]")]):
        folder = path.parent.relative_to(ROOT).as_posix().removeprefix("src/")
        found.setdefault(folder, {})[path.name] = job(path)
    return found


def job(path: Path) -> str:
    """The first line of a module's docstring, or the first sentence of a C file's comment; else nothing."""
    text = path.read_text()
    if path.suffix == ".py":
        docstring = FIRST_LINE.match(text)
        return docstring[1].replace("``", "`") if docstring else ""
    comment = re.match(r"/\*(.*?)\*/|((?://[^\n]*\n)+)", text, re.DOTALL)
    lines = (comment[1] or comment[2]).splitlines() if comment else []
    words = " ".join(" ".join(line.strip(" */") for line in lines).split())
    sentence = FIRST_SENTENCE.match(words)
    return sentence[1] if sentence else words


def _cell(text: str) -> str:
    return re.sub(r":\w+:(`)", r"\1", text).replace("|", "\\|")


def main(wanted: list[str]) -> None:
    """Print the files of the folders that *wanted* name; without any, of all."""
    for folder, files in folders().items():
        if not wanted or {*wanted} & {folder, folder.partition("/")[2], folder.rpartition("/")[2]}:
            print(f"{folder}/  {files.get('__init__.py', '')}".rstrip())
            for name, what in files.items():
                if name != "__init__.py":
                    print(f"    {name:<24}  {what}")


if __name__ == "__main__":
    main(sys.argv[1:])
