"""A target may forge its own memory: it is refused in a sentence, soon and in little room."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, must_end
from tests.reach.conftest import target_of
from tests.reach.soak import MEASURE
from vram.cpython_layouts import PUBLISHED, select
from vram.errors import Refused
from vram.reach import cpython, elf, injection, remote_exec
from vram.reach.elf import ElfImage
from vram.reach.ptrace import TargetMemory, UnsafeToAttach, while_stopped
from vram.reach.target_process import TargetProcess, examine

TRIES = 2000
# What a field is replaced by: the ends of every range, and small steps off the right value.
EXTREMES = (0, 1, 7, 8, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


class Copied(TargetMemory):
    """A process's memory as it was when it was read, with some of it replaced."""

    def __init__(self, whole: TargetMemory) -> None:
        self._whole = whole
        self._read: dict[tuple[int, int], bytes] = {}
        self.replaced: dict[int, int] = {}
        self.nbytes = 0

    def read(self, address: int, nbytes: int) -> bytes:
        if (address, nbytes) not in self._read:
            self._read[address, nbytes] = self._whole.read(address, nbytes)
        self.nbytes += nbytes
        data = self._read[address, nbytes]
        changed = [at for at in self.replaced if address <= at < address + nbytes]
        if changed:
            copy = bytearray(data)
            for at in changed:
                copy[at - address] = self.replaced[at]
            data = bytes(copy)
        return data

    def write(self, address: int, data: bytes) -> None:
        raise AssertionError("nothing is written here")

    def forge(self, address: int, value: bytes) -> None:
        self.replaced.update({address + at: byte for at, byte in enumerate(value)})


@pytest.fixture(scope="module")
def python(python314: str) -> Iterator[TargetProcess]:
    process = subprocess.Popen(
        [python314, "-c", "print(1, flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield examine(target_of(process.pid))
    process.communicate(b"\n", timeout=PATIENCE_S)


@pytest.fixture
def copied(python: TargetProcess) -> Iterator[Copied]:
    memory = TargetMemory(python.pid)
    yield Copied(memory)
    memory.close()


def forged(chance: random.Random, nbytes: int) -> bytes:
    value = chance.choice(EXTREMES) if chance.random() < 0.7 else chance.getrandbits(64)
    return (value & (1 << 8 * nbytes) - 1).to_bytes(nbytes, "little")


def test_headers_and_symbol_tables(python: TargetProcess, copied: Copied) -> None:
    """Program headers, the dynamic section, the hash table: two thousand times something is not as it was."""
    lines = elf.mappings(python.pid)
    sound = elf.find_python(copied, lines, python.executable)
    runtime, base = sound.symbol("_PyRuntime"), sound.parts[0].start
    assert runtime is not None
    tables = sound._dynamic()
    dynamic = next(each[3] + sound.bias for each in sound._headers if each[0] == 2)
    places = [
        *((base + at, 8) for at in (32, 40)),
        *((base + at, 2) for at in (54, 56, 58)),
        *(
            (base + 64 + 56 * header + at, 8)
            for header in range(len(sound._headers))
            for at in range(0, 56, 8)
        ),
        *((dynamic + at, 8) for at in range(0, 512, 8)),
        *((tables[0x6FFFFEF5] + at, 4) for at in (0, 4, 8, 12)),
    ]
    chance = random.Random(10)
    found = 0
    for _ in range(TRIES):
        copied.replaced.clear()
        for address, nbytes in chance.sample(places, chance.randint(1, 3)):
            copied.forge(address, forged(chance, nbytes))
        with suppress(UnsafeToAttach), must_end():
            found += ElfImage(copied, sound.parts).symbol("_PyRuntime") == runtime
    assert 0 < found < TRIES
    assert copied.nbytes < TRIES << 20


def test_the_table_of_offsets_and_what_it_leads_to(python: TargetProcess, copied: Copied) -> None:
    """Believed where nothing of it was touched that counts; otherwise refused. Nothing is ever written."""
    lines = elf.mappings(python.pid)
    runtime = elf.find_python(copied, lines, python.executable).symbol("_PyRuntime")
    assert runtime is not None
    writable = elf.writable(lines)
    offsets = cpython.read_debug_offsets(copied, runtime)
    thread = cpython.find_main_thread(copied, runtime, offsets, writable, python.pid)
    assert thread.remote_debugging
    published = select(PUBLISHED, 14)
    read = [published[name] for name in cpython.DebugOffsets.__struct_fields__]
    places = [
        *((runtime + at, 8) for at in (0, 8, 16, *read)),
        (runtime + offsets.head, 8),
        (runtime + offsets.finalizing, 8),
        (thread.interpreter + offsets.interpreter_id, 8),
        (thread.interpreter + offsets.next, 8),
        (thread.interpreter + offsets.main_thread, 8),
        (thread.interpreter + offsets.enabled, 4),
        (thread.state + offsets.interpreter, 8),
        (thread.state + offsets.native_id, 8),
    ]
    chance = random.Random(768)
    refused = 0
    for _ in range(TRIES):
        copied.replaced.clear()
        for address, nbytes in chance.sample(places, chance.randint(1, 3)):
            copied.forge(address, forged(chance, nbytes))
        try:
            believed = cpython.read_debug_offsets(copied, runtime)
            found = cpython.find_main_thread(copied, runtime, believed, writable, python.pid)
        except UnsafeToAttach:
            refused += 1
            continue
        ends = found.state + believed.support + believed.script_path + believed.script_path_size
        assert any(found.state in area and ends <= area.stop for area in writable)
    assert refused > TRIES * 0.9


@pytest.mark.parametrize(
    ("version", "free_threaded", "reason"),
    [
        (0x030D00F0, 0, "has no sys.remote_exec"),
        (0x030F00F0, 0, "3.15"),
        (0x030E00A1, 0, "a pre-release"),
        (0x030E08F0, 1, "free-threaded"),
        (0x020E08F0, 0, "has no sys.remote_exec"),
    ],
)
def test_other_versions_are_refused_by_name(
    python: TargetProcess, copied: Copied, version: int, free_threaded: int, reason: str
) -> None:
    lines = elf.mappings(python.pid)
    runtime = elf.find_python(copied, lines, python.executable).symbol("_PyRuntime")
    assert runtime is not None
    copied.forge(runtime + 8, struct.pack("<QQ", version, free_threaded))
    with pytest.raises(UnsafeToAttach, match=reason):
        cpython.read_debug_offsets(copied, runtime)


def test_call_frame_tables(python: TargetProcess, copied: Copied) -> None:
    """Forged, they tell nothing, or something else, and nobody reads them for ever."""
    lines = elf.mappings(python.pid)
    libc = next(each for each in elf.images(copied, lines) if "/libc.so" in each.path)
    header = libc.unwind_header()
    assert header is not None

    def stopped(threads: object) -> dict[str, int]:
        return threads.registers(python.pid)  # type: ignore[attr-defined, no-any-return]

    registers, _ = while_stopped(python.pid, stopped)
    sound = elf.Unwinder(copied, [libc])
    assert sound.caller(registers) is not None
    entries = sound._tables[header]
    near = [
        header + each[1] for each in entries if abs(header + each[0] - registers[sound._frames.pc]) < 4096
    ]
    places = [header, header + 4, header + 8, *(at + step for at in near for step in range(0, 40, 4))]
    chance = random.Random(4)
    for _ in range(200):
        copied.replaced.clear()
        for address in chance.sample(places, 2):
            copied.forge(address, forged(chance, 4))
        with suppress(UnsafeToAttach), must_end():
            elf.Unwinder(copied, [libc]).caller(registers)


SCRAMBLED = """
import ctypes, os, random, sys
runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
words = (ctypes.c_uint64 * 95).from_address(runtime)
chance = random.Random(int(sys.argv[1]))
for _ in range(3):
    words[chance.randrange(3, 95)] = chance.choice([0, 1, 8, 1 << 20, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
os.write(1, b"1")
os.read(0, 1)
os._exit(0)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_forges_its_own_table(
    python314: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Refused or answered by both injectors, also where only their deadline ends it; the process goes on."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process = subprocess.Popen(
        [python314, "-c", SCRAMBLED, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"1"
        found = examine(target_of(process.pid))
        for injector in (remote_exec, injection):
            with suppress(Refused), must_end():
                injector.unavailable_reason(found)
            with suppress(Refused), must_end():
                injector.run(found, MEASURE, 1.0)
    finally:
        process.communicate(b"\n", timeout=PATIENCE_S)
    assert process.returncode == 0
