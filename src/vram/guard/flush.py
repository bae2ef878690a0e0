"""DOC"""

from __future__ import annotations

import gc as collector
import os
import sys
import threading
import time
from typing import Any

from msgspec import Struct

from vram.guard.cuda_errors import BrokenContext
from vram.guard.graph_capture import is_capturing
from vram.guard.live import Live, check_budget, check_device, survey
from vram.guard.memory import (
    DeviceMemory,
    awake_devices,
    cuda,
    device_memory,
    has_driver,
    say_no_driver,
    unentered_devices,
)
from vram.guard.tables import headline, live_html, live_lines, terminal_width, wrapped
from vram.payloads import trim
from vram.payloads.arrays.frameworks import may_have_arrays
from vram.payloads.arrays.heap.introspection import inert, lineage
from vram.payloads.arrays.heap.roots import forget_outputs
from vram.payloads.arrays.heap.search import BUDGET_S
from vram.payloads.arrays.inventory import of_types
from vram.payloads.trim import tracebacks as kept_exceptions
from vram.payloads.trim.driver import driver
from vram.payloads.trim.frameworks import FRAMEWORKS
from vram.units import counted, size

# ---- the report ----


# Their own figures are of what they have not handed back yet: what their arrays hold comes on top.
_TELL_ONLY_CACHES = ("Numba", "PyCUDA", "vram.Buffer")


UNENTERED = (
    "nothing could be trimmed from this thread, which can enter no context there. If the program made one "
    "itself (cuCtxCreate, PyCUDA), call vram.flush() in the thread that uses it"
)


class CacheChange(Struct, frozen=True):
    """One framework's memory before and after, by its own count; None where it does not tell."""

    name: str
    memory: str
    device: int | None
    before: int | None
    after: int | None

    @property
    def returned(self) -> int:
        return (self.before or 0) - (self.after or 0) if None not in (self.before, self.after) else 0

    def words(self) -> str:
        where = "" if self.device is None else f" on GPU {self.device}"
        kind = "" if self.memory == "device" else f", {self.memory}"
        return f"{self.name}{kind}{where}: {_size(self.before)} → {_size(self.after)}"


class Flushed(Struct, frozen=True):
    """What :func:`vram.flush` did. ``refused`` says why it did nothing, where that is so.

    ``broken`` contexts cannot be freed from. ``unentered`` are GPUs where this process holds memory in no
    context that this thread can enter. ``exceptions_kept`` still keep the variables of their frames; they
    are counted where anything is loaded that can have arrays.
    """

    before: tuple[DeviceMemory, ...] = ()
    after: tuple[DeviceMemory, ...] = ()
    frameworks: tuple[CacheChange, ...] = ()
    dropped: tuple[str, ...] = ()
    collected: int = 0
    exceptions_kept: int = 0
    stayed: Live = Live(())
    notes: tuple[str, ...] = ()
    broken: tuple[BrokenContext, ...] = ()
    unentered: tuple[int, ...] = ()
    refused: str = ""
    took_s: float = 0.0

    @property
    def returned(self) -> int:
        """Device memory that came back, over all GPUs; less than nothing if more was taken meanwhile."""
        return sum(_returned(one, other) for one, other in zip(self.before, self.after, strict=True))

    @property
    def elsewhere(self) -> int | None:
        """What this process still holds outside every framework: contexts, code, raw allocations."""
        held = [reading.used for reading in self.after]
        if not held or None in held:
            return None
        live = self.stayed.by_framework()
        told = sum(line.after or 0 for line in self.frameworks if line.memory == "device")
        told += sum(live.get(name, 0) for name in _TELL_ONLY_CACHES)
        return max(0, sum(nbytes for nbytes in held if nbytes is not None) - told)

    def __repr__(self) -> str:
        return "\n".join(self._lines(terminal_width()))

    def _repr_html_(self) -> str:
        from html import escape

        if self.refused:
            return f"<p>{escape(self.refused)}</p>"
        changes = "".join(f"<li>{escape(line)}</li>" for line in self._changes())
        items = f"<ul>{changes}</ul>" if changes else ""
        stayed = live_html(self.stayed, "still alive: ") if self.stayed.arrays else ""
        rest = "".join(f"<p>{escape(line)}</p>" for line in self._rest())
        return f"<p><b>{escape(self._summary())}</b></p>{items}{stayed}{rest}"

    def _lines(self, width: int | None) -> list[str]:
        if self.refused:
            return wrapped(self.refused, width)
        above = [self._summary(), *(f"  {line}" for line in self._changes())]
        if self.stayed.arrays:
            above.append(f"still alive: {headline(self.stayed)}")
        lines = [piece for line in above for piece in wrapped(line, width)]
        lines += live_lines(self.stayed, width=width)
        return [*lines, *(piece for line in self._rest() for piece in wrapped(line, width))]

    def _summary(self) -> str:
        if not self.after:
            return "nothing to give back: this process holds no GPU memory"
        if self.returned > 0:
            return f"{size(self.returned)} came back: {self._devices()}"
        return f"nothing more to give back: {self._devices()}"

    def _devices(self) -> str:
        pairs = zip(self.before, self.after, strict=True)
        return ", ".join(_device_words(one, other) for one, other in pairs)

    def _changes(self) -> list[str]:
        changed = [line.words() for line in self.frameworks if line.returned]
        if self.dropped:
            changed.append(f"forgotten: {', '.join(self.dropped)}")
        if self.collected:
            changed.append(f"{counted(self.collected, 'unreachable object')} collected")
        return changed

    def _rest(self) -> list[str]:
        lines = [f"GPU {device}: {UNENTERED}" for device in self.unentered]
        lines += [inert(note) for note in self.notes]
        if self.exceptions_kept:
            whose = "keeps its" if self.exceptions_kept == 1 else "keep their"
            kept = counted(self.exceptions_kept, "exception")
            lines.append(f"{kept} elsewhere still {whose} frames' variables")
        if self.elsewhere:
            lines.append(f"{size(self.elsewhere)} besides: the context, loaded code, what no framework knows")
        return lines


def _returned(before: DeviceMemory, after: DeviceMemory) -> int:
    if before.used is None or after.used is None:
        return after.free - before.free
    return before.used - after.used


def _device_words(before: DeviceMemory, after: DeviceMemory) -> str:
    if before.used is None or after.used is None:
        return f"GPU {after.device} has {size(after.free)} free, had {size(before.free)}"
    if before.used == after.used:
        return f"GPU {after.device} {size(after.used)} held by this process"
    return f"GPU {after.device} {size(before.used)} → {size(after.used)} held by this process"


def _size(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else size(nbytes)


# ---- the flush ----


CAPTURING = "a CUDA graph is being captured: nothing was touched"
NESTED = "a flush is already under way in this thread: nothing was touched"
NO_DRIVER = "no NVIDIA driver answers here: there is nothing to flush"

_one_at_a_time = threading.RLock()
_under_way = [False]


def _forget_lock() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()
    _under_way[0] = False


# A thread that does not exist in the child may have held it.
os.register_at_fork(after_in_child=_forget_lock)


def flush(
    device: int | None = None,
    *,
    tracebacks: bool = True,
    gc: bool = True,
    outputs: bool = False,
    budget_s: float = BUDGET_S,
) -> Flushed:
    """Give back what this process only caches, and report what it still holds and who keeps it.

    Waits for the GPU, forgets the last exception (with *tracebacks*) and the notebook's outputs
    (with *outputs*), collects garbage (with *gc*), and lets every loaded framework and the
    driver's pools let go. Frameworks cannot do that for one GPU alone; *device* only chooses
    which one is waited for and told about. Nothing is touched while a CUDA graph is captured, or
    where an earlier error broke the context: then only ending the process returns its memory.
    """
    if device is not None:
        check_device(device)
    check_budget(budget_s)
    if not has_driver():
        say_no_driver("vram.flush()")
        return Flushed(refused=NO_DRIVER)
    with _one_at_a_time:
        if _under_way[0]:
            return Flushed(refused=NESTED)
        _under_way[0] = True
        try:
            # Even a question to the driver ends a graph that another thread captures, unless the
            # asking thread has said that it is harmless (PyTorch 2.11 on an H200).
            with driver.harmless_to_captures():
                return _flush(device, tracebacks, gc, outputs, budget_s)
        finally:
            _under_way[0] = False


def _flush(device: int | None, tracebacks: bool, gc: bool, outputs: bool, budget_s: float) -> Flushed:
    began = time.perf_counter()
    notes: list[str] = []
    devices = awake_devices() if device is None else [device]
    if is_capturing():
        return Flushed(refused=CAPTURING)
    broken = driver.broken()
    if broken:
        return _given_up(broken, devices)
    frameworks = [each for kind in FRAMEWORKS for each in trim.guarded(notes, kind.name, kind.find)]
    refused = _objections(frameworks)
    if refused:
        return Flushed(refused=refused)
    broken = driver.broken(wait=True, only=device)
    if broken:  # by work that had not been waited for
        return _given_up(broken, devices)
    before, lines = _read(devices), trim.measured(frameworks, notes)
    may_free = all(each.may_collect() for each in frameworks)
    dropped = _drop(notes, tracebacks, outputs) if may_free else []
    collected = collector.collect() if gc and may_free else 0
    for each in frameworks:
        notes += trim.guarded(notes, each.name, each.release)
    after, lines_after = _read(devices), trim.measured(frameworks, notes)
    heap: list[object] = collector.get_objects() if may_have_arrays() else []
    types = set(map(type, heap))
    return Flushed(
        before=before,
        after=after,
        frameworks=_changes(lines, lines_after),
        dropped=tuple(dropped),
        collected=collected,
        exceptions_kept=_exceptions_kept(heap, types),
        stayed=survey(heap, device, budget_s, types) if cuda() is not None else Live(()),
        notes=tuple(dict.fromkeys(notes)),
        unentered=tuple(each for each in unentered_devices() if each in devices),
        took_s=time.perf_counter() - began,
    )


def _objections(frameworks: list[Any]) -> str:
    """Why nothing may be touched. Who cannot tell whether it objects is taken to object."""
    objections: list[str] = []
    for each in frameworks:
        objections += trim.guarded(objections, each.name, each.objections)
    return "; ".join(objections)


def _given_up(broken: dict[int | None, int], devices: list[int]) -> Flushed:
    """Nothing can be freed there, and some libraries abort the program when they are made to try."""
    held = _read(devices)
    used = {each.device: each.used for each in held}
    contexts = tuple(BrokenContext(device, code) for device, code in broken.items())
    words = [each.sentence(_its(used.get(-1 if each.device is None else each.device))) for each in contexts]
    return Flushed(before=held, after=held, broken=contexts, refused="; ".join(words))


def _its(nbytes: int | None) -> str:
    return f"its {size(nbytes)}" if nbytes else "its memory"


def _read(devices: list[int]) -> tuple[DeviceMemory, ...]:
    return tuple(reading for reading in map(device_memory, devices) if reading is not None)


def _drop(notes: list[str], tracebacks: bool, outputs: bool) -> list[str]:
    dropped = trim.guarded(notes, "kept exceptions", kept_exceptions.drop) if tracebacks else []
    if outputs:
        dropped += trim.guarded(notes, "the notebook's outputs", forget_outputs)
    return dropped


def _changes(before: dict[Any, Any], after: dict[Any, Any]) -> tuple[CacheChange, ...]:
    return tuple(
        CacheChange(line["name"], line["memory"], line["device"], line["held"], after.get(key, line)["held"])
        for key, line in before.items()
    )


def _exceptions_kept(heap: list[object], types: set[type]) -> int:
    """How many exceptions, beyond those in flight, still keep the frames that they passed through."""
    found = of_types(heap, {kind for kind in types if BaseException in lineage(kind)})
    raised: dict[int, Any] = getattr(sys, "_current_exceptions", dict)()
    flying = {id(each[1] if type(each) is tuple else each) for each in raised.values()}
    traceback = BaseException.__dict__["__traceback__"].__get__
    return sum(1 for each in found if id(each) not in flying and traceback(each) is not None)
