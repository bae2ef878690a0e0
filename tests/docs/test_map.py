"""The map names every folder, its walks name files that exist, and each source file says its one job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from generators import files

from tests.docs.pages import DOCS, ROOT, WRITTEN

MAP = (DOCS / "architecture.md").read_text()
SOURCE = ROOT / "src" / "vram"
MODULES = sorted(SOURCE.rglob("*.py"))
MAX_FIRST_LINE = 110


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_module_opens_with_its_one_job(module: Path) -> None:
    """In one line, which is whole and says more than the file's name."""
    job = files.job(module)
    assert re.search(r"[.?:]$", job), job
    assert len(job) <= MAX_FIRST_LINE
    named = {*module.stem.split("_"), module.parent.name, "the", "a", "of", "claims", "and"}
    assert {word.lower() for word in re.findall(r"[A-Za-z]+", job)} - named


@pytest.mark.parametrize(
    "file", sorted((ROOT / "native").rglob("*.[ch]")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_a_c_file_opens_with_its_one_job(file: Path) -> None:
    assert re.search(r"\w.*[.?:]$", files.job(file))


def test_no_two_modules_have_the_same_job() -> None:
    jobs = [files.job(module) for module in MODULES]
    assert len(jobs) == len(set(jobs))


def test_the_page_and_make_map_have_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    files.main([])
    printed = capsys.readouterr().out
    page = WRITTEN[DOCS / "project" / "files.md"]
    for folder, found in files.folders().items():
        assert f"## {folder}/\n" in page
        assert f"{folder}/" in printed
        for name in found.keys() - {"__init__.py"}:
            assert f"| `{name}` | " in page
            assert f"    {name} " in printed


def test_make_map_prints_one_folder(capsys: pytest.CaptureFixture[str]) -> None:
    files.main(["ledger", "tracer"])
    printed = capsys.readouterr().out
    headings = re.findall(r"^(\S+)/", printed, re.MULTILINE)
    assert headings == ["native/tracer", "vram/ledger", "vram/payloads/tracer"]


def test_the_map_names_every_folder_and_no_other() -> None:
    """A newcomer finds the room by the names of folders: those of packages, and those below them."""
    table = MAP.partition("| folder |")[2].partition("| outside")[0]
    rows = dict(re.findall(r"^\| `(\w+)/` \| (.+) \|$", table, re.MULTILINE))
    folders = {path.parent.relative_to(SOURCE) for path in MODULES} - {Path()}
    assert set(rows) == {folder.parts[0] for folder in folders}
    for name, row in rows.items():
        below = {part for folder in folders if folder.parts[0] == name for part in folder.parts[1:]}
        named = set(re.findall(r"`(\w+)/`", row))
        assert below <= named, name
        assert all((SOURCE / name / each).is_dir() or each in below for each in named), name


def test_a_row_of_the_map_is_short() -> None:
    """A cell of thirty file names is no map."""
    table = MAP.partition("| folder |")[2].partition("## Nouns")[0]
    assert all(len(re.findall(r"`[\w/]+\.\w+`", row)) <= 3 for row in table.splitlines())


def test_walks_go_through_files_that_exist() -> None:
    walks = MAP.partition("## Five walks")[2]
    named = re.findall(r"`((?:\w+/)+(?:[\w*]+\.(?:py|c))?)`", walks)
    assert len(named) > 40
    for name in named:
        base = ROOT if name.startswith("native/") else SOURCE
        assert list(base.glob(name)), name
