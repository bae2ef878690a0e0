"""Traces for other tools: Perfetto, speedscope, PyTorch's memory viewer, Parquet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vram.errors import UsageError

if TYPE_CHECKING:
    from vram.trace.reader import Trace


def export(trace: Trace, form: str, path: str, *, force: bool = False) -> None:
    """Write *trace* to *path* for another tool. Nothing that exists is replaced without *force*."""
    from vram.files import new_file

    if form == "parquet":
        _parquet(trace, path, force=force)
        return
    with new_file(path, force=force) as stream:
        if form == "perfetto":
            from vram.trace.exports import perfetto

            perfetto.write(trace, stream)
        elif form == "speedscope":
            from vram.trace.exports import speedscope
            from vram.trace.frameworks import with_frameworks
            from vram.trace.naming import with_names

            view = with_names(with_frameworks(trace.view(), trace), trace.builds())
            speedscope.write(view, stream)
        elif form == "torch":
            from vram.trace.exports import torch_viewer

            torch_viewer.write(trace, stream)
        else:
            raise UsageError(f"no such export: {form}", hint="perfetto, speedscope, torch, parquet")


def _parquet(trace: Trace, path: str, *, force: bool) -> None:
    """Two tables: the events, and beside them the stacks that they refer to."""
    from vram.files import new_file
    from vram.trace.exports import parquet

    parquet.require_library()
    if path == "/dev/stdout":
        raise UsageError("Parquet is two files, and not for standard output", hint="name a file with -o")
    root, ending = os.path.splitext(path)
    with (
        new_file(path, force=force) as events,
        new_file(f"{root}.stacks{ending or '.parquet'}", force=force) as stacks,
    ):
        parquet.write(trace, events, stacks)
