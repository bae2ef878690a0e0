"""CPython's own table of offsets for debuggers (``_Py_DebugOffsets``), at the start of ``_PyRuntime``.

The table has the version and the offsets of the interface for debuggers (PEP 768). It is read from another
process's memory, which may hold anything: every offset must lie inside its structure, every pointer in
memory that the process may write.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from vram.reach.elf import MemoryMapping
from vram.reach.ptrace import TargetMemory, UnsafeToAttach

FIRST_MINOR, LAST_MINOR = 14, 14  # whose tables are known
_COOKIE = b"xdebugpy"
_FINAL_RELEASE = 0xF
_NBYTES = 760
# Where the table of 3.14 has what is needed here, in bytes from its start.
_PLACES = {
    "runtime_nbytes": 24,
    "finalizing": 32,
    "head": 40,
    "interpreter_nbytes": 48,
    "interpreter_id": 56,
    "next": 64,
    "main_thread": 80,
    "thread_nbytes": 176,
    "interpreter": 200,
    "native_id": 224,
    "eval_breaker": 712,
    "support": 720,
    "enabled": 728,
    "pending_call": 736,
    "script_path": 744,
    "script_path_nbytes": 752,
}
_MAX_STRUCTURE = 4 << 20
_MIN_PATH_LENGTH, _MAX_PATH_LENGTH = 64, 4096
_MAX_INTERPRETERS = 1000


class DebugOffsets(Struct, frozen=True, kw_only=True):
    """Offsets within the runtime, an interpreter and a thread's state; sizes of those."""

    runtime_nbytes: int
    finalizing: int
    head: int
    interpreter_nbytes: int
    interpreter_id: int
    next: int
    main_thread: int
    thread_nbytes: int
    interpreter: int
    native_id: int
    eval_breaker: int
    support: int
    enabled: int
    pending_call: int
    script_path: int
    script_path_nbytes: int


class MainThread(Struct, frozen=True):
    """The main thread's state in a running interpreter, and whether remote debugging is enabled."""

    interpreter: int
    state: int
    remote_debugging: bool


def read(memory: TargetMemory, runtime: int) -> DebugOffsets:
    """The table of the Python whose ``_PyRuntime`` lies at *runtime*. Raises UnsafeToAttach."""
    table = memory.read(runtime, _NBYTES)
    version, free_threaded = struct.unpack_from("<QQ", table, 8)
    minor = version >> 16 & 0xFF
    if table[:8] != _COOKIE or version >> 24 != 3 or minor < FIRST_MINOR:
        raise UnsafeToAttach(f"its Python has no sys.remote_exec (new in 3.{FIRST_MINOR})")
    if minor > LAST_MINOR or version >> 4 & 0xF != _FINAL_RELEASE:
        release = "" if version >> 4 & 0xF == _FINAL_RELEASE else ", a pre-release,"
        raise UnsafeToAttach(
            f"its Python is 3.{minor}{release} whose offset table is unknown",
            f"releases up to 3.{LAST_MINOR} are supported; others can call vram.agent()",
        )
    if free_threaded:
        raise UnsafeToAttach(
            "it is a free-threaded build of Python, which is not supported",
            "start it with a normal build, or have it call vram.agent()",
        )
    offsets = DebugOffsets(**{name: _word(table, at) for name, at in _PLACES.items()})
    _require(_is_plausible(offsets), "its table of offsets")
    return offsets


def find_main_thread(
    memory: TargetMemory, runtime: int, offsets: DebugOffsets, writable: list[MemoryMapping], tid: int
) -> MainThread:
    """The main thread, whose id is *tid* in its own namespace; certain only while every thread is stopped."""
    interpreter = memory.uint64(runtime + offsets.head)
    if not interpreter or memory.uint64(runtime + offsets.finalizing):
        raise UnsafeToAttach("its Python is starting or exiting", "try again in a moment", passing=True)
    for _ in range(_MAX_INTERPRETERS):
        _require(_is_inside(interpreter, offsets.interpreter_nbytes, writable), "its interpreters")
        if memory.uint64(interpreter + offsets.interpreter_id) == 0:
            break
        interpreter = memory.uint64(interpreter + offsets.next)
    else:
        _require(False, "its interpreters")
    state = memory.uint64(interpreter + offsets.main_thread)
    _require(_is_inside(state, offsets.thread_nbytes, writable), "its main thread")
    owner, native = memory.uint64(state + offsets.interpreter), memory.uint64(state + offsets.native_id)
    _require(owner == interpreter and native == tid, "its main thread")
    enabled = memory.int32(interpreter + offsets.enabled)
    _require(enabled in (0, 1), "whether remote debugging is enabled")
    return MainThread(interpreter, state, bool(enabled))


def _is_plausible(offsets: DebugOffsets) -> bool:
    sizes = (offsets.runtime_nbytes, offsets.interpreter_nbytes, offsets.thread_nbytes)
    pointers = (
        (offsets.finalizing, offsets.runtime_nbytes),
        (offsets.head, offsets.runtime_nbytes),
        (offsets.interpreter_id, offsets.interpreter_nbytes),
        (offsets.next, offsets.interpreter_nbytes),
        (offsets.main_thread, offsets.interpreter_nbytes),
        (offsets.interpreter, offsets.thread_nbytes),
        (offsets.native_id, offsets.thread_nbytes),
        (offsets.eval_breaker, offsets.thread_nbytes),
    )
    support = offsets.thread_nbytes - offsets.support
    flag, path, path_nbytes = offsets.pending_call, offsets.script_path, offsets.script_path_nbytes
    return (
        all(size <= _MAX_STRUCTURE for size in sizes)
        and all(at % 8 == 0 and at + 8 <= size for at, size in pointers)
        and offsets.enabled % 4 == 0
        and offsets.enabled + 4 <= offsets.interpreter_nbytes
        and offsets.support % 4 == flag % 4 == 0
        and flag + 4 <= path
        and _MIN_PATH_LENGTH <= path_nbytes <= _MAX_PATH_LENGTH
        and path + path_nbytes <= support
    )


def _is_inside(address: int, nbytes: int, lines: list[MemoryMapping]) -> bool:
    return not address % 8 and any(address in line and address + nbytes <= line.end for line in lines)


def _word(table: bytes, at: int) -> int:
    return int.from_bytes(table[at : at + 8], "little")


def _require(plausible: bool, what: str) -> None:
    if not plausible:
        raise UnsafeToAttach(
            f"its memory layout is not Python's ({what})",
            "use a normal build, or have it call vram.agent()",
        )
