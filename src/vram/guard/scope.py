"""``vram.scope``: work that must free the GPU memory that it gains, with an optional limit.

    with vram.scope("epoch", leak="raise", limit="8GiB") as s:
        ...

What counts is device memory of this process, including what no framework accounts for. Where no
driver is loaded, a scope costs a microsecond or two and does nothing.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from threading import TIMEOUT_MAX
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar
from weakref import WeakMethod

from vram.errors import LeakDetected, LeakWarning, LimitExceeded, UsageError
from vram.guard.memory import (
    NOTHING,
    OUTSIDE,
    Footprint,
    charges,
    driver_is_loaded,
    levels_to_caller,
    warn_no_driver,
)
from vram.guard.scope_tree import Baseline, OverlapGroup, ScopeNode
from vram.python_310 import add_note
from vram.units import read_size, size

if TYPE_CHECKING:
    from vram.guard.leak_check import TimedBaseline
    from vram.guard.limits import Undo, Watcher
    from vram.model.leak import Gain, Leak

OnLeak = Literal["raise", "warn", "report"]
MODES = ("raise", "warn", "report")
NOT_THE_LAST = "other scopes were open at the same time: the last one to close is checked for all of them"
MIXED = "scopes with another parent were open at the same time: memory gained could not be checked here"

T = TypeVar("T")


class Scope:
    """Made by :func:`scope`. After its end ``leak`` says what was not freed; None if all was."""

    _node: ScopeNode | None = None

    def __init__(
        self,
        name: str,
        leak: OnLeak,
        limit: str | int | None,
        tolerance: str | int | None,
        zero_on_exit: bool,
        thread: bool,
        every_s: float | None,
        track: bool | None,
    ) -> None:
        if leak not in MODES:
            raise UsageError(f"leak={leak!r} is none of {', '.join(MODES)}", hint='write leak="raise"')
        if every_s is not None:
            _check_watch(every_s, limit)
        self.name = name
        self.limit = None if limit is None else read_size(limit, "limit")
        self.leak: Leak | None = None
        self.notes: list[str] = []
        self.peak: int | None = None
        self.remark = ""  # added to the notes of every leak
        self._mode = leak
        self._tolerance = None if tolerance is None else read_size(tolerance, "tolerance")
        self._zero_on_exit, self._thread, self._every_s, self._track = zero_on_exit, thread, every_s, track
        self._before: Footprint = NOTHING
        self._baseline: TimedBaseline | None = None
        self._caps: list[Undo] = []
        self._watcher: Watcher | None = None
        self._has_ended = False
        self.keeps = False  # whether something was declared to outlive it

    def __repr__(self) -> str:
        state = "open" if self._node is not None else "closed" if self._has_ended else "new"
        return f"<vram.scope {self.name!r}, {state}>"

    # ---- while it is open ----

    def gained(self) -> int:
        """Device memory of this process beyond what it had at the beginning, caches included."""
        return sum(charges()[0].values()) - self._before.total if driver_is_loaded() else 0

    def keep(self, value: T) -> T:
        """Declare that the GPU arrays in *value* outlive the scope; returns *value*."""
        if self._node is not None and driver_is_loaded():
            group = self._node.group
            self.keeps = True
            # What existed before was not gained.
            group.kept.add(value, but=group.baseline)
        return value

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Dropped without its exit: a watcher's interrupt can hit the very call of __exit__.
        if self._node is not None and not is_finalizing():
            self._node.abandon()
            self._remove_caps()

    # ---- as a context manager ----

    def __enter__(self) -> Scope:
        return self._begin(interrupts=True)

    async def __aenter__(self) -> Scope:
        # An interrupt from outside would hit whichever task runs in the thread at that moment.
        return self._begin(interrupts=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        # While the interpreter shuts down, generators are closed: nothing can be reported or measured.
        if not is_finalizing():
            self._finish(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _begin(self, *, interrupts: bool) -> Scope:
        if self._node is not None:
            raise UsageError(f"scope {self.name!r} is already open", hint="make one scope for each use")
        _warn_without_driver()
        self.leak, self.notes, self.peak = None, [], None
        self._node = ScopeNode(self.name, self._read_baseline)
        self._before = self._node.before
        if self.limit is not None:
            self._apply_limit(self.limit, interrupts)
        return self

    def _read_baseline(self) -> Baseline | None:
        from vram.guard.leak_check import TimedBaseline

        self._baseline = TimedBaseline(self.name, wanted=self._track)
        return self._baseline.arrays

    def _apply_limit(self, limit: int, interrupts: bool) -> None:
        if driver_is_loaded():
            from vram.guard.limits import cap

            self._caps = cap(limit)
        if self._every_s is not None:
            from vram.guard.limits import Watcher

            self._watcher = Watcher(WeakMethod(self.gained), limit, self._every_s, interrupts=interrupts)
            self._watcher.start()

    # ---- its end ----

    def _finish(self, error: BaseException | None) -> None:
        peak = self._stop_watching()
        node, self._node = self._node, None
        if node is None:
            raise UsageError(f"scope {self.name!r} is not open", hint="use it with `with`")
        self._has_ended = True
        group = node.leave()
        self._remove_caps()
        exceeded = self._exceeded(peak, error)
        if not driver_is_loaded():
            return
        if error is not None and self._note_broken(error):
            self._close_baseline()
            self._report(error, exceeded)
            return
        if error is not None:
            self._clear_frames(error)
        if group is None:
            from vram.model.leak import ScopeNote

            self.notes.append(ScopeNote.of("mixed", MIXED) if node.group.is_mixed else NOT_THE_LAST)
        elif error is None or isinstance(error, Exception):
            self._check_leak(group)
        self._close_baseline()
        if not self._warn_broken():
            self._clean_caches()
        self._report(error, exceeded)

    def _clean_caches(self) -> None:
        if self._zero_on_exit:
            from vram.guard.erase import erase_caches

            self.notes += erase_caches()
        if self._thread:
            from vram.guard.leak_check import release_caches

            release_caches()

    def _stop_watching(self) -> int:
        """After this no interrupt comes any more; returns the highest gain that the watcher measured."""
        watcher = self._watcher
        if watcher is None:
            return 0
        from vram.guard.limits import StoppedByWatcher

        try:
            watcher.stop()
        except StoppedByWatcher:  # the interrupt arrived during this very call
            watcher.stop()
        self._watcher = None
        return watcher.peak

    def _remove_caps(self) -> None:
        while self._caps:
            self._caps.pop()()

    def _exceeded(self, peak: int, error: BaseException | None) -> int | None:
        """What was gained at most, if that is more than the limit."""
        if self.limit is None:
            return None
        self.peak = max(self.gained(), peak)
        if isinstance(error, LimitExceeded) and error.gained is None:
            error.args, error.gained = (self._over_limit(self.peak),), self.peak
        return self.peak if self.peak > self.limit else None

    def _close_baseline(self) -> None:
        if self._baseline is not None:
            self._baseline.close()
            self._baseline = None

    def _note_broken(self, error: BaseException) -> bool:
        """Add a note to *error* if it broke a context: nothing can be freed, erased or checked in one."""
        from vram.guard.cuda_errors import add_broken_notes, broken_contexts

        broken = broken_contexts(error)
        self.notes += [each.sentence() for each in broken]
        add_broken_notes(error, broken)
        return bool(broken)

    def _warn_broken(self) -> bool:
        """Warn if the measurements at the end met a broken context; its own error was caught elsewhere."""
        from vram.guard.cuda_errors import observed_broken_contexts

        texts = [each.sentence() for each in observed_broken_contexts()]
        if texts:
            self.notes += texts
            text = f"scope {self.name!r}: {'; '.join(texts)}"
            warnings.warn(text, RuntimeWarning, stacklevel=levels_to_caller())
        return bool(texts)

    def _clear_frames(self, error: BaseException) -> None:
        """Clear the arrays from the frames of *error*, so that their memory is free for the next try."""
        from vram.guard.cuda_errors import clear_frames, clear_frames_with_arrays, is_out_of_memory
        from vram.guard.oom import record_oom

        if not isinstance(error, Exception):
            return
        if self._thread or is_out_of_memory(error):
            record_oom(error)
            clear_frames(error)
        else:
            clear_frames_with_arrays(error)

    def _check_leak(self, group: OverlapGroup) -> None:
        from vram.guard.leak_check import check_leak, with_holders

        names, kept = tuple(group.names), group.kept.nbytes
        leak, notes = check_leak(names, group.before, tolerance=self._tolerance, kept_nbytes=kept)
        self.notes += notes
        if leak is not None:
            from msgspec.structs import replace

            leak = replace(leak, notes=(*leak.notes, self.remark)) if self.remark else leak
            self.leak = with_holders(leak, group.baseline)

    def _report(self, error: BaseException | None, exceeded: int | None) -> None:
        text = describe(self.leak) if self.leak is not None else None
        if error is not None:
            # The body's own error stays the error: the leak is a note on it.
            if text is not None:
                add_note(error, f"vram: {text}")
            return
        if exceeded is not None:
            raise LimitExceeded(
                self._over_limit(exceeded) + (f"\n{text}" if text else ""),
                hint="shrink the work, or raise the limit",
                gained=exceeded,
            )
        if self.leak is None or text is None:
            return
        if self._mode == "raise":
            raise LeakDetected(text, hint=HINT, leak=self.leak)
        if self._mode == "warn":
            warnings.warn(text, LeakWarning, stacklevel=levels_to_caller())

    def _over_limit(self, gained: int) -> str:
        limit = size(self.limit or 0)
        return f"scope {self.name!r} gained {size(gained)} of device memory; its limit is {limit}"


HINT = "release what is listed above, or s.keep(...) what is meant to stay"


def describe(leak: Leak) -> str:
    """The leak as text: how much, where, which arrays and who holds them."""
    from vram.guard.live import equal_arrays, multiplied

    who = " or ".join(map(repr, leak.names[:4])) + (" or others" if len(leak.names) > 4 else "")
    lines = [f"scope {who} kept {size(leak.nbytes)} of device memory"]
    lines += [
        f"  {where_gained(gain, leak)}: {size(gain.nbytes)} more in use than at the start"
        for gain in leak.gains
    ]
    groups = leak.groups or equal_arrays(leak.arrays)
    lines += [f"  {group.what}, {multiplied(group)}: {group.holder}" for group in groups]
    lines += [f"  note: {note}" for note in leak.notes]
    return "\n".join(lines)


def where_gained(gain: Gain, leak: Leak) -> str:
    """Where it was gained. Some frameworks do not count their arrays: the driver's figure counts them."""
    return "according to the driver" if gain.where == OUTSIDE and leak.arrays else gain.where


def _check_watch(every_s: object, limit: object) -> None:
    is_number = isinstance(every_s, int | float) and not isinstance(every_s, bool)
    if not is_number or not 0 < every_s <= TIMEOUT_MAX:  # type: ignore[operator]
        raise UsageError(f"every_s={every_s!r} is not a number of seconds", hint="write every_s=0.05")
    if limit is None:
        raise UsageError("every_s= without limit= has nothing to watch", hint='write limit="8GiB" too')


def scope(
    name: str = "scope",
    *,
    leak: OnLeak = "warn",
    limit: str | int | None = None,
    tolerance: str | int | None = None,
    zero_on_exit: bool = False,
    thread: bool = False,
    every_s: float | None = None,
    track: bool | None = None,
) -> Scope:
    """Check that a piece of work frees the GPU memory that it gains; for ``with`` and ``async with``.

    *leak*: what to do about device memory that is not freed: "raise" LeakDetected, "warn", or only
    "report" it in ``.leak``. *limit*: how much may be gained, as "8GiB" or ``8 * vram.GiB``. PyTorch and
    CuPy refuse allocations that would exceed it; other memory is checked at the end, and with *every_s*
    also every so many seconds by a thread that interrupts the scope. *tolerance*: how much may stay; left
    out, code that loads at first use is tolerated once. *thread*: caches are released to the driver
    too, as when a thread ends. *zero_on_exit*: unused memory in caches is overwritten with zeros. *track*:
    whether to read at the beginning which arrays exist, so that new ones can be named at the end; left
    out, it is done as long as it costs less than 1 % of the scope's time.
    """
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is not a name for a scope", hint='write scope("epoch")')
    return Scope(name, leak, limit, tolerance, zero_on_exit, thread, every_s, track)


_searched_driver = False


def _warn_without_driver() -> None:
    """Warn once that there is nothing to measure. Finding that out loads nothing."""
    global _searched_driver
    if _searched_driver:
        return
    _searched_driver = True
    signs = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
    if not (driver_is_loaded() or "VRAM_VIRTUAL_GPU" in os.environ or any(map(os.path.exists, signs))):
        warn_no_driver("vram.scope")
