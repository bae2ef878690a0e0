"""Names of functions come from symbol tables, whatever a file contains; C++ names become readable."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from pathlib import Path

import pytest

from tests.tracer.stack_harness import compile_c
from vram.trace.symbols import demangle, function_names

SOURCE = """
__attribute__((noinline)) static int hidden(int number) { return number * 3 + 1; }
__attribute__((visibility("default"), noinline))
int shown(int number) { return hidden(number) + hidden(number + 1); }
__attribute__((visibility("default"))) extern int alias(int number) __attribute__((alias("shown")));
"""
BUILD_ID = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("symbols")
    (folder / "library.c").write_text(SOURCE)
    flags = ("-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,--build-id=0x{BUILD_ID}")
    return compile_c(folder / "library.so", *flags, str(folder / "library.c"))


@pytest.fixture(scope="module")
def places(library: Path) -> dict[str, tuple[int, int]]:
    """Where `nm` says that its functions are: address and size."""
    listed = subprocess.run(["nm", "--print-size", library], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {row[3]: (int(row[0], 16), int(row[1], 16)) for row in rows if len(row) == 4}


def test_static_and_exported_functions_are_named(library: Path, places: dict[str, tuple[int, int]]) -> None:
    hidden, shown = places["hidden"], places["shown"]
    offsets = (hidden[0], hidden[0] + hidden[1] - 1, shown[0], shown[0] + shown[1] - 1)
    names = function_names(str(library), offsets)
    assert [names[each] for each in offsets[:2]] == ["hidden", "hidden"]
    assert {names[each] for each in offsets[2:]} <= {"shown", "alias"}


def test_offsets_outside_functions_have_no_name(library: Path, places: dict[str, tuple[int, int]]) -> None:
    last = max(begin + size for begin, size in places.values())
    assert function_names(str(library), (0, last + (1 << 20), (1 << 64) - 1, -1, 1 << 70)) == {}


def test_a_stripped_library_names_what_it_exports(
    library: Path, places: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", stripped, library], check=True)
    names = function_names(str(stripped), (places["hidden"][0], places["shown"][0]))
    assert set(names) == {places["shown"][0]}


def test_another_build_of_the_library_names_nothing(
    library: Path, places: dict[str, tuple[int, int]]
) -> None:
    offset = places["hidden"][0]
    assert function_names(str(library), (offset,), BUILD_ID.upper()) == {offset: "hidden"}
    assert function_names(str(library), (offset,), "00" * 20) == {}


def test_what_is_no_library_names_nothing(tmp_path: Path) -> None:
    """Nor does it make anybody wait: nobody writes to the pipe."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("not an ELF file")
    (tmp_path / "empty").write_bytes(b"")
    missing = tmp_path / "missing"
    for path in (
        tmp_path / "pipe",
        tmp_path / "text",
        tmp_path / "empty",
        missing,
        tmp_path,
        "/dev/zero",
        "a\0b",
    ):
        assert function_names(str(path), (1, 2)) == {}


def test_damaged_libraries_are_no_error(
    library: Path, places: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    """Cut anywhere, bits flipped in headers and tables, sizes as large as can be: no error, and soon."""
    contents = library.read_bytes()
    (sections,) = struct.unpack_from("<Q", contents, 40)
    chooser = random.Random(7)
    damaged = tmp_path / "damaged.so"
    for turn in range(600):
        copy = bytearray(contents)
        begin, end = (0, 64) if turn % 3 == 0 else (sections, len(copy)) if turn % 3 == 1 else (0, len(copy))
        for _ in range(chooser.randrange(1, 8)):
            at = chooser.randrange(begin, end - 8)
            copy[at : at + 8] = chooser.choice((b"\xff" * 8, b"\0" * 8, chooser.randbytes(8)))
        if turn % 5 == 0:
            del copy[chooser.randrange(len(copy)) :]
        damaged.write_bytes(copy)
        names = function_names(str(damaged), (places["hidden"][0], places["shown"][0]))
        assert all(name and isinstance(name, str) for name in names.values())


def test_cpp_names_become_readable() -> None:
    names = [
        "_ZN3c104cuda20CUDACachingAllocator3getEv",
        "cudaMalloc",
        "_Zbad",
        "",
        "_ZNSt6vectorIiSaIiEE4sizeEv",
        "_Z\n",
    ]
    assert demangle(names) == {
        names[0]: "c10::cuda::CUDACachingAllocator::get()",
        names[4]: "std::vector<int, std::allocator<int> >::size()",
    }
    assert demangle([]) == {}


def test_a_name_that_takes_too_long_costs_only_itself() -> None:
    """Each parameter's type names the one before it twice: readable, it has 2 to the power of 40 words."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    reference = [f"S{digits[n % 36]}_" if n < 36 else f"S1{digits[n % 36]}_" for n in range(0, 80, 2)]
    name = "_Z1f1AIiiE" + "".join(f"1BI{each}{each}E" for each in reference)
    assert demangle([name, "_ZN1a1bEv"]) == {"_ZN1a1bEv": "a::b()"}
