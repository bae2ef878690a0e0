"""``vram.flush()``: let go of everything that is kept by accident, and say what stayed and why."""

from __future__ import annotations

import gc as collector
import os
import sys
import threading
import time
from typing import Any

from vram.guard.broken import BrokenContext
from vram.guard.capture import is_capturing
from vram.guard.flushed import CacheChange, Flushed
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
from vram.payloads import trim
from vram.payloads.arrays.frameworks import may_have_arrays
from vram.payloads.arrays.heap import cells
from vram.payloads.arrays.heap.chains import BUDGET_S
from vram.payloads.arrays.heap.peek import lineage
from vram.payloads.arrays.inventory import of_types
from vram.payloads.trim.driver import driver
from vram.payloads.trim.frameworks import FRAMEWORKS
from vram.units import size

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
    dropped = trim.guarded(notes, "kept exceptions", trim.drop_exceptions) if tracebacks else []
    if outputs:
        dropped += trim.guarded(notes, "the notebook's outputs", cells.forget_outputs)
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
