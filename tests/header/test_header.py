"""vram.hpp, compiled by g++ and clang++ with ASan and UBSan, on the virtual GPU; by nvcc too where it is."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.needs import needs, require, skip_without
from tests.patience import PATIENCE_S
from vram.units import GIB
from vram.virtualgpu import VirtualGpu, folder

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INCLUDE = ROOT / "src" / "vram" / "include"
DECLARATIONS = ROOT / "examples" / "declarations"
BUILT = ROOT / ".build" / "header"
SOURCES = (HERE / "checks.cpp", HERE / "other_unit.cpp")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")

CHECKS = (
    "every_owner",
    "moves",
    "empty",
    "reset",
    "threads",
    "own_context",
    "end_of_the_process",
    "forked",
    "pools",
    "other_unit",
)
COMPILERS = pytest.mark.parametrize("compiler", ["g++", "clang++"])


def require_compiler(name: str) -> None:
    if name == "clang++":
        require("clang++")
    elif not shutil.which(name):
        skip_without("compiler", f"{name} is not installed")
    if not links_sanitizers(name):
        skip_without("clang" if name == "clang++" else "compiler", f"{name} has no sanitizers")


@cache
def links_sanitizers(compiler: str) -> bool:
    """Debian has those of clang in a package of their own."""
    words = [compiler, *SANITIZERS, "-x", "c++", "-", "-o", "/dev/null"]
    return subprocess.run(words, input=b"int main() {}", capture_output=True).returncode == 0


def compile_all(*words: object) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


def build(compiler: str, *options: str, sources: tuple[Path, ...] = SOURCES) -> Path:
    """A program with the virtual GPU's runtime, compiled once as long as nothing changed."""
    link = (f"-L{folder.BUILT}", "-l:libcudart.so.13", "-ldl", "-pthread")
    line = [compiler, "-std=c++17", *WARNINGS, *options, f"-I{DECLARATIONS}", f"-I{INCLUDE}"]
    line += [*map(str, sources), *link]
    digest = hashlib.sha256(shlex.join(line).encode())
    for path in sorted([*HERE.glob("*pp"), *INCLUDE.glob("*"), *DECLARATIONS.glob("*"), *sources]):
        digest.update(path.read_bytes())
    made = BUILT / digest.hexdigest()[:16]
    if not made.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as place:
            compile_all(*line, "-o", f"{place}/program")
            Path(place, "program").replace(made)
    return made


Checks = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def checks(native_libraries: Path) -> Checks:
    """Run one check of a compiler's program on a virtual GPU: it must end well."""

    def run(
        compiler: str, *words: str, gpus: int = 1, fault: str = "", path: str = "", memory: int = 8 * GIB
    ) -> subprocess.CompletedProcess[str]:
        require_compiler(compiler)
        # The virtual GPU preloads its runtime: g++'s sanitizer must be in the program to be first.
        program = build(compiler, *SANITIZERS, *(["-static-libasan"] if compiler == "g++" else []))
        # Tests may be traced, or may not trace: leaks are not looked for here but by counting.
        env = {**os.environ, "VRAM_VIRTUAL_FAULTS": fault, "ASAN_OPTIONS": "detect_leaks=0"}
        env["PATH"] = path or f"{Path(sys.executable).parent}:{env['PATH']}"
        with VirtualGpu.create(gpus, memory) as gpu:
            done = gpu.run([program, *words], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("done\n")
        return done

    return run


@COMPILERS
@pytest.mark.parametrize("check", CHECKS)
def test_holds(checks: Checks, compiler: str, check: str) -> None:
    """What each check of checks.cpp says."""
    assert checks(compiler, check).stderr == ""


@COMPILERS
def test_frees_on_its_own_gpu_and_leaves_the_callers(checks: Checks, compiler: str) -> None:
    assert checks(compiler, "two_gpus", gpus=2).stderr == ""


@COMPILERS
@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("failing_constructors", "cuMemAlloc nth=2 error=2"),
        ("failing_free", "cuMemFree error=999"),
        ("broken_context", "cuMemset* nth=1 sticky=700"),
    ],
)
def test_failures(checks: Checks, compiler: str, check: str, fault: str) -> None:
    assert checks(compiler, check, fault=fault).stderr == ""


@COMPILERS
def test_a_failed_allocation_says_what_was_asked_and_what_was_free(checks: Checks, compiler: str) -> None:
    plain, pooled, overflow, wrong, _ = checks(compiler, "no_room").stdout.splitlines()
    free = "7392591872 of 7944994816 bytes free on device 0 (0000:01:00.0)"
    out = "failed: cudaErrorMemoryAllocation (out of memory): requested"
    assert plain == f"cudaMalloc {out} 8796093022208 bytes (8.0 TiB), {free}"
    assert pooled == f"cudaMallocAsync {out} 1099511627776 bytes (1.0 TiB), {free}"
    assert overflow.startswith(f"cudaMalloc {out} 18446744073709551615 bytes")
    assert wrong.startswith("cudaMalloc(nullptr, 1) failed: cudaErrorInvalidValue (invalid argument) at ")


@COMPILERS
def test_a_scope_prints_what_was_not_freed(checks: Checks, compiler: str) -> None:
    assert checks(compiler, "scopes").stderr.splitlines() == [
        'vram: scope "inner": 4.0 MiB not freed on device 0, 0 B by arrays of vram.hpp',
        'vram: scope "outer": 4.0 MiB not freed on device 0, 0 B by arrays of vram.hpp',
        'vram: scope "owned": 8.0 MiB not freed on device 0, 8.0 MiB by arrays of vram.hpp',
        'vram: scope "thrown": 2.0 MiB not freed on device 0, 2.0 MiB by arrays of vram.hpp',
    ]


# ---- traces ----


def test_marks_are_in_the_trace_and_nowhere_without_one(checks: Checks, tmp_path: Path) -> None:
    checks("g++", "marks", "0")
    require_compiler("g++")
    program = build("g++", "-O1")
    trace = tmp_path / "trace.vram"
    vram = Path(sys.executable).with_name("vram")
    with VirtualGpu.create() as gpu:
        words = [vram, "run", "-o", trace, "--", program, "marks", "1"]
        done = gpu.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        report = gpu.run(
            [vram, "report", "--json", trace], capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert '"epoch 3"' in report.stdout


# ---- explanations ----


def write_command(place: Path, text: str) -> str:
    """A `vram` that does what *text* says; a PATH that leads to it first."""
    place.mkdir(exist_ok=True)
    (place / "vram").write_text(f"#!/bin/sh\n{text}\n")
    (place / "vram").chmod(0o755)
    return f"{place}:/usr/bin:/bin"


@COMPILERS
def test_the_command_gets_the_message_and_no_shell_does(
    checks: Checks, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_command(tmp_path / "bin", 'echo "$@"; cat; ls /proc/self/fd')
    said = checks(compiler, "explain", "30000", path=path).stdout.splitlines()
    assert said[:2] == ["oom --live --gpu 0000:01:00.0", "$(touch it) `touch it`; out of memory"]
    assert said[2:-1] == ["0", "1", "2", "3"]  # 3 is the folder that ls reads
    assert not (tmp_path / "it").exists()


@COMPILERS
@pytest.mark.parametrize(
    ("text", "deadline"),
    [
        ("exec sleep 1000", "200"),
        ("echo half of it; exec sleep 1000", "200"),
        ("exec sleep 1000 >&-", "30000"),  # it has said all, and stays
        ("sleep 3 & echo; kill -9 $$", "200"),  # its child has the pipe
        ("yes | head -c 3000000", "30000"),
        ("exit 3", "30000"),
    ],
)
def test_a_command_that_does_not_answer_is_ended(
    checks: Checks, compiler: str, tmp_path: Path, text: str, deadline: str
) -> None:
    path = write_command(tmp_path / "bin", text)
    assert checks(compiler, "explain", deadline, path=path).stdout == "done\n"


def test_without_the_command_there_is_no_explanation(checks: Checks, tmp_path: Path) -> None:
    assert checks("g++", "explain", "30000", path=str(tmp_path)).stdout == "done\n"


def test_the_explanation_names_the_gpu_by_its_address(checks: Checks) -> None:
    said = checks("g++", "explain_failure", memory=2 * GIB).stdout
    assert "Now on GPU 0" in said
    assert "too-large" in said


# ---- compilers ----


@COMPILERS
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_compiles_without_a_warning(compiler: str, standard: str) -> None:
    require_compiler(compiler)
    options = (f"-std={standard}", *WARNINGS, "-fsyntax-only", f"-I{INCLUDE}")
    compile_all(compiler, *options, f"-I{DECLARATIONS}", *SOURCES)
    for toolkit in Path("/usr/local").glob("cuda/include"):  # with NVIDIA's own headers, too
        compile_all(compiler, *options, "-isystem", toolkit, SOURCES[1])


@needs("nvcc")
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_compiled_by_nvcc(virtual_gpu: VirtualGpu, tmp_path: Path, standard: str) -> None:
    """A kernel takes a view; host and device code are one file."""
    options = (f"-std={standard}", "-Werror", "all-warnings", "-cudart", "shared", f"-I{INCLUDE}")
    compile_all("nvcc", *options, HERE / "kernel.cu", SOURCES[1], "-o", tmp_path / "kernel")
    done = virtual_gpu.run([tmp_path / "kernel"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_small() -> None:
    assert len((INCLUDE / "vram.hpp").read_text().splitlines()) < 500
