"""Names for native frames of a view: from the symbol tables of their libraries, C++ names demangled.

The recorder notes library and offset only. A library that is gone or another one by now gives no name.
"""

from __future__ import annotations

from msgspec.structs import replace

from vram.model.trace import CallStack, Frame, TraceView
from vram.trace.symbols import demangle, function_names

# Libraries that are read for one trace: a hostile one may name any number of files.
_MOST_LIBRARIES = 500


def with_names(view: TraceView) -> TraceView:
    """*view* with the functions of native frames that have none, where their libraries can be read."""
    offsets: dict[str, set[int]] = {}
    mangled: set[str] = set()
    for stack in view.stacks:
        for frame in stack.frames:
            if frame.language == "native":
                if frame.function:
                    mangled.add(frame.function)
                elif len(offsets) < _MOST_LIBRARIES or frame.file in offsets:
                    offsets.setdefault(frame.file, set()).add(frame.line)
    if not offsets and not mangled:
        return view
    found = {(file, at): name for file, lines in offsets.items() for at, name in _names(file, lines).items()}
    plain = demangle({*found.values(), *mangled})

    def named(frame: Frame) -> Frame:
        if frame.language != "native":
            return frame
        name = frame.function or found.get((frame.file, frame.line), "")
        name = plain.get(name, name)
        return frame if name == frame.function else replace(frame, function=name)

    known: dict[Frame, Frame] = {}
    stacks = []
    for stack in view.stacks:
        for frame in stack.frames:
            if frame not in known:
                known[frame] = named(frame)
        stacks.append(CallStack(tuple(known[frame] for frame in stack.frames)))
    return replace(view, stacks=tuple(stacks))


def _names(file: str, offsets: set[int]) -> dict[int, str]:
    return function_names(file, offsets)
