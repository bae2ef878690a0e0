"""Which line of a program makes its memory grow, as the recorder has it so far."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from vram.errors import VramError
from vram.model.trace import ON_GPU, stack_of
from vram.trace.output import recorded_into
from vram.trace.places import position, shown_frames

MAX_NBYTES = 256 << 20
"""A longer recording is not read for one line."""


def growing_line(pid: int) -> str | None:
    """Return "train.py:88", the place in *pid* whose GPU memory has grown most in the recording's window.

    None where it is not being recorded, or nothing grew, or the recording cannot be read or is too long.
    """
    from vram.trace.reader import open_trace

    path = recorded_into(pid)
    try:
        if path is None or os.stat(path).st_size > MAX_NBYTES:
            return None
        with open_trace([Path(path)]) as trace:
            view = trace.view(points=1)
    except (OSError, VramError):
        return None
    grown: Counter[str] = Counter()
    for window in view.windows:
        for each in window.places if window.framework is None else ():
            at, caller = shown_frames(view, stack_of(view, each.site.stack))
            if at is not None and each.site.kind in ON_GPU:
                grown[os.path.basename(position(caller or at))] += each.change
    line, nbytes = max(grown.items(), key=lambda each: each[1], default=("", 0))
    return line if nbytes > 0 else None
