"""A piece of work with a bound and a promise: what it gains on the GPU it gives back.

    with vram.scope("epoch", leak="raise", limit="8GiB") as s:
        ...

What counts is device memory of this process, also what no framework knows. Where no driver
is loaded, a scope costs a microsecond or two and does nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import TIMEOUT_MAX
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar
from weakref import WeakMethod

from vram.errors import LeakDetected, LeakWarning, LimitExceeded, UsageError
from vram.guard import footprint
from vram.guard.footprint import NOTHING, OUTSIDE, Footprint, driver_is_loaded
from vram.guard.scope_tree import Crowd, Place
from vram.units import parse_size, size

if TYPE_CHECKING:
    from vram.guard.baseline import Known
    from vram.guard.leak_check import Baseline
    from vram.guard.limits import Undo, Watcher
    from vram.model.leak import Gain, Leak

OnLeak = Literal["raise", "warn", "report"]
MODES = ("raise", "warn", "report")
NOT_THE_LAST = "other scopes ran at the same time: the last of them to end is settled for all"
NOT_ITS_OWN = "scopes outside the one around it ran at the same time: what it gained could not be judged here"

T = TypeVar("T")


class Scope:
    """Made by :func:`scope`. After its end ``leak`` is the account of what it kept, or None."""

    place: Place | None = None

    def __init__(
        self,
        name: str,
        *,
        leak: OnLeak = "warn",
        limit: str | int | None = None,
        tolerance: str | int | None = None,
        zero_on_exit: bool = False,
        thread: bool = False,
        every_s: float | None = None,
        track: bool | None = None,
    ) -> None:
        if leak not in MODES:
            raise UsageError(f"leak={leak!r} is none of {', '.join(MODES)}", hint='write leak="raise"')
        if every_s is not None:
            _check_watch(every_s, limit)
        self.name = name
        self.limit = None if limit is None else nbytes_of(limit, "limit")
        self.leak: Leak | None = None
        self.notes: list[str] = []
        self.peak: int | None = None
        self.remark = ""  # goes with every leak
        self._mode = leak
        self._tolerance = None if tolerance is None else nbytes_of(tolerance, "tolerance")
        self._zero_on_exit, self._thread, self._every_s, self._track = zero_on_exit, thread, every_s, track
        self._before: Footprint = NOTHING
        self._baseline: Baseline | None = None
        self._caps: list[Undo] = []
        self._watcher: Watcher | None = None
        self._has_ended = False

    def __repr__(self) -> str:
        state = "open" if self.place is not None else "closed" if self._has_ended else "new"
        return f"<vram.scope {self.name!r}, {state}>"

    # ---- while it is open ----

    def gained(self) -> int:
        """Device memory of this process beyond what it had at the beginning, caches included."""
        return sum(footprint.charges()[0].values()) - self._before.total if driver_is_loaded() else 0

    def keep(self, value: T) -> T:
        """Say that the GPU arrays in *value* are meant to outlive the scope; returns *value*."""
        if self.place is not None and driver_is_loaded():
            crowd = self.place.crowd
            # What was there before was not gained.
            crowd.kept.add(value, but=crowd.known)
        return value

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Left without its exit: a watcher's interruption can hit the very call of __exit__.
        if self.place is not None and not is_finalizing():
            self.place.abandon()
            self._uncap()

    # ---- as a context manager ----

    def __enter__(self) -> Scope:
        return self._begin(interrupts=True)

    async def __aenter__(self) -> Scope:
        # An interruption from outside would hit whichever task runs in the thread just then.
        return self._begin(interrupts=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        # While Python is taken apart, generators are closed: there is nobody left to tell, or to ask.
        if not is_finalizing():
            self._finish(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _begin(self, *, interrupts: bool) -> Scope:
        if self.place is not None:
            raise UsageError(f"scope {self.name!r} is open already", hint="make one scope for each use")
        _warn_without_driver()
        self.leak, self.notes, self.peak = None, [], None
        self.place = Place(self.name, self._look_at_what_lives)
        self._before = self.place.before
        if self.limit is not None:
            self._bound(self.limit, interrupts)
        return self

    def _look_at_what_lives(self) -> Known | None:
        from vram.guard.leak_check import Baseline

        self._baseline = Baseline.take(self.name, wanted=self._track)
        return self._baseline.known

    def _bound(self, limit: int, interrupts: bool) -> None:
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
        place, self.place = self.place, None
        if place is None:
            raise UsageError(f"scope {self.name!r} is not open", hint="use it by `with`")
        self._has_ended = True
        crowd = place.leave()
        self._uncap()
        exceeded = self._exceeded(peak, error)
        if not driver_is_loaded():
            return
        if error is not None and self._is_broken(error):
            self._forget_baseline()
            self._tell(error, exceeded)
            return
        if error is not None:
            self._relieve(error)
        if crowd is None:
            self.notes.append(NOT_ITS_OWN if place.crowd.is_mixed else NOT_THE_LAST)
        elif error is None or isinstance(error, Exception):
            self._settle(crowd)
        self._forget_baseline()
        if self._saw_broken():
            self._tell(error, exceeded)
            return
        if self._zero_on_exit:
            from vram.guard.erase import erase_caches

            self.notes += erase_caches()
        if self._thread:
            from vram.guard.leak_check import let_caches_go

            let_caches_go()
        self._tell(error, exceeded)

    def _stop_watching(self) -> int:
        """No interruption comes after this; returns the most that was seen."""
        watcher = self._watcher
        if watcher is None:
            return 0
        from vram.guard.limits import StoppedByWatcher

        try:
            watcher.stop()
        except StoppedByWatcher:  # it struck while we were on our way to stop it
            watcher.stop()
        self._watcher = None
        return watcher.peak

    def _uncap(self) -> None:
        while self._caps:
            self._caps.pop()()

    def _exceeded(self, peak: int, error: BaseException | None) -> int | None:
        """How much was gained, where that is more than the limit."""
        if self.limit is None:
            return None
        self.peak = max(self.gained(), peak)
        if isinstance(error, LimitExceeded) and error.gained is None:
            error.args, error.gained = (self._over(self.peak),), self.peak
        return self.peak if self.peak > self.limit else None

    def _forget_baseline(self) -> None:
        if self._baseline is not None:
            self._baseline.close()
            self._baseline = None

    def _is_broken(self, error: BaseException) -> bool:
        """Say on *error* where it left a broken context: nothing can be freed, erased or judged in it."""
        from vram.guard.cuda_errors import broken_contexts, note

        broken = broken_contexts(error)
        self.notes += [each.sentence() for each in broken]
        note(error, broken)
        return bool(broken)

    def _saw_broken(self) -> bool:
        """Warn where the readings at the end met a broken context, whose error somebody swallowed."""
        from vram.guard.cuda_errors import seen_broken

        texts = [each.sentence() for each in seen_broken()]
        if texts:
            self.notes += texts
            _warn(f"scope {self.name!r}: {'; '.join(texts)}", RuntimeWarning)
        return bool(texts)

    def _relieve(self, error: BaseException) -> None:
        """Let the frames of *error* go of the GPU's memory, so that a next try finds room."""
        from vram.guard.cuda_errors import is_out_of_memory, let_go, let_go_of_arrays
        from vram.guard.oom import noticed

        if not isinstance(error, Exception):
            return
        if self._thread or is_out_of_memory(error):
            noticed(error)
            let_go(error)
        else:
            let_go_of_arrays(error)

    def _settle(self, crowd: Crowd) -> None:
        from vram.guard.leak_check import leak_of

        leak, notes = leak_of(
            tuple(crowd.names), crowd.before, tolerance=self._tolerance, kept_on_purpose=crowd.kept.nbytes
        )
        self.notes += notes
        if leak is not None:
            from msgspec.structs import replace

            from vram.guard.leak_check import named

            leak = replace(leak, notes=(*leak.notes, self.remark)) if self.remark else leak
            self.leak = named(leak, crowd.known)

    def _tell(self, error: BaseException | None, exceeded: int | None) -> None:
        text = describe(self.leak) if self.leak is not None else None
        if error is not None:
            # The body's own error comes first: ours is only a remark on it.
            if text is not None:
                error.add_note(f"vram: {text}")
            return
        if exceeded is not None:
            raise LimitExceeded(
                self._over(exceeded) + (f"\n{text}" if text else ""),
                hint="shrink the work, or raise the limit",
                gained=exceeded,
            )
        if self.leak is None or text is None:
            return
        if self._mode == "raise":
            raise LeakDetected(text, hint=HINT, leak=self.leak)
        if self._mode == "warn":
            _warn(text, LeakWarning)

    def _over(self, gained: int) -> str:
        limit = size(self.limit or 0)
        return f"scope {self.name!r} gained {size(gained)} of device memory; its limit is {limit}"


def _warn(text: str, kind: type[Warning]) -> None:
    import warnings

    from vram.guard.memory import levels_to_caller

    warnings.warn(text, kind, stacklevel=levels_to_caller())


HINT = "let go of what is named above, or s.keep(...) what is meant to stay"


def describe(leak: Leak) -> str:
    """The account in words: how much, where, which objects and who keeps them."""
    who = " or ".join(map(repr, leak.names[:4])) + (" or others" if len(leak.names) > 4 else "")
    lines = [f"scope {who} kept {size(leak.nbytes)} of device memory"]
    lines += [
        f"  {where_gained(gain, leak)}: {size(gain.nbytes)} more in use than at the beginning"
        for gain in leak.gains
    ]
    lines += [f"  {kept.what}, {size(kept.nbytes)}: {kept.keeper}" for kept in leak.kept]
    lines += [f"  note: {note}" for note in leak.notes]
    return "\n".join(lines)


def where_gained(gain: Gain, leak: Leak) -> str:
    """Where it was gained. Some frameworks keep no count of their arrays: theirs is the driver's."""
    return "by the driver's count" if gain.where == OUTSIDE and leak.kept else gain.where


def nbytes_of(value: str | int, what: str) -> int:
    """Read a size given as text or as a number of bytes; anything else is a usage error."""
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(
            f"{what}={value!r} is not a size", hint='write it like "8GiB", or as a number of bytes'
        )
    return value


def _check_watch(every_s: object, limit: object) -> None:
    is_number = isinstance(every_s, int | float) and not isinstance(every_s, bool)
    if not is_number or not 0 < every_s <= TIMEOUT_MAX:  # type: ignore[operator]
        raise UsageError(f"every_s={every_s!r} is no time to wait", hint="write every_s=0.05")
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
    """Hold a piece of work to giving back what it gains on the GPU; for ``with`` and ``async with``.

    *leak*: what to do about device memory that is kept: "raise" LeakDetected, "warn", or only
    "report" it in ``.leak``. *limit*: what may be gained at most. PyTorch and CuPy are bound to it
    and refuse what would pass it; for all other memory it is checked at the end, and with
    *every_s* also every so many seconds by a thread that interrupts the scope. *tolerance*: what
    may be kept; left out, code that loads at first use is forgiven once. *thread*: caches go back
    to the driver too, as when a thread ends. *zero_on_exit*: what lies in caches is overwritten
    with zeros. *track*: whether to look at the beginning which arrays live, so that new ones can be
    told at the end; left out, as long as that costs less than 1 % of the scope's time.
    """
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is no name for a scope", hint='write scope("epoch")')
    return Scope(
        name,
        leak=leak,
        limit=limit,
        tolerance=tolerance,
        zero_on_exit=zero_on_exit,
        thread=thread,
        every_s=every_s,
        track=track,
    )


_looked_for_driver = False


def _warn_without_driver() -> None:
    """Say once that there is nothing to measure, told without loading anything."""
    global _looked_for_driver
    if _looked_for_driver:
        return
    _looked_for_driver = True
    signs = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
    if not (driver_is_loaded() or "VRAM_VIRTUAL_GPU" in os.environ or any(map(os.path.exists, signs))):
        from vram.guard.memory import say_no_driver

        say_no_driver("vram.scope")
