"""How the C++ programs of this folder are compiled: by nvcc, or without it for the virtual GPU."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
DECLARATIONS = EXAMPLES / "declarations"
INCLUDE = EXAMPLES.parent / "src" / "vram" / "include"
BUILT = EXAMPLES.parent / ".build" / "examples"
VIRTUAL_RUNTIME = "libcudart.so.13"


class CannotRun(Exception):
    """A program cannot be compiled or run here; the message says why."""


@dataclass(frozen=True)
class Program:
    """A compiled program.

    ``compiled_as`` is "C++", or "CUDA" where it compiles only as a file that ends in .cu does; then
    ``compile_error`` is the first error that it had as C++.
    """

    path: Path
    compiled_as: str
    compile_error: str | None = None


@dataclass(frozen=True)
class Toolchain:
    """The words of a command line that compiles a source; ``as_cuda`` are added for a CUDA source."""

    command: tuple[str, ...]
    as_cuda: tuple[str, ...]
    link: tuple[str, ...]
    runtime: str
    libraries: str = ""

    @cache  # what does not compile as C++ is not tried twice  # noqa: B019
    def build(self, source: Path) -> Program:
        """Compile *source*, once: as C++, and where that fails as CUDA."""
        made, as_cpp = self._compile(source, ())
        if made is not None:
            return Program(made, "C++")
        made, as_cuda = self._compile(source, self.as_cuda)
        if made is None:
            raise CannotRun(f"{source.name} does not compile: {first_error(as_cuda)}")
        return Program(made, "CUDA", first_error(as_cpp))

    def build_all(self, paths: list[Path]) -> None:
        """Compile many at once, as many together as there are processors."""
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(self.build, paths))

    def _compile(self, source: Path, options: tuple[str, ...]) -> tuple[Path | None, str]:
        line = [*self.command, *options, str(source), *self.link]
        made = BUILT / f"{source.parent.name}-{source.stem}-{_digest(source, line)}"
        if made.exists():
            return made, ""
        BUILT.mkdir(parents=True, exist_ok=True)
        # Another process may compile the same: the finished program takes its place whole.
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:
            fresh = Path(folder) / "program"
            # The compilers' words are compared: in English.
            environment = os.environ | {"LC_ALL": "C"}
            done = subprocess.run(
                [*line, "-o", str(fresh)], env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                return None, done.stderr
            fresh.replace(made)
        return made, ""


def _digest(source: Path, line: list[str]) -> str:
    digest = hashlib.sha256(shlex.join(line).encode())
    headers = (*sorted(EXAMPLES.glob("*.h")), *sorted(source.parent.glob("*.h")), INCLUDE / "vram.hpp")
    for path in (source, *headers):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def first_error(words: str) -> str:
    """The first line in which a compiler says error, without the name of the file."""
    found = re.search(r"error: .*", words)
    return found[0] if found else words.strip()


def nvcc() -> str | None:
    """NVIDIA's compiler: $NVCC, or the one on PATH."""
    return os.environ.get("NVCC") or shutil.which("nvcc")


def with_nvcc(runtime: str = "shared") -> Toolchain:
    """NVIDIA's compiler, and its runtime library linked as *runtime* says: shared or static."""
    compiler = nvcc()
    if compiler is None:
        raise CannotRun("there is no nvcc here: put it on PATH, or name it in $NVCC")
    plan = subprocess.run([compiler, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True)
    folders = re.findall(r'-L([^\s"]+)|^#\$ LD_LIBRARY_PATH=([^:\n]+)', plan.stderr, re.MULTILINE)
    found = (Path(first or second).resolve() for first, second in folders)
    libraries = next((str(path) for path in found if list(path.glob("libcudart.so.*"))), "")
    command = (compiler, "-cudart", runtime, f"-I{INCLUDE}")
    return Toolchain(command, ("-x", "cu"), (), runtime, libraries)


def with_declarations() -> Toolchain:
    """The C++ compiler of this machine, our own declarations, and the virtual GPU's runtime library."""
    from vram.virtualgpu import folder

    if not (folder.BUILT / VIRTUAL_RUNTIME).exists():
        raise CannotRun(f"the virtual GPU's {VIRTUAL_RUNTIME} is not built: run native/build.py")
    command = (*_cpp_compiler(), "-std=c++17", f"-I{DECLARATIONS}", f"-I{INCLUDE}")
    link = (f"-L{folder.BUILT}", f"-l:{VIRTUAL_RUNTIME}")
    # What nvcc does by itself with files that end in .cu.
    return Toolchain(command, ("-include", "cuda_runtime.h"), link, "shared")


def _cpp_compiler() -> list[str]:
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for command in ("c++", "g++", "clang++"):
        if shutil.which(command):
            return [command]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise CannotRun("there is no C++ compiler here: install g++ or clang, or `pip install ziglang`")


def toolchain(runtime: str = "shared", *, declarations: bool = False) -> Toolchain:
    """nvcc where it is, unless our *declarations* are asked for."""
    return with_nvcc(runtime) if nvcc() and not declarations else with_declarations()
