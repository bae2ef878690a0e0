"""What the exports share: frames and stacks as plain text, and numbers of kinds of memory."""

from __future__ import annotations

from collections.abc import Callable

from vram.model.trace import BLOCKS, KIND_NUMBERS, ON_GPU, CallStack, Frame

CONTEXT, PHYSICAL = KIND_NUMBERS["context"], KIND_NUMBERS["physical"]
ON_GPU_KINDS = frozenset(KIND_NUMBERS[kind] for kind in ON_GPU)
BLOCK_KINDS = frozenset(KIND_NUMBERS[kind] for kind in BLOCKS)
OUTLIVE_CONTEXT = frozenset(
    KIND_NUMBERS[kind] for kind in ("stream-ordered", "physical", "context", "pool", "physical host")
)
"""Kinds of memory that stay when the context is destroyed in which they were allocated (native/FORMAT.md)."""


def text(foreign: str) -> str:
    """*foreign* without halves of surrogate pairs, which JSON and pickle cannot carry as UTF-8."""
    return foreign.encode("utf-8", "backslashreplace").decode("utf-8")


def named(stack: CallStack, naming: Callable[[Frame], Frame] | None) -> CallStack:
    """*stack* with the names of its native functions."""
    return stack if naming is None else CallStack(tuple(map(naming, stack.frames)))


def position(frame: Frame) -> str:
    if frame.language == "native":
        return f"{text(frame.file)}+{frame.line:#x}"
    return f"{text(frame.file)}:{frame.line}"


def innermost(stack: CallStack) -> str:
    """What an allocation is called: the function that made it, and where."""
    if not stack.frames:
        return "no stack"
    frame = stack.frames[0]
    return f"{text(frame.function)} {position(frame).rpartition('/')[2]}"


def lines(stack: CallStack, most: int) -> list[str]:
    """The frames, innermost first, at most so many."""
    shown = [f"{text(frame.function)} {position(frame)}" for frame in stack.frames[:most]]
    left = len(stack.frames) - len(shown)
    return [*shown, f"({left} frames more)"] if left else shown
