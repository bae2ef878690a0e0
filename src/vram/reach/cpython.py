"""A live CPython in another process's memory: GIL, threads, pending calls, and its table for debuggers.

A version alone is not trusted: pointers must lead back to where they came from and into memory that the
process may write, offsets must lie inside their structure, locks and indices must have possible values. A
pending call (``Py_AddPendingCall``) is a function and its argument, which the main thread calls at its next
safe point.
"""

from __future__ import annotations

import re
import struct

from msgspec import Struct

from vram.cpython_layouts import (
    FIRST_MINOR,
    LAST_MINOR,
    MINORS,
    PENDING_CALLS,
    PUBLISHED,
    STATE,
    SUPPORTED,
    select,
)
from vram.payloads.procfs import MapLine
from vram.reach.elf import ElfImage, writable
from vram.reach.ptrace import TargetMemory, UnsafeToAttach

_FINAL_RELEASE = 0xF
_LOCKED, _LAST_HOLDER = 16, 8  # of the GIL
_THREAD_NEXT, _THREAD_INTERPRETER = 8, 16
_CALLS_TO_DO_BIT, _SIGNALS_PENDING_BIT = 1 << 2, 1 << 1
_MAX_THREADS = 1 << 15
_FREE_THREADED = "_Py_DecRefShared"
_FREE_THREADED_NAME = re.compile(r"python3\.\d+t")


class StateLayout(Struct, frozen=True, kw_only=True):
    """Offsets within ``_PyRuntime``, the interpreter's state, and a thread's state: a column of STATE.

    The GIL is in the runtime (old) or the interpreter points to it; the ring of pending calls is in the
    interpreter (old) or in the runtime.
    """

    core_initialized: int
    initialized: int
    finalizing: int
    head: int
    main: int
    main_thread: int
    next: int
    runtime: int
    threads: int
    thread_id: int
    eval_breaker: int
    signals_pending: int = 0
    lock_in_runtime: int | None = None
    lock_of_interpreter: int = 0
    pending_in_interpreter: int | None = None
    pending_in_runtime: int = 0


class PendingCallsLayout(Struct, frozen=True, kw_only=True):
    """The ring of pending calls: a column of PENDING_CALLS."""

    lock: int
    lock_is_pointer: bool
    calls: int
    call_nbytes: int
    capacity: int
    first: int
    next: int
    request: int | None = None
    count: int | None = None
    most: int | None = None


LAYOUTS = {minor: StateLayout(**select(STATE, minor)) for minor in MINORS}
PENDING_CALLS_LAYOUTS = {minor: PendingCallsLayout(**select(PENDING_CALLS, minor)) for minor in MINORS}


class RemotePython:
    """One CPython in another process's memory. What can be read before it is stopped is."""

    def __init__(
        self, memory: TargetMemory, image: ElfImage, minor: int | None, maps: tuple[MapLine, ...]
    ) -> None:
        self._memory = memory
        self.image = image
        self._writable = writable(maps)
        self.runtime = self._symbol("_PyRuntime")
        self.run_string = self._symbol("PyRun_SimpleString")
        self.gil_ensure = self._symbol("PyGILState_Ensure")
        self.gil_release = self._symbol("PyGILState_Release")
        self.minor = self._minor(minor)
        if image.symbol(_FREE_THREADED) is not None or _FREE_THREADED_NAME.search(image.path):
            raise UnsafeToAttach(
                "it is a free-threaded build of Python, where vram cannot tell which threads are idle",
                "start it with a normal build, or have it call vram.agent()",
            )
        self._layout, self._ring = LAYOUTS[self.minor], PENDING_CALLS_LAYOUTS[self.minor]
        self._offsets = (
            read_debug_offsets(memory, self.runtime) if self.minor >= FIRST_REMOTE_EXEC_MINOR else None
        )
        self._thread = 0

    def _symbol(self, name: str) -> int:
        found = self.image.symbol(name)
        if found is None:
            raise UnsafeToAttach(
                f"its Python does not export {name}: linked statically, or without symbols",
                "start it with a normal interpreter, or have it call vram.agent()",
            )
        return found

    def _minor(self, named: int | None) -> int:
        """By ``Py_Version`` since 3.11; before, by the name of its file."""
        at = self.image.symbol("Py_Version")
        if at is not None:
            version = self._memory.uint64(at)
            major, named, level = version >> 24, version >> 16 & 0xFF, version >> 4 & 0xF
            if major != 3 or level != _FINAL_RELEASE:
                raise UnsafeToAttach(
                    "its Python is a pre-release",
                    f"vram supports releases of Python {SUPPORTED}",
                )
        if named is None or not FIRST_MINOR <= named <= LAST_MINOR:
            which = "of an unknown version" if named is None else f"3.{named}"
            raise UnsafeToAttach(
                f"its Python is {which}, which vram does not support",
                f"{SUPPORTED} are supported; others can call vram.agent()",
            )
        return named

    def require_usable(self) -> None:
        """Raise where it is starting or ending, or where what is read is not what was expected.

        Also valid while it runs: nothing is read here that changes from one moment to the next.
        """
        memory, layout, runtime = self._memory, self._layout, self.runtime
        states = {memory.int32(runtime + layout.core_initialized), memory.int32(runtime + layout.initialized)}
        if 0 in states or memory.uint64(runtime + layout.finalizing):
            raise UnsafeToAttach("its Python is starting or exiting", "try again in a moment", passing=True)
        self._require(states == {1}, "its state of initialisation")
        interpreter = self._pointer(runtime + layout.main, "its main interpreter")
        self._require(memory.uint64(interpreter + layout.runtime) == runtime, "its main interpreter")
        others = memory.uint64(runtime + layout.head) != interpreter or memory.uint64(
            interpreter + layout.next
        )
        if others:
            raise UnsafeToAttach("it runs sub-interpreters", "stop those first, or have it call vram.agent()")
        if self._offsets is not None and memory.int32(interpreter + self._offsets.enabled) != 1:
            raise remote_debugging_disabled()
        self._interpreter = interpreter
        self._pending = (
            interpreter + layout.pending_in_interpreter
            if layout.pending_in_interpreter is not None
            else runtime + layout.pending_in_runtime
        )
        self._gil = (
            runtime + layout.lock_in_runtime
            if layout.lock_in_runtime is not None
            else self._pointer(interpreter + layout.lock_of_interpreter, "its lock")
        )
        self._require(memory.int32(self._gil + _LOCKED) in (0, 1), "its lock")
        self.main_thread = memory.uint64(runtime + layout.main_thread)

    def find_main_thread(self) -> None:
        """Find the state of the thread that makes pending calls; certain only while all threads are stopped.

        It is the last in a list that may be long: where it was found before is tried first.
        """
        memory, layout = self._memory, self._layout
        if self._thread and self._is_main_thread(self._thread):
            return
        state = memory.uint64(self._interpreter + layout.threads)
        for _ in range(_MAX_THREADS):
            if not state:
                break
            owner = memory.uint64(state + _THREAD_INTERPRETER)
            self._require(owner == self._interpreter, "its list of threads")
            if self._is_main_thread(state):
                self._thread = state
                return
            state = memory.uint64(state + _THREAD_NEXT)
        raise UnsafeToAttach("Python does not know its main thread")

    def _is_main_thread(self, state: int) -> bool:
        nbytes = self._layout.thread_id + 8
        fields = self._memory.read(state, nbytes)
        owner = int.from_bytes(fields[_THREAD_INTERPRETER : _THREAD_INTERPRETER + 8], "little")
        return owner == self._interpreter and int.from_bytes(fields[-8:], "little") == self.main_thread

    def main_thread_holds_gil(self) -> bool:
        """Assumed to be so while the GIL is being handed over."""
        held = self._memory.int32(self._gil + _LOCKED)
        return bool(held) and self._memory.uint64(self._gil + _LAST_HOLDER) == self._thread

    def has_signals(self) -> bool:
        """Whether a signal waits for its handler in Python: that one runs first."""
        if self.minor >= 13:
            return bool(self._memory.uint64(self._breaker()) & _SIGNALS_PENDING_BIT)
        return bool(self._memory.int32(self.runtime + self._layout.signals_pending))

    def _breaker(self) -> int:
        return (self._thread if self.minor >= 13 else self._interpreter) + self._layout.eval_breaker

    def add_pending_call(self, text: int) -> None:
        """Add a call that runs the text at *text*. The last write decides, so it is all or nothing.

        Since 3.13 two numbers are written. Killed between them, we leave the call half counted, and the
        next run completes it: its text is still there, and finds no socket to connect to.
        """
        memory, ring, pending = self._memory, self._ring, self._pending
        after = self._require_room()
        entry = self.run_string.to_bytes(8, "little") + text.to_bytes(8, "little")
        memory.write(pending + ring.calls + after * ring.call_nbytes, entry.ljust(ring.call_nbytes, b"\0"))
        if ring.count is not None:
            memory.write(pending + ring.count, _int(memory.int32(pending + ring.count) + 1))
        memory.write(pending + ring.next, _int((after + 1) % ring.capacity))
        self.request_pending_calls()

    def request_pending_calls(self) -> None:
        memory, ring = self._memory, self._ring
        if ring.request is not None:
            memory.write(self._pending + ring.request, _int(1))
            memory.write(self._breaker(), _int(1))
        else:
            (low,) = memory.read(self._breaker(), 1)
            memory.write(self._breaker(), bytes([low | _CALLS_TO_DO_BIT]))

    def has_pending_call(self, text: int) -> bool:
        return self._index_of(text) is not None

    def remove_pending_call(self, text: int) -> bool:
        """Whether the call is no longer in the ring. One that others were added after stays there."""
        memory, ring, pending = self._memory, self._ring, self._pending
        index = self._index_of(text)
        if index is None:
            return True
        _, after = self._require_consistent()
        if (index + 1) % ring.capacity != after:
            return False
        memory.write(pending + ring.next, _int(index))
        if ring.count is not None:
            memory.write(pending + ring.count, _int(memory.int32(pending + ring.count) - 1))
        return True

    def empty_pending_call(self, text: int) -> None:
        """Have the call run no lines at all, for one that cannot be removed.

        Its text must not merely be cleared: the place would be free, and the call would run whatever
        another run writes there.
        """
        empty = self.image.empty_string
        self._require(self._memory.read(empty, 1) == b"\0", "the header of its program")
        index = self._index_of(text)
        if index is not None:
            at = self._pending + self._ring.calls + index * self._ring.call_nbytes
            self._memory.write(at + 8, empty.to_bytes(8, "little"))

    def probably_has_pending_call(self, text: int) -> bool:
        """A guess while it runs, which changes nothing: whether it is worth stopping it again."""
        ring = self._ring
        first, after = (self._memory.int32(self._pending + at) for at in (ring.first, ring.next))
        if not (0 <= first < ring.capacity and 0 <= after < ring.capacity):
            return True
        return self._find(text, first, after) is not None

    def _index_of(self, text: int) -> int | None:
        return self._find(text, *self._require_consistent())

    def _find(self, text: int, at: int, after: int) -> int | None:
        ring = self._ring
        while at != after:
            entry = self._memory.read(self._pending + ring.calls + at * ring.call_nbytes, 16)
            if entry == self.run_string.to_bytes(8, "little") + text.to_bytes(8, "little"):
                return at
            at = (at + 1) % ring.capacity
        return None

    def _require_room(self) -> int:
        first, after = self._require_consistent()
        ring = self._ring
        most = self._memory.int32(self._pending + ring.most) if ring.most is not None else ring.capacity - 1
        if (after - first) % ring.capacity >= most:
            raise UnsafeToAttach(
                "its queue of pending calls is full: its main thread has not reached a safe point"
                " for a long time",
                "try again when its main thread is back in Python",
            )
        return after

    def _require_consistent(self) -> tuple[int, int]:
        """The first and the next free index; raises while the process itself is changing the ring."""
        memory, ring, pending = self._memory, self._ring, self._pending
        first, after = memory.int32(pending + ring.first), memory.int32(pending + ring.next)
        sound = 0 <= first < ring.capacity and 0 <= after < ring.capacity
        if ring.lock_is_pointer:
            semaphore = memory.uint64(self._pointer(pending + ring.lock, "the lock of its pending calls", 4))
            free = semaphore == 1  # its value is one, and no thread waits
            sound = sound and semaphore & 0xFFFFFFFF in (0, 1)
        else:
            (byte,) = memory.read(pending + ring.lock, 1)
            free = byte == 0
            sound = sound and byte in (0, 1, 2, 3)
            count, most = memory.int32(pending + (ring.count or 0)), memory.int32(pending + (ring.most or 0))
            sound = sound and 0 < most <= ring.capacity
            if free and sound:
                after = self._completed_end(first, after, count)
                sound = count == (after - first) % ring.capacity
        self._require(sound, "its list of pending calls")
        if not free:
            raise UnsafeToAttach("its queue of pending calls is being changed right now", passing=True)
        return first, after

    def _completed_end(self, first: int, after: int, count: int) -> int:
        """The next free index, advanced where a run of ours was killed before it did."""
        ring = self._ring
        entry = self._memory.read(self._pending + ring.calls + after * ring.call_nbytes, 8)
        ours = entry == self.run_string.to_bytes(8, "little")
        if count == (after - first) % ring.capacity + 1 and ours:
            after = (after + 1) % ring.capacity
            self._memory.write(self._pending + ring.next, _int(after))
        return after

    def _pointer(self, at: int, what: str, alignment: int = 8) -> int:
        value = self._memory.uint64(at)
        self._require(not value % alignment and any(value in area for area in self._writable), what)
        return value

    def _require(self, plausible: bool, what: str) -> None:
        if not plausible:
            raise UnsafeToAttach(
                f"its memory layout is not that of Python 3.{self.minor} ({what})",
                "use a normal build of that version, or have it call vram.agent()",
            )


def _int(value: int) -> bytes:
    return value.to_bytes(4, "little")


# ---- the table for debuggers ----

_COOKIE = b"xdebugpy"
_TABLE_NBYTES = 8 + max(max(select(PUBLISHED, minor).values(), default=0) for minor in MINORS)
FIRST_REMOTE_EXEC_MINOR = next(minor for minor in MINORS if "script_path" in select(PUBLISHED, minor))
_MAX_STRUCTURE = 4 << 20
_MIN_PATH_LENGTH, _MAX_PATH_LENGTH = 64, 4096
_MAX_INTERPRETERS = 1000


class DebugOffsets(Struct, frozen=True, kw_only=True):
    """Of ``_Py_DebugOffsets``, at the start of ``_PyRuntime``: offsets within the runtime, an interpreter and
    a thread's state, and the sizes of those."""

    runtime_size: int
    finalizing: int
    head: int
    interpreter_size: int
    interpreter_id: int
    next: int
    main_thread: int
    thread_size: int
    interpreter: int
    native_id: int
    eval_breaker: int
    support: int
    enabled: int
    pending_call: int
    script_path: int
    script_path_size: int


class MainThread(Struct, frozen=True):
    """The main thread's state in a running interpreter, and whether remote debugging is enabled."""

    interpreter: int
    state: int
    remote_debugging: bool


def read_debug_offsets(memory: TargetMemory, runtime: int) -> DebugOffsets:
    """The table of the Python whose ``_PyRuntime`` lies at *runtime*. Raises UnsafeToAttach."""
    table = memory.read(runtime, _TABLE_NBYTES)
    cookie, version, free_threaded = struct.unpack_from("<8sQQ", table)
    minor = version >> 16 & 0xFF
    if cookie != _COOKIE or version >> 24 != 3 or minor < FIRST_REMOTE_EXEC_MINOR:
        raise UnsafeToAttach(f"its Python has no sys.remote_exec (new in 3.{FIRST_REMOTE_EXEC_MINOR})")
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
    places = select(PUBLISHED, minor)
    fields = DebugOffsets.__struct_fields__
    offsets = DebugOffsets(**{name: struct.unpack_from("<Q", table, places[name])[0] for name in fields})
    _require(_is_plausible(offsets), "its table of offsets")
    return offsets


def remote_debugging_disabled() -> UnsafeToAttach:
    return UnsafeToAttach(
        "it was started with remote debugging disabled",
        "unset PYTHON_DISABLE_REMOTE_DEBUG (or remove -X disable-remote-debug) before its next start",
    )


def find_main_thread(
    memory: TargetMemory, runtime: int, offsets: DebugOffsets, writable: list[range], tid: int
) -> MainThread:
    """The main thread, whose id is *tid* in its own namespace; certain only while every thread is stopped."""
    interpreter = memory.uint64(runtime + offsets.head)
    if not interpreter or memory.uint64(runtime + offsets.finalizing):
        raise UnsafeToAttach("its Python is starting or exiting", "try again in a moment", passing=True)
    for _ in range(_MAX_INTERPRETERS):
        _require(_is_inside(interpreter, offsets.interpreter_size, writable), "its interpreters")
        if memory.uint64(interpreter + offsets.interpreter_id) == 0:
            break
        interpreter = memory.uint64(interpreter + offsets.next)
    else:
        _require(False, "its interpreters")
    state = memory.uint64(interpreter + offsets.main_thread)
    _require(_is_inside(state, offsets.thread_size, writable), "its main thread")
    owner, native = memory.uint64(state + offsets.interpreter), memory.uint64(state + offsets.native_id)
    _require(owner == interpreter and native == tid, "its main thread")
    enabled = memory.int32(interpreter + offsets.enabled)
    _require(enabled in (0, 1), "whether remote debugging is enabled")
    return MainThread(interpreter, state, bool(enabled))


def _is_plausible(offsets: DebugOffsets) -> bool:
    sizes = (offsets.runtime_size, offsets.interpreter_size, offsets.thread_size)
    pointers = (
        (offsets.finalizing, offsets.runtime_size),
        (offsets.head, offsets.runtime_size),
        (offsets.interpreter_id, offsets.interpreter_size),
        (offsets.next, offsets.interpreter_size),
        (offsets.main_thread, offsets.interpreter_size),
        (offsets.interpreter, offsets.thread_size),
        (offsets.native_id, offsets.thread_size),
        (offsets.eval_breaker, offsets.thread_size),
    )
    support = offsets.thread_size - offsets.support
    flag, path, path_size = offsets.pending_call, offsets.script_path, offsets.script_path_size
    return (
        all(size <= _MAX_STRUCTURE for size in sizes)
        and all(at % 8 == 0 and at + 8 <= size for at, size in pointers)
        and offsets.enabled % 4 == 0
        and offsets.enabled + 4 <= offsets.interpreter_size
        and offsets.support % 4 == flag % 4 == 0
        and flag + 4 <= path
        and _MIN_PATH_LENGTH <= path_size <= _MAX_PATH_LENGTH
        and path + path_size <= support
    )


def _is_inside(address: int, nbytes: int, areas: list[range]) -> bool:
    return not address % 8 and any(address in area and address + nbytes <= area.stop for area in areas)


def _require(plausible: bool, what: str) -> None:
    if not plausible:
        raise UnsafeToAttach(
            f"its memory layout is not Python's ({what})",
            "use a normal build, or have it call vram.agent()",
        )
