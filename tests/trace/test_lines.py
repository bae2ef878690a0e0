"""Addresses get the lines and functions that a person wrote, from whatever debug information a file has."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from tests.needs import needs
from vram.trace import line_worker
from vram.trace.lines import LIBRARY, SourceLine, WantedLines, find_lines

pytestmark = needs("gcc")

LATER = 1 << 62
SOURCE = """\
#include <cstddef>
extern "C" void *allocate(size_t nbytes);
namespace app { namespace net {
template <class T> struct Buffer {
    T *data;
    inline __attribute__((always_inline)) Buffer(size_t count) {
        data = (T *)allocate(count * sizeof(T));
    }
};
static inline __attribute__((always_inline)) Buffer<int> make(int count) {
    return Buffer<int>(count);
}
__attribute__((noinline)) int *layer(int count) {
    return make(count).data;
}
} }
int main() { return app::net::layer(5) == nullptr; }
"""
OTHER = """\
#include <cstddef>
extern "C" __attribute__((noinline)) void *allocate(size_t nbytes) { return (void *)nbytes; }
"""
# Innermost first: what is inlined, then the function that has the code.
EXPECTED = [("Buffer", "library.cpp", 7), ("make", "library.cpp", 11), ("layer", "library.cpp", 14)]

COMPILERS = ["g++", pytest.param("clang++", marks=needs("clang++"))]


def build(folder: Path, compiler: str, *flags: str, name: str = "program") -> Path:
    """Compile the program; in pieces, so that split debug information has more than one file."""
    (folder / "library.cpp").write_text(SOURCE)
    (folder / "other.cpp").write_text(OTHER)
    objects = []
    for source in ("library", "other"):
        objects.append(f"{source}.o")
        line = [compiler, "-O2", "-g", *flags, "-c", f"{source}.cpp", "-o", objects[-1]]
        subprocess.run(line, cwd=folder, check=True)
    subprocess.run([compiler, *flags, *objects, "-o", name], cwd=folder, check=True)
    return folder / name


def call_in(program: Path, function: str, called: str) -> int:
    """An address in the call of *called* in *function*, as a recorded frame has it."""
    command = ["objdump", "-d", "--no-show-raw-insn", f"--disassemble={function}", program]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^\s+([0-9a-f]+):\s+(?:call|jmp|bl|b)\s.*<{called}>", listed, re.MULTILINE)
    assert found, listed
    return int(found[1], 16) + 1


def lines_of(
    program: Path, offset: int, build_id: str | None = None, not_after: int = LATER
) -> list[SourceLine]:
    found = find_lines([WantedLines(str(program), build_id, not_after, (offset,))])
    return list(found.get((str(program), offset), ()))


def shown(frames: list[SourceLine]) -> list[tuple[str, str, int]]:
    """Each function's own name: some formats have only that."""
    plain = [re.sub(r"_ZN3app3netL?\d+(layer|make|Buffer).*", r"\1", each.function) for each in frames]
    return [(name, Path(each.file).name, each.line) for name, each in zip(plain, frames, strict=True)]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    "flags",
    [
        ("-gdwarf-5",),
        ("-gdwarf-4",),
        ("-gdwarf-3",),
        ("-gdwarf-5", "-gdwarf64"),
        ("-gdwarf-5", "-gsplit-dwarf"),
        ("-gdwarf-4", "-gsplit-dwarf"),
        ("-gz=zlib",),
        ("-fdebug-types-section",),
        ("-ffunction-sections", "-Wl,--gc-sections"),
        ("-flto",),
    ],
    ids=" ".join,
)
def test_inlined_functions_and_their_lines(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    if compiler == "clang++" and {"-gdwarf64", "-flto"} & {*flags}:
        flags = tuple(flag for flag in flags if flag not in ("-gdwarf64", "-flto"))  # need another linker
    program = build(tmp_path, compiler, *flags)
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    (function,) = re.findall(r"_ZN3app3net5layerEi[.\w]*", symbols)
    assert shown(lines_of(program, call_in(program, function, "allocate"))) == EXPECTED


@pytest.mark.parametrize("how", ["zlib", "zlib-gnu", "zstd"])
def test_packed_sections(how: str, tmp_path: Path) -> None:
    program = build(tmp_path, "g++")
    packed = tmp_path / "packed"
    done = subprocess.run(
        ["objcopy", f"--compress-debug-sections={how}", program, packed], capture_output=True
    )
    if done.returncode:
        assert how == "zstd", done.stderr  # binutils before 2.40, or built without it
        return
    offset = call_in(program, "_ZN3app3net5layerEi", "allocate")
    assert shown(lines_of(packed, offset)) == EXPECTED


@pytest.mark.parametrize("place", ["beside", ".debug"])
def test_debug_information_that_was_split_off_the_program(place: str, tmp_path: Path) -> None:
    program = build(tmp_path, "g++")
    offset = call_in(program, "_ZN3app3net5layerEi", "allocate")
    folder = tmp_path / ("" if place == "beside" else place)
    folder.mkdir(exist_ok=True)
    subprocess.run(["objcopy", "--only-keep-debug", program, folder / "program.debug"], check=True)
    subprocess.run(["strip", "-o", tmp_path / "stripped", program], check=True)
    link = f"--add-gnu-debuglink={folder / 'program.debug'}"
    subprocess.run(["objcopy", link, tmp_path / "stripped"], check=True)
    assert shown(lines_of(tmp_path / "stripped", offset)) == EXPECTED
    # Of another build, it says nothing.
    other = build(tmp_path, "g++", "-O1", name="other")
    subprocess.run(["objcopy", "--only-keep-debug", other, folder / "program.debug"], check=True)
    assert lines_of(tmp_path / "stripped", offset) == []


@needs("clang++")
@needs("llvm-dwp")
@pytest.mark.parametrize("version", ["-gdwarf-4", "-gdwarf-5"])
def test_a_package_of_split_files(version: str, tmp_path: Path) -> None:
    program = build(tmp_path, "clang++", version, "-gsplit-dwarf")
    subprocess.run(["llvm-dwp", "-e", program, "-o", tmp_path / "program.dwp"], cwd=tmp_path, check=True)
    for each in tmp_path.glob("*.dwo"):
        each.unlink()
    offset = call_in(program, "_ZN3app3net5layerEi", "allocate")
    assert shown(lines_of(program, offset)) == EXPECTED
    (tmp_path / "program.dwp").unlink()
    # The line is in the program itself, the functions were in the package.
    assert [each.line for each in lines_of(program, offset)] == [7]


def test_a_program_that_was_built_again_has_no_lines(tmp_path: Path) -> None:
    flag = "-Wl,--build-id=0x0123456789abcdef"
    program = build(tmp_path, "g++", flag)
    offset = call_in(program, "_ZN3app3net5layerEi", "allocate")
    assert shown(lines_of(program, offset, "0123456789abcdef")) == EXPECTED
    assert lines_of(program, offset, "fedcba9876543210") == []
    # Without a build id, the time of the last change decides.
    changed = program.stat().st_mtime_ns
    assert shown(lines_of(program, offset, None, changed)) == EXPECTED
    assert lines_of(program, offset, None, changed - 1) == []


def test_what_has_no_lines_says_nothing(tmp_path: Path) -> None:
    """Nor does it make anybody wait: nobody writes to the pipe."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("not an ELF file")
    program = build(tmp_path, "g++")
    subprocess.run(["strip", "-o", tmp_path / "stripped", program], check=True)
    paths = [tmp_path / name for name in ("pipe", "text", "stripped", "missing", "")]
    wanted = [WantedLines(str(path), None, LATER, (4400, 1 << 63)) for path in paths]
    wanted += [WantedLines("/dev/zero", None, LATER, (1,)), WantedLines("a\0b", None, LATER, (1,))]
    assert find_lines(wanted) == {}


def test_a_file_that_is_no_program_to_its_end_costs_its_own_lines(tmp_path: Path) -> None:
    program = build(tmp_path, "g++")
    offset = call_in(program, "_ZN3app3net5layerEi", "allocate")
    damaged = tmp_path / "damaged"
    damaged.write_bytes(program.read_bytes()[:5000])
    wanted = [WantedLines(str(each), None, LATER, (offset,)) for each in (damaged, program)]
    assert shown(list(find_lines(wanted)[str(program), offset])) == EXPECTED


@pytest.mark.native
@pytest.mark.parametrize("version", ["-gdwarf-4", "-gdwarf-5"])
def test_damaged_debug_information_is_no_error(version: str, tmp_path: Path) -> None:
    """Bytes changed anywhere in the sections, counts as large as can be: no crash, and soon.

    In this process, so that `make sanitize` sees every access.
    """
    program = build(tmp_path, "g++", version)
    offset = call_in(program, "_ZN3app3net5layerEi", "allocate")
    headers = subprocess.run(["readelf", "-SW", program], capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"\.debug_\w+\s+PROGBITS\s+\S+\s+(\S+)\s+(\S+)", headers)
    spans = [(int(begin, 16), int(nbytes, 16)) for begin, nbytes in rows]
    contents = program.read_bytes()
    chooser = random.Random(int(os.environ.get("VRAM_SEED", "7")))
    library = line_worker.load_library(str(LIBRARY))
    damaged = tmp_path / "damaged"
    answered = 0
    for _ in range(int(os.environ.get("VRAM_DAMAGED", "300"))):
        copy = bytearray(contents)
        for _ in range(chooser.randrange(1, 6)):
            begin, nbytes = chooser.choice(spans)
            at = begin + chooser.randrange(nbytes)
            noise = chooser.randbytes(chooser.randrange(1, 9))
            piece = chooser.choice((b"\xff" * 8, b"\0" * 4, b"\x80" * 9, noise))
            copy[at : at + len(piece)] = piece
        damaged.unlink(missing_ok=True)  # the file before is still mapped
        damaged.write_bytes(copy[: len(contents)])
        asked = {"path": str(damaged), "build_id": None, "not_after_ns": LATER}
        answered += bool(line_worker.answer(library, {**asked, "offsets": [offset, offset + 1, 0, 1 << 40]}))
    assert answered  # damage to one part leaves the others
