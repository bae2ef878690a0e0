"""native/build.py: which compiler it takes, when it builds, and what it says when it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import BUILT, needs

NATIVE = Path(__file__).parents[2] / "native"
SCAN = Path("host/local/lib/libvramscan.so")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with build.py and one small library's sources."""
    native = tmp_path / "native"
    (native / "procscan").mkdir(parents=True)
    shutil.copy(NATIVE / "build.py", native)
    (native / "procscan" / "answer.c").write_text("int answer(void) { return 42; }\n")
    return tmp_path


def build(checkout: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-S", str(checkout / "native" / "build.py"), *words]
    usual = {key: value for key, value in os.environ.items() if key != "CC"}
    return subprocess.run(argv, env=usual | environment, capture_output=True, text=True, cwd=checkout)


def recording_compiler(folder: Path, name: str) -> Path:
    """A compiler that writes down its own name, and a file where the library should be."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(
        f'#!/bin/sh\necho {name} >>{folder}/calls\nwhile [ "$1" != -o ]; do shift; done\necho made >"$2"\n'
    )
    script.chmod(0o755)
    return script


def calls(folder: Path) -> list[str]:
    made = folder / "calls"
    return made.read_text().split() if made.exists() else []


def test_a_library_is_built_into_the_package(checkout: Path, tmp_path: Path) -> None:
    recording_compiler(tmp_path / "bin", "cc")
    done = build(checkout, PATH=f"{tmp_path}/bin:/usr/bin:/bin")
    assert done.stdout == f"src/vram/{SCAN}\n"
    assert (checkout / "src" / "vram" / SCAN).read_text() == "made\n"


def test_cc_from_the_environment_comes_first(checkout: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    recording_compiler(folder, "cc")
    chosen = recording_compiler(folder, "chosen")
    build(checkout, PATH=f"{folder}:/usr/bin:/bin", CC=f"{chosen} -flag")
    assert calls(folder) == ["chosen"]


def test_it_builds_again_only_when_something_changed(checkout: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    compiler = str(recording_compiler(folder, "cc"))
    source = checkout / "native" / "procscan" / "answer.c"
    build(checkout, CC=compiler)
    build(checkout, CC=compiler)
    source.touch()
    build(checkout, CC=compiler)
    assert calls(folder) == ["cc"]
    source.write_text("int answer(void) { return 43; }\n")
    build(checkout, CC=compiler)
    assert calls(folder) == ["cc"] * 2
    (checkout / "native" / "procscan" / "new.h").write_text("")
    build(checkout, CC=compiler)
    assert calls(folder) == ["cc"] * 3


def test_what_was_compiled_without_a_warning_is_not_compiled_again_to_look_for_some(
    checkout: Path, tmp_path: Path
) -> None:
    strict = ("--strict", "--into", str(tmp_path / "strict"))
    compiler = recording_compiler(tmp_path / "bin", "cc")
    for words in ((), strict):
        assert build(checkout, *words, CC=str(compiler)).returncode == 0
    assert calls(compiler.parent) == ["cc"]
    (checkout / "native" / "procscan" / "answer.c").write_text("int answer(void) { return 43; }\n")
    assert build(checkout, *strict, CC=str(compiler)).returncode == 0
    assert calls(compiler.parent) == ["cc"] * 2


def test_what_the_compiler_warned_of_is_an_error_where_that_is_asked_for(
    checkout: Path, tmp_path: Path
) -> None:
    (checkout / "native" / "procscan" / "answer.c").write_text("static int unused(void) { return 42; }\n")
    done = build(checkout, CC="cc")
    assert (done.returncode, "unused" in done.stderr) == (0, True)
    assert build(checkout, CC="cc").stderr == "", "it is not built again"
    strict = build(checkout, "--strict", "--into", str(tmp_path / "strict"), CC="cc")
    assert (strict.returncode, "unused" in strict.stderr) == (1, True)


def test_without_any_compiler_it_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
    done = build(checkout, PATH=str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "pip install ziglang" in done.stderr
    assert "Traceback" not in done.stderr


def test_only_zig_compiles_for_an_older_c_library(checkout: Path, tmp_path: Path) -> None:
    """Without it this machine's compiler is no substitute: the library would need this machine's glibc."""
    made = recording_compiler(tmp_path / "bin", "cc")
    words = ("--target", "aarch64-linux-gnu.2.17", "--into", str(tmp_path / "made"))
    done = build(checkout, *words, PATH=str(made.parent))
    assert done.returncode == 1
    assert "pip install 'ziglang" in done.stderr
    assert calls(made.parent) == []


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_a_compiler_that_fails_leaves_the_old_library(checkout: Path, tmp_path: Path, compiler: str) -> None:
    recording = str(recording_compiler(tmp_path / "bin", "cc"))
    build(checkout, CC=recording)
    done = build(checkout, CC=compiler)
    assert done.returncode == 1
    assert compiler in done.stderr
    assert "Traceback" not in done.stderr
    assert (checkout / "src" / "vram" / SCAN).read_text() == "made\n"
    assert [path.name for path in (checkout / "src" / "vram" / SCAN).parent.glob(".build-*")] == []


# ---- for another machine ----


def test_another_machine_is_compiled_for_by_its_own_gcc(checkout: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    recording_compiler(folder, "cc")
    recording_compiler(folder, "aarch64-linux-gnu-gcc")
    words = ("--target", "aarch64-linux-gnu", "--into", str(tmp_path / "arm"))
    done = build(checkout, *words, PATH=f"{folder}:/usr/bin:/bin", CC="cc")
    assert done.returncode == 0, done.stderr
    assert calls(folder) == ["aarch64-linux-gnu-gcc"]
    assert (tmp_path / "arm" / SCAN).read_text() == "made\n"


def test_another_machines_libraries_do_not_take_the_place_of_ours(checkout: Path) -> None:
    done = build(checkout, "--target", "aarch64-linux-gnu")
    assert done.returncode == 2
    assert "--target needs --into" in done.stderr


def test_without_its_compiler_it_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
    words = ("--target", "riscv64-linux-gnu", "--into", str(tmp_path / "other"))
    done = build(checkout, *words)
    assert done.returncode == 1
    assert "apt install gcc-riscv64-linux-gnu" in done.stderr


@needs("aarch64-linux-gnu-gcc")
def test_libraries_for_aarch64_are_for_aarch64() -> None:
    """In the folder of `make lint`, which makes the same: what it has compiled from these sources stays."""
    folder = BUILT / "strict-arm"
    words = ("--target", "aarch64-linux-gnu", "--into", str(folder), "--strict")
    subprocess.run([sys.executable, NATIVE / "build.py", *words], check=True, capture_output=True)
    for library in folder.rglob("lib*.so*"):
        assert library.read_bytes()[18] == 183, library  # EM_AARCH64
    assert (folder / "reach" / "lib" / "libvramvisitor.so").exists()
