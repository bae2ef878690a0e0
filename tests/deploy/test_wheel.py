"""The wheel has what man and the shells read, written while it is built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import share

from tests.deploy.tools import ROOT, build_wheel
from tests.needs import needs, require
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
    assert packed == dict(share.files())


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


def test_they_are_written_without_what_only_a_running_vram_needs(tmp_path: Path) -> None:
    """Where a wheel is built there is msgspec, and neither Rich nor NVML's bindings nor Sphinx."""
    require("no-sanitizers")
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("rich", "pynvml", "sphinx", "docutils", "textual")))
sys.path[:0] = [{str(ROOT / "docs")!r}, {str(ROOT / "src")!r}]
import share
print(len(dict(share.files())))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(dict(share.files()))
