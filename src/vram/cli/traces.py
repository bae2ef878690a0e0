"""Traces that a command names, as one view: with the names of native functions, and what frameworks say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.model.trace import TraceView


def read_view(files: Sequence[str], *, names: bool = True) -> TraceView:
    """Everything that *files* say, read as one. Raises BadTrace where one of them is no trace.

    Without *names*, native functions are those that the recorder knew: no library is opened for them.
    """
    from vram.trace.frameworks import with_frameworks
    from vram.trace.naming import with_names
    from vram.trace.reader import open_trace

    with open_trace([Path(file) for file in files]) as trace:
        view = with_frameworks(trace.view(), trace)
        return with_names(view, trace.builds()) if names else view
