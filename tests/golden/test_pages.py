"""The wording of every command is what its golden page says; `make golden` writes them anew."""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.golden.pages import FOLDER, made
from vram.cli.app import COMMANDS

WRITES = bool(os.environ.get("VRAM_WRITE_GOLDEN"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, native_libraries: Path) -> dict[str, str]:
    return made(tmp_path_factory.mktemp("golden"))


def test_every_command_has_a_page_and_every_page_is_true(pages: dict[str, str]) -> None:
    if WRITES:
        write(pages)
    committed = {file.stem: file.read_text() for file in FOLDER.glob("*.txt")}
    assert set(committed) == set(pages) == set(COMMANDS)
    changed = [name for name in pages if words(pages[name]) != words(committed[name])]
    told = [line for name in changed for line in difference(name, committed[name], pages[name])]
    assert not changed, "\n".join(["run `make golden` and look at the difference:", *told])


def write(pages: dict[str, str]) -> None:
    """Pages of other words only: where lines break differs from run to run."""
    for file in FOLDER.glob("*.txt"):
        if file.stem not in pages:
            file.unlink()
    for name, page in pages.items():
        file = FOLDER / f"{name}.txt"
        if not file.exists() or words(file.read_text()) != words(page):
            file.write_text(page)


def words(page: str) -> list[str]:
    """Where lines break depends on how many digits a pid has here."""
    return [word for word in page.split() if word not in "│|"]


def difference(name: str, committed: str, made_now: str) -> list[str]:
    before, now = committed.splitlines(), made_now.splitlines()
    return list(unified_diff(before, now, f"{name}.txt", "printed now", lineterm=""))


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_lines_fit_into_80_columns(file: Path) -> None:
    """But for what is meant to be pasted, the command line itself, and the lines of a log."""
    wide = [line for line in file.read_text().splitlines() if len(line) > 80]
    assert all(line.startswith(("$ ", "    ", "  hint:", "vram:", "2026-01-01T")) for line in wide), wide
