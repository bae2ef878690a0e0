"""What CPython 3.9 to 3.14 keep in memory: where its lists and locks lie, and whether they are believed.

The offsets come from each version's own internal headers (x86-64 Linux). Nothing is believed
because of a version alone: pointers must lead back to where they came from, locks and
indices must be possible. A note in the list of pending calls is a function and its argument,
which the main thread calls at its next safe point.
"""

from __future__ import annotations

import re

from msgspec import Struct

from vram.reach import debug_offsets
from vram.reach.image import Image, Mapping, writable
from vram.reach.ptrace import Memory, Unsafe

FIRST_MINOR, LAST_MINOR = 9, 14
_FINAL_RELEASE = 0xF
_LOCKED, _LAST_HOLDER = 16, 8
_THREAD_NEXT, _THREAD_INTERPRETER = 8, 16
_CALLS_TO_DO_BIT, _SIGNALS_PENDING_BIT = 1 << 2, 1 << 1
_MOST_THREADS = 1 << 15
_FREE_THREADED = "_Py_DecRefShared"
_FREE_THREADED_NAME = re.compile(r"python3\.\d+t")


class Layout(Struct, frozen=True, kw_only=True):
    """Offsets within ``_PyRuntime``, the interpreter's state, and a thread's state.

    ``lock``: the interpreter's lock lies in the runtime (old) or is pointed to by the interpreter.
    ``pending``: the list lies in the interpreter (old) or in the runtime.
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
    9: Layout(**_OLD, **_FIRST, eval_breaker=72, lock_in_runtime=352, pending_in_interpreter=80),
    10: Layout(**_OLD, **_FIRST, eval_breaker=68, lock_in_runtime=352, pending_in_interpreter=80),
    11: Layout(
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
    12: Layout(
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
    13: Layout(
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
    14: Layout(
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


class Ring(Struct, frozen=True):
    """The list of pending calls: where its fields lie, how many calls it has room for."""

    lock: int
    lock_is_pointer: bool
    calls: int
    call_nbytes: int
    places: int
    first: int
    next: int
    request: int | None = None  # asks for the calls to be made
    count: int | None = None
    most: int | None = None


RINGS = {
    9: Ring(0, True, 16, 16, 32, 528, 532, request=8),
    12: Ring(8, True, 24, 16, 32, 536, 540, request=16),
    13: Ring(8, False, 24, 24, 300, 7224, 7228, count=12, most=16),
}
RINGS |= {10: RINGS[9], 11: RINGS[9], 14: RINGS[13]}


class Python:
    """One CPython as it lies in memory. Everything that can be looked up beforehand is."""

    def __init__(self, memory: Memory, image: Image, minor: int | None, lines: tuple[Mapping, ...]) -> None:
        self._memory = memory
        self.image = image
        self._writable = writable(lines)
        self.runtime = self._symbol("_PyRuntime")
        self.run_text = self._symbol("PyRun_SimpleString")
        self.take_lock = self._symbol("PyGILState_Ensure")
        self.give_lock = self._symbol("PyGILState_Release")
        self.minor = self._minor(minor)
        if image.symbol(_FREE_THREADED) is not None or _FREE_THREADED_NAME.search(image.path):
            raise Unsafe(
                "it is a free-threaded build of Python, whose threads cannot be told to be at rest",
                "start it with an ordinary build, or have it call vram.agent()",
            )
        self._layout, self._ring = LAYOUTS[self.minor], RINGS[self.minor]
        self._offsets = (
            debug_offsets.read(memory, self.runtime) if self.minor >= debug_offsets.FIRST_MINOR else None
        )
        self._thread = 0

    def _symbol(self, name: str) -> int:
        found = self.image.symbol(name)
        if found is None:
            raise Unsafe(
                f"its Python does not export {name}: linked statically, or without symbols",
                "start it with an ordinary interpreter, or have it call vram.agent()",
            )
        return found

    def _minor(self, named: int | None) -> int:
        """By its own word since 3.11; before, by the name of its file."""
        at = self.image.symbol("Py_Version")
        if at is not None:
            version = self._memory.number(at)
            major, named, level = version >> 24, version >> 16 & 0xFF, version >> 4 & 0xF
            if major != 3 or level != _FINAL_RELEASE:
                raise Unsafe(
                    "its Python is no final release",
                    f"releases of Python 3.{FIRST_MINOR} to 3.{LAST_MINOR} are known",
                )
        if named is None or not FIRST_MINOR <= named <= LAST_MINOR:
            which = "of an unknown version" if named is None else f"3.{named}"
            raise Unsafe(
                f"its Python is {which}, whose memory is not known",
                f"3.{FIRST_MINOR} to 3.{LAST_MINOR} are; others can call vram.agent()",
            )
        return named

    def require_usable(self) -> None:
        """Raise where it is starting or ending, or where what is read is not what was expected.

        Also while it runs: nothing is read here that changes from one moment to the next.
        """
        memory, layout, runtime = self._memory, self._layout, self.runtime
        states = {memory.small(runtime + layout.core_initialized), memory.small(runtime + layout.initialized)}
        if 0 in states or memory.number(runtime + layout.finalizing):
            raise Unsafe("its Python is starting or ending", "try again in a moment", passing=True)
        self._require(states == {1}, "its state of initialisation")
        interpreter = self._pointer(runtime + layout.main, "its main interpreter")
        self._require(memory.number(interpreter + layout.runtime) == runtime, "its main interpreter")
        others = memory.number(runtime + layout.head) != interpreter or memory.number(
            interpreter + layout.next
        )
        if others:
            raise Unsafe("it runs sub-interpreters", "end those first, or have it call vram.agent()")
        if self._offsets is not None and memory.small(interpreter + self._offsets.enabled) != 1:
            raise Unsafe(
                "it was started with remote debugging disabled",
                "unset PYTHON_DISABLE_REMOTE_DEBUG (or drop -X disable-remote-debug) before its next start",
            )
        self._interpreter = interpreter
        self._pending = (
            interpreter + layout.pending_in_interpreter
            if layout.pending_in_interpreter is not None
            else runtime + (layout.pending_in_runtime or 0)
        )
        self._lock = (
            runtime + layout.lock_in_runtime
            if layout.lock_in_runtime is not None
            else self._pointer(interpreter + (layout.lock_of_interpreter or 0), "its lock")
        )
        self._require(memory.small(self._lock + _LOCKED) in (0, 1), "its lock")
        self.main_thread = memory.number(runtime + layout.main_thread)

    def find_main_thread(self) -> None:
        """Find the state of the thread that may make pending calls; certain only while nobody runs.

        It is the last in a list that may be long: where it was found before, it is looked for first.
        """
        memory, layout = self._memory, self._layout
        if self._thread and self._is_main_thread(self._thread):
            return
        state = memory.number(self._interpreter + layout.threads)
        for _ in range(_MOST_THREADS):
            if not state:
                break
            owner = memory.number(state + _THREAD_INTERPRETER)
            self._require(owner == self._interpreter, "its list of threads")
            if self._is_main_thread(state):
                self._thread = state
                return
            state = memory.number(state + _THREAD_NEXT)
        raise Unsafe("its main thread is unknown to its Python")

    def _is_main_thread(self, state: int) -> bool:
        nbytes = self._layout.thread_id + 8
        fields = self._memory.read(state, nbytes)
        owner = int.from_bytes(fields[_THREAD_INTERPRETER : _THREAD_INTERPRETER + 8], "little")
        return owner == self._interpreter and int.from_bytes(fields[-8:], "little") == self.main_thread

    def main_thread_holds_lock(self) -> bool:
        """Taken to be so where the lock is just changing hands."""
        held = self._memory.small(self._lock + _LOCKED)
        return bool(held) and self._memory.number(self._lock + _LAST_HOLDER) == self._thread

    def has_signals(self) -> bool:
        """Whether a signal waits for its handler in Python: that comes before anything of ours."""
        if self.minor >= 13:
            return bool(self._memory.number(self._breaker()) & _SIGNALS_PENDING_BIT)
        return bool(self._memory.small(self.runtime + self._layout.signals_pending))

    def _breaker(self) -> int:
        return (self._thread if self.minor >= 13 else self._interpreter) + self._layout.eval_breaker

    def leave_note(self, text: int) -> None:
        """Put a call of the text at *text* into the list. One number decides, so it is all or nothing.

        Since 3.13 there are two. Who dies between them leaves the entry half counted, which the next
        visit completes: its text is there, and finds nobody to talk to.
        """
        memory, ring, pending = self._memory, self._ring, self._pending
        after = self._require_free_ring()
        entry = self.run_text.to_bytes(8, "little") + text.to_bytes(8, "little")
        memory.write(pending + ring.calls + after * ring.call_nbytes, entry.ljust(ring.call_nbytes, b"\0"))
        if ring.count is not None:
            memory.write(pending + ring.count, _int(memory.small(pending + ring.count) + 1))
        memory.write(pending + ring.next, _int((after + 1) % ring.places))
        self.raise_flags()

    def raise_flags(self) -> None:
        memory, ring = self._memory, self._ring
        if ring.request is not None:
            memory.write(self._pending + ring.request, _int(1))
            memory.write(self._breaker(), _int(1))
        else:
            (low,) = memory.read(self._breaker(), 1)
            memory.write(self._breaker(), bytes([low | _CALLS_TO_DO_BIT]))

    def has_note(self, text: int) -> bool:
        return self._place_of(text) is not None

    def take_note_back(self, text: int) -> bool:
        """Whether the note is no longer in the list. One that others have been left behind stays there."""
        memory, ring, pending = self._memory, self._ring, self._pending
        place = self._place_of(text)
        if place is None:
            return True
        _, after = self._require_sound_ring()
        if (place + 1) % ring.places != after:
            return False
        memory.write(pending + ring.next, _int(place))
        if ring.count is not None:
            memory.write(pending + ring.count, _int(memory.small(pending + ring.count) - 1))
        return True

    def seems_to_have_note(self, text: int) -> bool:
        """A guess while it runs, which changes nothing: whether stopping it again is worth while."""
        ring = self._ring
        first, after = (self._memory.small(self._pending + at) for at in (ring.first, ring.next))
        if not (0 <= first < ring.places and 0 <= after < ring.places):
            return True
        return self._find(text, first, after) is not None

    def _place_of(self, text: int) -> int | None:
        return self._find(text, *self._require_sound_ring())

    def _find(self, text: int, at: int, after: int) -> int | None:
        ring = self._ring
        while at != after:
            entry = self._memory.read(self._pending + ring.calls + at * ring.call_nbytes, 16)
            if entry == self.run_text.to_bytes(8, "little") + text.to_bytes(8, "little"):
                return at
            at = (at + 1) % ring.places
        return None

    def _require_free_ring(self) -> int:
        first, after = self._require_sound_ring()
        ring = self._ring
        most = self._memory.small(self._pending + ring.most) if ring.most is not None else ring.places - 1
        if (after - first) % ring.places >= most:
            raise Unsafe(
                "its list of pending calls is full: it has not come to a safe point for long",
                "try again when its main thread has returned to Python",
            )
        return after

    def _require_sound_ring(self) -> tuple[int, int]:
        """The first and the next free place, where nobody is just changing the list."""
        memory, ring, pending = self._memory, self._ring, self._pending
        first, after = memory.small(pending + ring.first), memory.small(pending + ring.next)
        sound = 0 <= first < ring.places and 0 <= after < ring.places
        if ring.lock_is_pointer:
            semaphore = memory.number(self._pointer(pending + ring.lock, "the lock of its pending calls", 4))
            free = semaphore == 1  # a value of one, and nobody waits
            sound = sound and semaphore & 0xFFFFFFFF in (0, 1)
        else:
            (byte,) = memory.read(pending + ring.lock, 1)
            free = byte == 0
            sound = sound and byte in (0, 1, 2, 3)
            count, most = memory.small(pending + (ring.count or 0)), memory.small(pending + (ring.most or 0))
            sound = sound and 0 < most <= ring.places
            if free and sound:
                after = self._completed(first, after, count)
                sound = count == (after - first) % ring.places
        self._require(sound, "its list of pending calls")
        if not free:
            raise Unsafe("its list of pending calls is just being changed", passing=True)
        return first, after

    def _completed(self, first: int, after: int, count: int) -> int:
        """The next free place, moved on where a visit of ours was killed before it could."""
        ring = self._ring
        entry = self._memory.read(self._pending + ring.calls + after * ring.call_nbytes, 8)
        ours = entry == self.run_text.to_bytes(8, "little")
        if count == (after - first) % ring.places + 1 and ours:
            after = (after + 1) % ring.places
            self._memory.write(self._pending + ring.next, _int(after))
        return after

    def _pointer(self, at: int, what: str, alignment: int = 8) -> int:
        value = self._memory.number(at)
        self._require(not value % alignment and any(value in line for line in self._writable), what)
        return value

    def _require(self, plausible: bool, what: str) -> None:
        if not plausible:
            raise Unsafe(
                f"its memory is not laid out as Python 3.{self.minor}'s is ({what})",
                "an ordinary build of that version is; a changed one can call vram.agent()",
            )


def _int(value: int) -> bytes:
    return value.to_bytes(4, "little")
