"""Names for native frames of a trace: from the symbol tables of their libraries, C++ names demangled.

The recorder notes a library and an offset, and a name only where the library exports it. A library that is
gone by now, or was built again, gives no name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from vram.model.trace import CallStack, Frame, TraceView
from vram.trace.symbols import demangle, function_names

# Libraries that are read for one trace: a hostile one may name any number of files.
_MOST_LIBRARIES = 500


def with_names(view: TraceView, builds: Mapping[str, Collection[str]]) -> TraceView:
    """*view* with the functions of native frames, where their libraries can be read."""
    named = naming(view, builds)
    if named is None:
        return view
    known: dict[Frame, Frame] = {}
    for stack in view.stacks:
        for frame in stack.frames:
            if frame not in known:
                known[frame] = named(frame)
    stacks = tuple(CallStack(tuple(known[frame] for frame in stack.frames)) for stack in view.stacks)
    return replace(view, stacks=stacks)


def naming(view: TraceView, builds: Mapping[str, Collection[str]]) -> Callable[[Frame], Frame] | None:
    """A function that names the native frames of *view*; None where it has none.

    *builds* (``Trace.builds()``) has the build ids that libraries had while they were recorded.
    """
    offsets: dict[str, set[int]] = {}
    names: set[str] = set()
    for frame in {frame for stack in view.stacks for frame in stack.frames if frame.language == "native"}:
        if frame.function:
            names.add(frame.function)
        elif frame.file in offsets or len(offsets) < _MOST_LIBRARIES:
            offsets.setdefault(frame.file, set()).add(frame.line)
    if not offsets and not names:
        return None
    found = {
        (file, at): name
        for file, wanted in offsets.items()
        for at, name in _names_of_build(file, wanted, builds.get(file, ())).items()
    }
    readable = demangle({*found.values(), *names})

    def named(frame: Frame) -> Frame:
        if frame.language != "native":
            return frame
        name = frame.function or found.get((frame.file, frame.line), "")
        name = readable.get(name, name)
        return frame if name == frame.function else replace(frame, function=name)

    return named


def _names_of_build(file: str, offsets: set[int], builds: Collection[str]) -> dict[int, str]:
    """What *file* calls them, if it is still the one that was loaded; of several nobody knows which was."""
    if len(builds) > 1:
        return {}
    return function_names(file, offsets, next(iter(builds), "") or None)
