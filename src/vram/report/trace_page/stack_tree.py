"""Call stacks as a tree, so that the page has every frame and every text once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vram.model.trace import Frame
from vram.report.trace_page.packages import package
from vram.report.trace_page.phrases import shortened
from vram.report.trace_places import NO_STACK, function_name

DEEPEST = 256

NO_FRAMES = Frame("native", NO_STACK, "", 0)
SMALLER = Frame("native", "smaller places, together", "", 0)
OUTER = Frame("native", "outer frames, left out", "", 0)


class StackTree:
    """Stacks, frames and texts, each written once. A node's parent comes before it."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.frames: dict[Frame, int] = {}
        self.nodes: dict[tuple[int, int], int] = {}

    def add(self, frames: tuple[Frame, ...]) -> int:
        """The node of a stack (innermost frame first)."""
        node = -1
        outermost_first = [*reversed(frames[:DEEPEST])] or [NO_FRAMES]
        if len(frames) > DEEPEST:
            outermost_first.insert(0, OUTER)
        for frame in outermost_first:
            number = self.frames.setdefault(frame, len(self.frames))
            node = self.nodes.setdefault((node, number), len(self.nodes))
        return node

    def columns(self, programs: Mapping[str, str]) -> dict[str, Any]:
        number = self._number
        frames = {
            "native": [int(frame.language == "native") for frame in self.frames],
            "function": [number(function_name(frame)) for frame in self.frames],
            "file": [number(frame.file) for frame in self.frames],
            "line": [frame.line for frame in self.frames],
            "package": [
                number(package(frame, programs)) if frame.file else number("unknown") for frame in self.frames
            ],
        }
        parents, frame_of_node = zip(*self.nodes, strict=True) if self.nodes else ((), ())
        return {
            "texts": list(self.texts),
            "frames": frames,
            "nodes": {"parent": parents, "frame": frame_of_node},
        }

    def _number(self, text: str) -> int:
        return self.texts.setdefault(shortened(text), len(self.texts))
