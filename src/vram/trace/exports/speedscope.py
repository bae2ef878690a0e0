"""A trace for speedscope (speedscope.app): flame graphs of bytes at the peak, never freed, and in all.

Format: https://www.speedscope.app/file-format-schema.json, profiles of type "sampled" in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, BinaryIO

from vram.model.trace import ON_GPU, Frame, Site, TraceView, stack_of
from vram.trace.exports import text

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
# The largest number that JavaScript counts without gaps.
_MAX_LINE_NUMBER = 2**53 - 1


def write(view: TraceView, stream: BinaryIO) -> None:
    """Write the flame graphs of *view* as one JSON object."""
    frames = _Frames()
    groups: dict[str, Iterable[Site]] = {
        "live at the peak": view.peak,
        "never freed": [leak.site for leak in view.leaks],
        "allocated in all": view.allocations,
    }
    profiles = [
        _profile(name, [site for site in sites if site.kind in ON_GPU], view, frames)
        for name, sites in groups.items()
    ]
    for use in view.frameworks:
        if not use.sites:
            continue
        gpu = "unknown GPU" if use.gpu is None else f"GPU {use.gpu}"
        title = f"{text(use.framework)}'s blocks at the {use.at}, {gpu}"
        profiles.append(_profile(title, use.sites, view, frames))
    contents = {
        "$schema": _SCHEMA,
        "exporter": "vram",
        "name": text(", ".join(view.paths)),
        "activeProfileIndex": 0,
        "shared": {"frames": frames.listed},
        "profiles": profiles,
    }
    stream.write(json.dumps(contents, separators=(",", ":")).encode())


class _Frames:
    """Each place once, by number."""

    def __init__(self) -> None:
        self._numbers: dict[Frame | None, int] = {}
        self.listed: list[dict[str, Any]] = []

    def number(self, frame: Frame | None) -> int:
        found = self._numbers.get(frame)
        if found is None:
            found = self._numbers[frame] = len(self.listed)
            self.listed.append(_describe(frame))
        return found


def _describe(frame: Frame | None) -> dict[str, Any]:
    if frame is None:
        return {"name": "no stack was recorded"}
    described: dict[str, Any] = {"name": text(frame.function) or "?", "file": text(frame.file)}
    if frame.has_line:
        described["line"] = min(frame.line, _MAX_LINE_NUMBER)
    return described


def _profile(name: str, sites: Iterable[Site], view: TraceView, frames: _Frames) -> dict[str, Any]:
    samples, weights = [], []
    for site in sites:
        outermost_first = reversed(stack_of(view, site.stack).frames)
        samples.append([frames.number(frame) for frame in outermost_first] or [frames.number(None)])
        weights.append(min(site.nbytes, _MAX_LINE_NUMBER))
    return {
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
