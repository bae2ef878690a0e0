"""Starts the recorder inside a live process, and writes down which arrays it has by then, by name.

A trace has no lines for what was allocated before it. What the program itself calls those arrays is found as
`vram inside` finds it, right after recording began, and handed over as the blob ``arrays``.
"""

from __future__ import annotations

import json
import time
import zlib
from contextlib import ExitStack
from ctypes import c_uint64
from typing import Any

from .. import inside
from ..pace import Pace
from ..trim.driver import driver
from . import control

FORM = 1
BUDGET_S = 2.0
"""Of processor time: a program with millions of objects has fewer names then."""
SHARE = 0.5
"""Of the time until the deadline, at most: vram waits for the answer."""
MAX_ARRAYS, MAX_BYTES = 50_000, 8 << 20


def answer(request: dict[str, Any], pace: Pace) -> dict[str, Any]:
    """As :func:`control.answer`. The time that recording lasts begins when the names are known."""
    begun = control.answer({**request, "for_s": None}, pace)
    if begun["outcome"] != "recording":
        return begun
    recorder = control.recorder_here()
    if recorder is None:
        return begun
    try:
        data = described(request, pace)
        if data:
            recorder.library.vram_tracer_blob(b"arrays", data, c_uint64(len(data)))
    except Exception:  # a framework that is built differently: its arrays have no names then
        pass
    if request.get("for_s"):
        control.stop_later(recorder, float(request["for_s"]))
    return begun


def described(request: dict[str, Any], pace: Pace) -> bytes:
    """The blob; empty where there are no arrays."""
    now = time.monotonic()
    pace.until = now + (request["until"] - now) * SHARE
    with ExitStack() as stack:
        stack.enter_context(driver.harmless_to_captures())
        devices = driver.devices()
        if not devices:
            return b""
        # This thread has no context, and the driver answers some calls only inside one.
        stack.enter_context(driver.inside(devices[0]))
        reading = inside.read_arrays(min(BUDGET_S, pace.until - now), 0, pace, [])
        groups = inside.grouped(reading, pace)
    frameworks: dict[str, int] = {}
    names: list[str] = []
    arrays: list[list[int]] = []
    for key, members in groups:
        framework, device, _, _, nbytes, _, is_shared, _, stem = key
        if is_shared or len(arrays) >= MAX_ARRAYS:
            continue
        number = frameworks.setdefault(framework, len(frameworks))
        place = -1 if device is None else device
        arrays += [[pointer, nbytes, place, number, len(names)] for _, pointer in members]
        names.append(inside.group_name(stem, members))
    if not arrays:
        return b""
    content: dict[str, Any] = {"form": FORM, "wall_ns": time.time_ns(), "frameworks": list(frameworks)}
    content.update(names=names, arrays=arrays[:MAX_ARRAYS])
    text = json.dumps(content, separators=(",", ":")).encode("utf-8", "replace")
    return zlib.compress(text, 1) if len(text) <= MAX_BYTES else b""
