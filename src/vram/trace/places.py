"""The place that an allocation is known by: the innermost line of Python of its stack, as text."""

from __future__ import annotations

from collections.abc import Sequence

from vram.model.trace import CallStack, Frame

NO_STACK = "no stack was recorded"


def innermost(stacks: Sequence[CallStack], stack: int) -> Frame | None:
    """The innermost line of Python, else the innermost frame; None where there is no stack."""
    frames = stacks[stack].frames if 0 <= stack < len(stacks) else ()
    return next((frame for frame in frames if frame.language == "python"), frames[0] if frames else None)


def place_text(frame: Frame | None) -> str:
    """``function file:line``. The words are the traced program's: whoever shows them makes them inert."""
    if frame is None:
        return NO_STACK
    at = frame.line if frame.language == "python" else f"{frame.line:#x}"
    return f"{frame.function} {frame.file}:{at}"
