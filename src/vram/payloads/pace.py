"""How work inside another program leaves that program its time, and how long its threads waited all the same.

Python runs one thread at a time. So the work is done in slices of a few milliseconds, with a rest after each
in which the interpreter is free. A single call that takes longer than a slice still holds other threads up:
that is measured, not assumed. Beside the work another thread of ours sleeps for a millisecond at a time and
notes how late it wakes, as any thread of the program would. It may also wake late because the program itself
kept the interpreter busy; so the wait never counts for more than our longest slice.

Without the interpreter's lock (free-threaded Python) only calls that stop all threads show, as they should.
"""

from __future__ import annotations

import _thread
import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeAlias  # since Python 3.10

# Called between two parts of the work; True when the time is up.
Pause: TypeAlias = "Callable[[], bool]"

WORK_S = 0.003
# Shorter, and a thread that waits for the interpreter may not have woken before the work takes it again.
REST_S = 0.001
BEAT_S = 0.001
# It ends one beat after it is told to; a program that keeps the interpreter for longer is not waited for.
ENDING_S = 5.0
_NEVER = 1_000_000_007


class Beat:
    """A thread that notes how late it wakes from a sleep of a millisecond."""

    def __init__(self) -> None:
        self.latest_s = 0.0
        self._is_ending = False
        self._begun, self._running = _thread.allocate_lock(), _thread.allocate_lock()

    def start(self) -> bool:
        """Whether a thread could be started. It beats already: before its first beat it would see nothing."""
        self._begun.acquire()
        self._running.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # the program has as many threads as it may have, or is ending
            self._running.release()
            return False
        self._begun.acquire(timeout=ENDING_S)
        return True

    def end(self) -> None:
        """Wait for the last beat: nothing of it runs afterwards."""
        self._is_ending = True
        if self._running.acquire(timeout=ENDING_S):
            self._running.release()

    def _run(self) -> None:
        # Bound here: what the modules contain is gone soon after the end.
        monotonic, sleep, beat_s = time.monotonic, time.sleep, BEAT_S
        try:
            before = monotonic()
            self._begun.release()
            while not self._is_ending:
                sleep(beat_s)
                now = monotonic()
                self.latest_s = max(self.latest_s, now - before - beat_s)
                before = now
        finally:
            self._running.release()


class Pace:
    """Rests after each slice of work; measures between :meth:`begin` and :meth:`end`.

    Between these two, automatic collections leave old objects alone.
    ``longest_s`` is the longest slice, ``worked_s`` the processor time of all of them.
    """

    def __init__(self, until: float = float("inf"), work_s: float = WORK_S, rest_s: float = REST_S) -> None:
        self.until = until
        self.longest_s = self.worked_s = 0.0
        self.slices = 0
        self._work_s, self._rest_s = work_s, rest_s
        self._unmeasured_s = 0.0
        self._latest_s = float("inf")  # where no beat could be started, the longest slice counts
        self._beat: Beat | None = None
        self._restore_collections = _nothing
        self._start_slice()

    def begin(self, since: float | None = None) -> Pace:
        """Measure from now on; *since* is when the work began. Until now no beat noted who waited."""
        self._unmeasured_s = 0.0 if since is None else time.monotonic() - since
        self._restore_collections = postpone_full_collections()
        self._beat = Beat()
        if not self._beat.start():
            self._beat = None
        self._start_slice()
        return self

    def end(self) -> None:
        """The measurement is complete, and its thread has ended. May be called again."""
        self.mark()
        self._restore_collections()
        self._restore_collections = _nothing
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.end()
            self._latest_s = beat.latest_s

    @property
    def waited_s(self) -> float:
        """The longest time for which another thread waited for the work; known after :meth:`end`."""
        return max(self._unmeasured_s, min(self._latest_s, self.longest_s))

    def __call__(self) -> bool:
        if time.monotonic() - self._since < self._work_s:
            return False
        self.mark()
        time.sleep(self._rest_s)
        self._start_slice()
        return self._since > self.until

    def mark(self) -> bool:
        """End a slice without a rest, where a rest would delay the freeing of memory.

        Other threads still get the interpreter, after Python's switch interval of five milliseconds.
        """
        self.slices += 1
        self.worked_s += time.thread_time() - self._since_cpu
        self.longest_s = max(self.longest_s, time.monotonic() - self._since)
        self._start_slice()
        return False

    def resume(self) -> None:
        """The time since the last slice was spent waiting for vram, without the interpreter."""
        self._start_slice()

    def _start_slice(self) -> None:
        self._since, self._since_cpu = time.monotonic(), time.thread_time()


def postpone_full_collections() -> Callable[[], None]:
    """From now on no automatic collection reads all objects; returns what ends that.

    What we allocate would bring it about, and all threads would wait for it (49 ms with PyTorch alone, H200).
    Young objects are collected as before. A program that sets the thresholds itself meanwhile keeps its own.
    """
    before = gc.get_threshold()
    ours = (before[0], before[1], _NEVER)
    gc.set_threshold(*ours)

    def restore() -> None:
        if gc.get_threshold() == ours:
            gc.set_threshold(*before)

    return restore


def _nothing() -> None:
    """What is called where nothing is to be restored."""


def no_rest() -> bool:
    """The pace of a program that searches its own heap."""
    return False
