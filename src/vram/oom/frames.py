"""The traceback that an error line ends: its frames alone tell what was being done.

Whatever else stands above in a log, a call or an option by the same name, is somebody else's.
"""

from __future__ import annotations

import re

_HEADING = "Traceback (most recent call last)"
# A frame's line, and the source below it where Python had it.
_FRAME = re.compile(r'File "[^"\n]*", line \d+[^\n]*(?:\n(?!\s*File ")[^\n]*)?')


def frames(before: str) -> str:
    """Return the frames of the traceback that *before* leaves open; nothing where it leaves none."""
    found = list(_FRAME.finditer(before.rpartition(_HEADING)[2]))
    if not found:
        return ""
    below = found[-1].string[found[-1].end() :].split("\n")
    return "\n".join(each.group() for each in found) if all(map(_is_source, below)) else ""


def _is_source(line: str) -> bool:
    """Between the last frame and its error, Python prints more of the source and marks below it."""
    return line.startswith((" ", "\t")) or not line.strip("~^ \t")
