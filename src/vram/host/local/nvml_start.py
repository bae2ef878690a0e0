"""Starts a process that reads NVML. Imports next to nothing, so that it can be the first thing done."""

from __future__ import annotations

from vram.host.local.child import Child, interpreter, start


def start_reader(skip: set[int]) -> Child:
    """Start reading every GPU that is not in *skip*; the child's pipe speaks nvml_wire."""

    def job(pipe: int) -> None:
        from vram.host.local.nvml_child import read_into

        read_into(pipe, skip)

    return start(job, interpreter("vram.host.local.nvml_child", *map(str, sorted(skip))))
