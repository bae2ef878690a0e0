"""Compiles the native libraries: ``python native/build.py``; for a wheel, hatch_build.py calls it.

The libraries go into the package folder, beside the Python that loads them:

    virtualgpu/lib/libcuda.so.1          from virtualgpu/store and virtualgpu/driver
    virtualgpu/lib/libnvidia-ml.so.1     from virtualgpu/store and virtualgpu/nvml
    virtualgpu/lib/libcudart.so.12, .13  from virtualgpu/runtime, once for each version of CUDA
    virtualgpu/lib/libcupti.so.12, .13   from virtualgpu/cupti, likewise
    host/local/lib/libvramscan.so        from procscan
    guard/lib/libvrambuffer.so           from buffer
    trace/lib/libvramlines.so            from lines
    reach/lib/libvramvisitor.so          from visitor: loaded into running programs for one visit
    trace/lib/libvramreader.so           from tracereader
    trace/lib/libvramtracer.so           from tracer: the recorder, loaded into traced programs

Before that it brings tracer/python_layouts.h up to date with src/vram/cpython_layouts.py.

The compiler is $CC, else cc, gcc or clang, else the one in PyPI's ``ziglang``. For another machine,
``--target aarch64-linux-gnu --into FOLDER``: its gcc (Debian: gcc-aarch64-linux-gnu), else ziglang. With a
version of the C library, ``--target aarch64-linux-gnu.2.17``, it is always ziglang, which compiles for older
ones and writes the same bytes wherever it runs. A library is built again only when its sources, the command
line or this file changed; to look for warnings (--strict), only where its compiler had some, or is another.
Standard library only: this file runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

NATIVE = Path(__file__).resolve().parent
PACKAGE = NATIVE.parent / "src" / "vram"
ZIGLANG = "ziglang>=0.13"
PYTHON_LAYOUTS = NATIVE / "tracer" / "python_layouts.h"


class Library(NamedTuple):
    """One shared library: its place in the package, the folders its sources lie in, flags of its own.

    *headers* are further folders whose headers it includes.
    """

    path: str
    folders: tuple[str, ...]
    flags: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    def sources(self) -> list[Path]:
        return sorted(source for folder in self.folders for source in (NATIVE / folder).glob("*.c"))

    def inputs(self) -> list[Path]:
        read = (*self.folders, *self.headers)
        headers = [header for folder in read for header in (NATIVE / folder).glob("*.h")]
        maps = [version for folder in self.folders for version in (NATIVE / folder).glob("*.map")]
        return [*self.sources(), *sorted(headers), *sorted(maps), Path(__file__).resolve()]


def _cuda_runtime(major: int) -> Library:
    name = f"libcudart.so.{major}"
    versions = NATIVE / "virtualgpu" / "runtime" / f"exports-{major}.map"
    # A program may have another runtime linked in, whose names must not take the place of this one's.
    flags = (f"-DRUNTIME_MAJOR={major}", f"-Wl,--version-script={versions}", "-Wl,-Bsymbolic")
    return Library(f"virtualgpu/lib/{name}", ("virtualgpu/runtime",), flags, ("virtualgpu/driver",))


def _cupti(major: int) -> Library:
    name = f"libcupti.so.{major}"
    versions = NATIVE / "virtualgpu" / "cupti" / f"exports-{major}.map"
    flags = (f"-DCUPTI_MAJOR={major}", f"-Wl,--version-script={versions}", "-Wl,-Bsymbolic")
    return Library(f"virtualgpu/lib/{name}", ("virtualgpu/cupti",), flags, ("virtualgpu/driver",))


LIBRARIES = (
    Library("virtualgpu/lib/libcuda.so.1", ("virtualgpu/store", "virtualgpu/driver")),
    Library("virtualgpu/lib/libnvidia-ml.so.1", ("virtualgpu/store", "virtualgpu/nvml")),
    _cuda_runtime(12),
    _cuda_runtime(13),
    _cupti(12),
    _cupti(13),
    Library("host/local/lib/libvramscan.so", ("procscan",)),
    Library("guard/lib/libvrambuffer.so", ("buffer",)),
    Library("trace/lib/libvramlines.so", ("lines",)),
    # All symbols are bound when it is loaded: its last instruction jumps through one of them.
    Library("reach/lib/libvramvisitor.so", ("visitor",), ("-Wl,-z,now",)),
    # "." has traceformat.h, which both include.
    Library("trace/lib/libvramreader.so", ("tracereader",), headers=(".",)),
    Library("trace/lib/libvramtracer.so", ("tracer",), headers=(".",)),
)

FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
STRICT = ("-Werror",)
QUIETLY, WITH_WARNINGS = "quietly", "with-warnings"
# For `make sanitize`: an access out of bounds, a use after free or undefined behaviour ends the program.
# -O1 is what the sanitizers' authors advise: less is optimized away unseen, and it compiles in half the time.
SANITIZE = (
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g",
)
# What a wheel has says nothing of the folder that it was compiled in.
SAME_BYTES = (f"-ffile-prefix-map={NATIVE}=native", "-Wl,--build-id=sha1", "-Wl,--strip-debug")


class BuildError(Exception):
    """The libraries cannot be built; the message says what to do about it."""


def system_compiler() -> list[str] | None:
    """The compiler this machine brings along, or None."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def compiler(target: str = "") -> list[str]:
    """For this machine, or for *target*: a machine as gcc calls it, maybe with the oldest glibc for it."""
    crossing = f"{target}-gcc"
    if not target and (found := system_compiler()):
        return found
    if target and shutil.which(crossing):
        return [crossing]
    if find_spec("ziglang"):
        # zig tunes for the building machine's CPU unless told otherwise; a wheel travels.
        found = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
        return [*found, "-target", target, *SAME_BYTES] if target else found
    system = "gcc or clang (Debian: apt install gcc)"
    if target:
        system = f"{crossing} (Debian: apt install gcc-{target})"
    if "." in target:
        raise BuildError(f"only zig compiles for {target}: pip install '{ZIGLANG}'")
    raise BuildError(
        f"there is no C compiler: install {system}, or, without root, the one on PyPI: pip install ziglang"
    )


def build(
    library: Library, package: Path = PACKAGE, more: Sequence[str] = (), target: str = ""
) -> Path | None:
    """Bring one library up to date; None where it has no sources of its own."""
    if not any((NATIVE / library.folders[-1]).glob("*.c")):
        return None
    output = package / library.path
    command = [*compiler(target), *FLAGS, *library.flags]
    if more == STRICT and not target and _made_by(library, command, PACKAGE / library.path) == QUIETLY:
        return PACKAGE / library.path  # the same command would warn of nothing
    command += more
    if _made_by(library, command, output) is None:
        output.parent.mkdir(parents=True, exist_ok=True)
        how = _compile(command, library, output)
        _stamp(output).write_text(f"{_digest(library, command)} {how}")
    return output


def _stamp(output: Path) -> Path:
    return output.with_name(f".{output.name}.sha256")


def _made_by(library: Library, command: list[str], output: Path) -> str | None:
    """How these sources became *output* by this command: quietly, or with warnings; None: they did not."""
    stamp = _stamp(output)
    if not (output.exists() and stamp.exists()):
        return None
    digest, _, how = stamp.read_text().partition(" ")
    return how if digest == _digest(library, command) else None


def build_all(package: Path = PACKAGE, more: Sequence[str] = (), target: str = "") -> list[Path]:
    """Bring every library up to date, compiled with *more* flags; for this machine, or for *target*."""
    if PYTHON_LAYOUTS.exists() and PYTHON_LAYOUTS.read_text() != (layouts := format_python_layouts()):
        PYTHON_LAYOUTS.write_text(layouts)
    with ThreadPoolExecutor() as pool:
        built = pool.map(lambda library: build(library, package, more, target), LIBRARIES)
        return [output for output in built if output]


def format_python_layouts() -> str:
    """The tables of src/vram/cpython_layouts.py that the tracer needs, as C."""
    table = runpy.run_path(str(PACKAGE / "cpython_layouts.py"))
    select, frames, published = table["select"], table["FRAMES"], table["PUBLISHED"]
    state = {name: table["STATE"][name] for name in ("finalizing", "thread_id")}
    known = [minor for minor in table["MINORS"] if select(frames, minor)]
    newer = [minor for minor in table["MINORS"] if minor not in known]

    def format_rows(fields: dict[str, tuple[int | None, ...]], minors: list[int]) -> str:
        columns = [{"minor": minor, **select(fields, minor)} for minor in minors]
        rows = [", ".join(f".{name}={at}" for name, at in column.items()) for column in columns]
        return "\n".join(wrap(f"{{{row}}},", " " * 4) for row in rows)

    def wrap(text: str, indent: str) -> str:
        return textwrap.fill(text, 118, initial_indent=indent, subsequent_indent=f"{indent} ")

    return f"""\
// Where each CPython has what the walker reads: written by native/build.py from src/vram/cpython_layouts.py.
// clang-format off
static const struct layout known_layouts[] = {{
{format_rows({**state, **frames}, known)}
}};

// Where _Py_DebugOffsets, at the start of _PyRuntime, has the offsets, in bytes from its start.
struct published {{
    int minor;
{wrap(f"uint16_t {', '.join(published)};", " " * 4)}
}};
static const struct published published_tables[] = {{
{format_rows(published, newer)}
}};
// clang-format on
"""


def _digest(library: Library, command: list[str]) -> str:
    digest = hashlib.sha256(shlex.join(command).encode())
    for path in library.inputs():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _compile(command: list[str], library: Library, output: Path) -> str:
    """Make *output*, and say how: what the compiler warns of goes to stderr."""
    # A running program may have the old file mapped: the new one takes its place whole.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".build-") as folder:
        made = Path(folder) / output.name
        line = [
            *command,
            f"-Wl,-soname,{output.name}",
            "-Wl,-z,defs",
            f"-I{NATIVE / 'virtualgpu'}",
            "-o",
            str(made),
        ]
        line += [*map(str, library.sources()), "-pthread", "-ldl"]
        try:
            done = subprocess.run(line, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BuildError(f"the C compiler {command[0]!r} cannot be run: {error.strerror}") from error
        sys.stderr.write(done.stderr)
        if done.returncode:
            raise BuildError(f"{command[0]} could not build {output.name} (its output is above)")
        made.replace(output)
    return WITH_WARNINGS if done.stderr else QUIETLY


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile vram's native libraries.")
    parser.add_argument("--into", type=Path, default=PACKAGE, help="package folder (default: src/vram)")
    parser.add_argument("--target", default="", help="another processor or C library: aarch64-linux-gnu.2.17")
    parser.add_argument("--strict", action="store_true", help="treat compiler warnings as errors")
    args = parser.parse_args()
    if args.target and args.into == PACKAGE:
        parser.error("--target needs --into: src/vram has the libraries of this machine")
    try:
        built = build_all(args.into, STRICT if args.strict else (), args.target)
    except BuildError as error:
        print(f"native/build.py: {error}", file=sys.stderr)
        return 1
    for output in built:
        print(os.path.relpath(output))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
