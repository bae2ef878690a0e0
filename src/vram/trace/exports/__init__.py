"""Traces for other tools: Perfetto, speedscope, PyTorch's memory viewer, Parquet; and what these share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vram.errors import UsageError
from vram.model.trace import BLOCKS, KIND_NUMBERS, ON_GPU, CallStack
from vram.trace.symbols import Naming, name_stack, with_names

if TYPE_CHECKING:
    from vram.trace.reader import Trace

CONTEXT, PHYSICAL = KIND_NUMBERS["context"], KIND_NUMBERS["physical"]
ON_GPU_KINDS = frozenset(KIND_NUMBERS[kind] for kind in ON_GPU)
BLOCK_KINDS = frozenset(KIND_NUMBERS[kind] for kind in BLOCKS)
OUTLIVE_CONTEXT = frozenset(
    KIND_NUMBERS[kind] for kind in ("stream-ordered", "physical", "context", "pool", "physical host")
)
"""Kinds of memory that stay when the context is destroyed in which they were allocated (native/FORMAT.md)."""


def export(trace: Trace, form: str, path: str, *, force: bool = False) -> None:
    """Write *trace* to *path* for another tool. Nothing that exists is replaced without *force*."""
    from vram.files import new_file

    if form == "parquet":
        from vram.trace.exports import parquet

        parquet.write(trace, path, force=force)
        return
    with new_file(path, force=force) as stream:
        if form == "perfetto":
            from vram.trace.exports import perfetto

            perfetto.write(trace, stream)
        elif form == "speedscope":
            from vram.trace.exports import speedscope
            from vram.trace.frameworks import with_frameworks

            view = with_names(with_frameworks(trace.view(), trace), trace.builds())
            speedscope.write(view, stream)
        elif form == "torch":
            from vram.trace.exports import torch_viewer

            torch_viewer.write(trace, stream)
        else:
            raise UsageError(f"no such export: {form}", hint="perfetto, speedscope, torch, parquet")


def text(foreign: str) -> str:
    """*foreign* without halves of surrogate pairs, which JSON and pickle cannot carry as UTF-8."""
    return foreign.encode("utf-8", "backslashreplace").decode("utf-8")


def named(stack: CallStack, naming: Naming | None) -> CallStack:
    """*stack* with the functions and lines of its native frames."""
    return stack if naming is None else name_stack(stack, naming)
