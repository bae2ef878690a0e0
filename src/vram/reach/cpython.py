"""The memory layout of CPython 3.9 to 3.14: the GIL, the threads and the pending calls of a live interpreter.

The offsets come from each version's own internal headers (x86-64 Linux). A version alone is not trusted:
pointers must lead back to where they came from, locks and indices must have possible values. A pending call
(``Py_AddPendingCall``) is a function and its argument, which the main thread calls at its next safe point.
"""

from __future__ import annotations

import re

from msgspec import Struct

from vram.reach import debug_offsets
from vram.reach.elf import ElfImage, MemoryMapping, writable
from vram.reach.ptrace import TargetMemory, UnsafeToAttach

FIRST_MINOR, LAST_MINOR = 9, 14
_FINAL_RELEASE = 0xF
_LOCKED, _LAST_HOLDER = 16, 8  # of the GIL
_THREAD_NEXT, _THREAD_INTERPRETER = 8, 16
_CALLS_TO_DO_BIT, _SIGNALS_PENDING_BIT = 1 << 2, 1 << 1
_MAX_THREADS = 1 << 15
_FREE_THREADED = "_Py_DecRefShared"
_FREE_THREADED_NAME = re.compile(r"python3\.\d+t")


class CPythonLayout(Struct, frozen=True, kw_only=True):
    """Offsets within ``_PyRuntime``, the interpreter's state, and a thread's state.

    ``lock``: the GIL is in the runtime (old) or the interpreter points to it.
    ``pending``: the ring of pending calls is in the interpreter (old) or in the runtime.
    """

    core_initialized: int
    initialized: int
    finalizing: int
    head: int
    main: int
    main_thread: int
    signals_pending: int
    next: int
    runtime: int
    threads: int
    thread_id: int
    eval_breaker: int
    lock_in_runtime: int | None = None
    lock_of_interpreter: int | None = None
    pending_in_interpreter: int | None = None
    pending_in_runtime: int | None = None


_OLD = {"core_initialized": 8, "initialized": 12, "finalizing": 16, "head": 32, "main": 40, "main_thread": 72}
_NEW = {"core_initialized": 12, "initialized": 16, "finalizing": 24, "head": 40, "main": 48}
_FIRST = {"next": 0, "runtime": 16, "threads": 8, "thread_id": 176, "signals_pending": 344}

LAYOUTS = {
    9: CPythonLayout(**_OLD, **_FIRST, eval_breaker=72, lock_in_runtime=352, pending_in_interpreter=80),
    10: CPythonLayout(**_OLD, **_FIRST, eval_breaker=68, lock_in_runtime=352, pending_in_interpreter=80),
    11: CPythonLayout(
        **_NEW,
        main_thread=80,
        next=0,
        runtime=40,
        threads=16,
        thread_id=152,
        signals_pending=352,
        eval_breaker=100,
        lock_in_runtime=360,
        pending_in_interpreter=112,
    ),
    12: CPythonLayout(
        **_NEW,
        main_thread=64,
        next=0,
        runtime=96,
        threads=72,
        thread_id=136,
        signals_pending=2008,
        eval_breaker=368,
        lock_of_interpreter=384,
        pending_in_runtime=2016,
    ),
    13: CPythonLayout(
        core_initialized=596,
        initialized=600,
        finalizing=608,
        head=632,
        main=640,
        main_thread=656,
        next=7264,
        runtime=7376,
        threads=7344,
        thread_id=152,
        signals_pending=0,  # a bit of the main thread's eval breaker
        eval_breaker=24,
        lock_of_interpreter=16,
        pending_in_runtime=2640,
    ),
    14: CPythonLayout(
        core_initialized=772,
        initialized=776,
        finalizing=784,
        head=808,
        main=816,
        main_thread=832,
        next=7272,
        runtime=7384,
        threads=7344,
        thread_id=152,
        signals_pending=0,
        eval_breaker=24,
        lock_of_interpreter=16,
        pending_in_runtime=2848,
    ),
}


class PendingCallsLayout(Struct, frozen=True):
    """The ring of pending calls: the offsets of its fields, and how many calls it has room for."""

    lock: int
    lock_is_pointer: bool
    calls: int
    call_nbytes: int
    capacity: int
    first: int
    next: int
    request: int | None = None  # asks for the calls to be made
    count: int | None = None
    most: int | None = None


PENDING_CALLS_LAYOUTS = {
    9: PendingCallsLayout(0, True, 16, 16, 32, 528, 532, request=8),
    12: PendingCallsLayout(8, True, 24, 16, 32, 536, 540, request=16),
    13: PendingCallsLayout(8, False, 24, 24, 300, 7224, 7228, count=12, most=16),
}
PENDING_CALLS_LAYOUTS |= {
    10: PENDING_CALLS_LAYOUTS[9],
    11: PENDING_CALLS_LAYOUTS[9],
    14: PENDING_CALLS_LAYOUTS[13],
}


class RemotePython:
    """One CPython in another process's memory. What can be read before it is stopped is."""

    def __init__(
        self, memory: TargetMemory, image: ElfImage, minor: int | None, maps: tuple[MemoryMapping, ...]
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
            debug_offsets.read(memory, self.runtime) if self.minor >= debug_offsets.FIRST_MINOR else None
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
                    f"vram supports releases of Python 3.{FIRST_MINOR} to 3.{LAST_MINOR}",
                )
        if named is None or not FIRST_MINOR <= named <= LAST_MINOR:
            which = "of an unknown version" if named is None else f"3.{named}"
            raise UnsafeToAttach(
                f"its Python is {which}, which vram does not support",
                f"3.{FIRST_MINOR} to 3.{LAST_MINOR} are supported; others can call vram.agent()",
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
            raise UnsafeToAttach(
                "it was started with remote debugging disabled",
                "unset PYTHON_DISABLE_REMOTE_DEBUG (or remove -X disable-remote-debug) before its next start",
            )
        self._interpreter = interpreter
        self._pending = (
            interpreter + layout.pending_in_interpreter
            if layout.pending_in_interpreter is not None
            else runtime + (layout.pending_in_runtime or 0)
        )
        self._gil = (
            runtime + layout.lock_in_runtime
            if layout.lock_in_runtime is not None
            else self._pointer(interpreter + (layout.lock_of_interpreter or 0), "its lock")
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
        self._require(not value % alignment and any(value in mapping for mapping in self._writable), what)
        return value

    def _require(self, plausible: bool, what: str) -> None:
        if not plausible:
            raise UnsafeToAttach(
                f"its memory layout is not that of Python 3.{self.minor} ({what})",
                "use a normal build of that version, or have it call vram.agent()",
            )


def _int(value: int) -> bytes:
    return value.to_bytes(4, "little")
