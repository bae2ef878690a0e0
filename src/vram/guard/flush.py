"""``vram.flush()``: release everything that is held by accident, and report what stayed and why."""

from __future__ import annotations

import gc as collector
import os
import sys
import threading
import time
from typing import Any

from msgspec import Struct

from vram.guard.cuda_errors import BrokenContext
from vram.guard.driver import is_capturing
from vram.guard.live import (
    Live,
    check_budget,
    check_device,
    headline,
    live_html,
    live_in,
    live_lines,
    terminal_width,
    uncounted,
    wrap,
)
from vram.guard.memory import (
    DeviceMemory,
    cuda,
    device_memory,
    devices_with_context,
    find_frameworks,
    has_driver,
    objections,
    unreachable_devices,
    warn_no_driver,
)
from vram.payloads import trim
from vram.payloads.arrays.frameworks import may_have_arrays
from vram.payloads.arrays.heap.introspection import inert, lineage
from vram.payloads.arrays.heap.roots import forget_outputs
from vram.payloads.arrays.heap.search import BUDGET_S
from vram.payloads.arrays.inventory import of_types
from vram.payloads.tracked_objects import tracked_objects
from vram.payloads.trim.driver import driver
from vram.units import counted, size

# ---- the report ----

UNREACHABLE = (
    "nothing could be freed from this thread: it cannot enter a CUDA context there. If the program created"
    " one itself (cuCtxCreate, PyCUDA), call vram.flush() in the thread that uses it"
)


class CacheChange(Struct, frozen=True):
    """One framework's memory before and after, by its own count; None where it reports none."""

    name: str
    memory: str
    device: int | None
    before: int | None
    after: int | None

    @property
    def returned(self) -> int:
        return (self.before or 0) - (self.after or 0) if None not in (self.before, self.after) else 0

    def text(self) -> str:
        where = "" if self.device is None else f" on GPU {self.device}"
        kind = "" if self.memory == "device" else f", {self.memory}"
        return f"{self.name}{kind}{where}: {_size(self.before)} → {_size(self.after)}"


class FlushReport(Struct, frozen=True):
    """What :func:`vram.flush` did. ``refused`` says why it did nothing, if it did nothing.

    ``live``: the arrays that are still alive. ``broken``: contexts in which nothing can be freed.
    ``unreachable``: GPUs where this process has memory, in a context that this thread cannot enter.
    ``exceptions_kept``: how many exceptions still hold the variables of their frames; counted only if a
    framework is loaded that can have arrays.
    """

    before: tuple[DeviceMemory, ...] = ()
    after: tuple[DeviceMemory, ...] = ()
    frameworks: tuple[CacheChange, ...] = ()
    dropped: tuple[str, ...] = ()
    collected: int = 0
    exceptions_kept: int = 0
    live: Live = Live(())
    notes: tuple[str, ...] = ()
    broken: tuple[BrokenContext, ...] = ()
    unreachable: tuple[int, ...] = ()
    refused: str = ""
    took_s: float = 0.0

    @property
    def returned(self) -> int:
        """Device memory that was freed, over all GPUs; negative if more was allocated meanwhile."""
        return sum(_returned(one, other) for one, other in zip(self.before, self.after, strict=True))

    @property
    def outside(self) -> int | None:
        """What this process still holds outside every framework: contexts, code, raw allocations."""
        held = [reading.used for reading in self.after]
        if not held or None in held:
            return None
        inside = sum(line.after or 0 for line in self.frameworks if line.memory == "device")
        inside += sum(uncounted(self.live).values())
        return max(0, sum(nbytes for nbytes in held if nbytes is not None) - inside)

    def __repr__(self) -> str:
        return "\n".join(self._lines(terminal_width()))

    def _repr_html_(self) -> str:
        from html import escape

        if self.refused:
            return f"<p>{escape(self.refused)}</p>"
        changes = "".join(f"<li>{escape(line)}</li>" for line in self._changes())
        items = f"<ul>{changes}</ul>" if changes else ""
        alive = live_html(self.live, "still alive: ") if self.live.arrays else ""
        rest = "".join(f"<p>{escape(line)}</p>" for line in self._rest())
        return f"<p><b>{escape(self._summary())}</b></p>{items}{alive}{rest}"

    def _lines(self, width: int | None) -> list[str]:
        if self.refused:
            return wrap(self.refused, width)
        above = [self._summary(), *(f"  {line}" for line in self._changes())]
        if self.live.arrays:
            above.append(f"still alive: {headline(self.live)}")
        lines = [piece for line in above for piece in wrap(line, width)]
        lines += live_lines(self.live, width)
        return [*lines, *(piece for line in self._rest() for piece in wrap(line, width))]

    def _summary(self) -> str:
        if not self.after:
            return "nothing to free: this process holds no GPU memory"
        if self.returned > 0:
            return f"{size(self.returned)} freed: {self._devices()}"
        return f"nothing more to free: {self._devices()}"

    def _devices(self) -> str:
        pairs = zip(self.before, self.after, strict=True)
        return ", ".join(_device_text(one, other) for one, other in pairs)

    def _changes(self) -> list[str]:
        changed = [line.text() for line in self.frameworks if line.returned]
        if self.dropped:
            changed.append(f"dropped: {', '.join(self.dropped)}")
        if self.collected:
            changed.append(f"{counted(self.collected, 'unreachable object')} collected")
        return changed

    def _rest(self) -> list[str]:
        lines = [f"GPU {device}: {UNREACHABLE}" for device in self.unreachable]
        lines += [inert(note) for note in self.notes]
        if self.exceptions_kept:
            whose = "holds its" if self.exceptions_kept == 1 else "hold their"
            kept = counted(self.exceptions_kept, "exception")
            lines.append(f"{kept} elsewhere still {whose} frames' variables")
        if self.outside:
            lines.append(
                f"{size(self.outside)} outside frameworks: the context, loaded code, raw allocations"
            )
        return lines


def _returned(before: DeviceMemory, after: DeviceMemory) -> int:
    if before.used is None or after.used is None:
        return after.free - before.free
    return before.used - after.used


def _device_text(before: DeviceMemory, after: DeviceMemory) -> str:
    if before.used is None or after.used is None:
        return f"GPU {after.device} has {size(after.free)} free, had {size(before.free)}"
    if before.used == after.used:
        return f"GPU {after.device} {size(after.used)} held by this process"
    return f"GPU {after.device} {size(before.used)} → {size(after.used)} held by this process"


def _size(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else size(nbytes)


# ---- the flush ----

CAPTURING = "a CUDA graph is being captured: nothing was touched"
NESTED = "a flush is already running in this thread: nothing was touched"
NO_DRIVER = "no NVIDIA driver answers here: there is nothing to flush"

_one_at_a_time = threading.RLock()
_is_running = [False]


def _renew_lock() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()
    _is_running[0] = False


# In a forked child the thread that held it does not exist.
os.register_at_fork(after_in_child=_renew_lock)


def flush(
    device: int | None = None,
    *,
    tracebacks: bool = True,
    gc: bool = True,
    outputs: bool = False,
    budget_s: float = BUDGET_S,
) -> FlushReport:
    """Release what this process only caches, and report what it still holds and who holds it.

    Waits for the GPU, drops the last exception (with *tracebacks*) and the notebook's outputs (with
    *outputs*), collects garbage (with *gc*), and makes every loaded framework and the driver's pools
    release unused memory. Frameworks cannot do that for one GPU alone; *device* only chooses which one
    is waited for and reported. Nothing is touched while a CUDA graph is captured, or if an earlier error
    broke the context: then nothing can be freed before the process ends.
    """
    if device is not None:
        check_device(device)
    check_budget(budget_s)
    if not has_driver():
        warn_no_driver("vram.flush()")
        return FlushReport(refused=NO_DRIVER)
    with _one_at_a_time:
        if _is_running[0]:
            return FlushReport(refused=NESTED)
        _is_running[0] = True
        try:
            # Even a query of the driver invalidates a graph that another thread captures, unless the
            # calling thread has set the relaxed capture mode (PyTorch 2.11 on an H200).
            with driver.harmless_to_captures():
                return _flush(device, tracebacks, gc, outputs, budget_s)
        finally:
            _is_running[0] = False


def _flush(device: int | None, tracebacks: bool, gc: bool, outputs: bool, budget_s: float) -> FlushReport:
    began = time.perf_counter()
    notes: list[str] = []
    devices = devices_with_context() if device is None else [device]
    if is_capturing():
        return FlushReport(refused=CAPTURING)
    broken = driver.broken()
    if broken:
        return _broken_report(broken, devices)
    frameworks = find_frameworks(notes)
    refused = objections(frameworks)
    if refused:
        return FlushReport(refused="; ".join(refused))
    broken = driver.broken(wait=True, only=device)
    if broken:  # by work that was still running
        return _broken_report(broken, devices)
    before, lines = _read(devices), trim.measured(frameworks, notes)
    may_free = all(each.may_collect() for each in frameworks)
    dropped: list[str] = []
    if tracebacks and may_free:
        dropped += trim.guarded(notes, "kept exceptions", trim.drop_exceptions)
    if outputs and may_free:
        dropped += trim.guarded(notes, "the notebook's outputs", forget_outputs)
    collected = collector.collect() if gc and may_free else 0
    for each in frameworks:
        notes += trim.guarded(notes, each.name, each.release)
    after, lines_after = _read(devices), trim.measured(frameworks, notes)
    heap: list[object] = tracked_objects() if may_have_arrays() else []
    types = set(map(type, heap))
    return FlushReport(
        before=before,
        after=after,
        frameworks=_changes(lines, lines_after),
        dropped=tuple(dropped),
        collected=collected,
        exceptions_kept=_exceptions_kept(heap, types),
        live=live_in(heap, device, budget_s, types) if cuda() is not None else Live(()),
        notes=tuple(dict.fromkeys(notes)),
        unreachable=tuple(each for each in unreachable_devices() if each in devices),
        took_s=time.perf_counter() - began,
    )


def _broken_report(broken: dict[int | None, int], devices: list[int]) -> FlushReport:
    """Nothing can be freed in a broken context, and some libraries abort the program if told to try."""
    held = _read(devices)
    used = {each.device: each.used for each in held}
    contexts = tuple(BrokenContext(device, code) for device, code in broken.items())
    texts = []
    for each in contexts:
        nbytes = None if each.device is None else used.get(each.device)
        texts.append(each.sentence(f"its {size(nbytes)}" if nbytes else "its memory"))
    return FlushReport(before=held, after=held, broken=contexts, refused="; ".join(texts))


def _read(devices: list[int]) -> tuple[DeviceMemory, ...]:
    return tuple(reading for reading in map(device_memory, devices) if reading is not None)


def _changes(before: dict[Any, Any], after: dict[Any, Any]) -> tuple[CacheChange, ...]:
    return tuple(
        CacheChange(line["name"], line["memory"], line["device"], line["held"], after.get(key, line)["held"])
        for key, line in before.items()
    )


def _exceptions_kept(heap: list[object], types: set[type]) -> int:
    """How many exceptions, other than those being handled, still hold the frames they passed through."""
    found = of_types(heap, {kind for kind in types if BaseException in lineage(kind)})
    raised: dict[int, Any] = getattr(sys, "_current_exceptions", dict)()
    handled = {id(each[1] if type(each) is tuple else each) for each in raised.values()}
    traceback = BaseException.__dict__["__traceback__"].__get__
    return sum(1 for each in found if id(each) not in handled and traceback(each) is not None)
