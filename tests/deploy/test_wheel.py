"""The wheel has what man and the shells read, written while it is built."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import msgspec
import pytest
import share

from tests.deploy.tools import DEPLOY, ROOT, build_wheel
from tests.needs import needs
from vram.cli.completion import SHELLS, script


@needs("hatchling")
def test_everything_for_man_and_the_shells_is_installed_by_the_wheel(
    native_libraries: Path, tmp_path: Path
) -> None:
    with ZipFile(build_wheel(tmp_path)) as wheel:
        (data,) = {name.partition("/")[0] for name in wheel.namelist() if ".data/" in name}
        prefix = f"{data}/data/share/"
        packed = {
            name.removeprefix(prefix): wheel.read(name).decode()
            for name in wheel.namelist()
            if name.startswith(prefix)
        }
        headers = [name for name in wheel.namelist() if name.startswith("vram/include/")]
    assert packed == dict(share.files())
    assert headers == ["vram/include/vram.hpp"]


def test_each_shell_finds_its_script_where_it_looks() -> None:
    files = dict(share.files())
    assert {files[path] for path in share.COMPLETIONS.values()} == {script(shell) for shell in SHELLS}
    assert set(share.COMPLETIONS) == set(SHELLS)


def test_a_page_of_a_command_that_is_gone_goes_too(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    share.main(folder)
    (folder / "man" / "man1" / "vram-gone.1").write_text("")
    share.main(folder)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == set(dict(share.files()))
    assert list(tmp_path.iterdir()) == [folder]


def test_they_are_written_with_msgspec_alone(tmp_path: Path) -> None:
    """Where a wheel is built there is neither Rich nor NVML's binding nor Sphinx, nor vram on the path."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    command = [sys.executable, "-S", ROOT / "docs" / "share.py", tmp_path / "share"]
    subprocess.run(command, env={"PYTHONPATH": str(packages)}, cwd=tmp_path, check=True)
    written = {path for path in (tmp_path / "share").rglob("*") if path.is_file()}
    assert {path.relative_to(tmp_path / "share").as_posix(): path.read_text() for path in written} == dict(
        share.files()
    )


@pytest.mark.parametrize("recipe", [DEPLOY / "container" / "Containerfile", ROOT / "pyproject.toml"])
def test_a_recipe_copies_what_they_are_written_from(recipe: Path, tmp_path: Path) -> None:
    """The image and the source archive are built from a part of the repository."""
    copied = set(re.findall(r"\bdocs/[\w./-]*\w", recipe.read_text())) - {"docs/reference"}
    for name in copied:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    (tmp_path / "src").symlink_to(ROOT / "src")
    subprocess.run([sys.executable, tmp_path / "docs" / "share.py", tmp_path / "share"], check=True)
    assert len([path for path in (tmp_path / "share").rglob("*") if path.is_file()]) == len(
        dict(share.files())
    )
