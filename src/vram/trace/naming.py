"""Names for native frames of a trace: from the symbol tables of their libraries, C++ names demangled.

The recorder notes a library and an offset, and a name only where the library exports it. A library that is
gone by now, or was built again, gives no name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from vram.model.trace import CallStack, Frame, TraceView
from vram.trace.symbols import SymbolBudget, demangle, function_names

# Libraries that are read for one trace, and symbols of all of them: a hostile one may name any number of
# files, or one large file in any number of ways. libtorch_cpu.so has 0.4 million symbols.
_MAX_LIBRARIES, _MAX_SYMBOLS = 500, 5_000_000


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
    real: dict[str, str] = {}
    known_builds: dict[str, set[str]] = {}
    for frame in {frame for stack in view.stacks for frame in stack.frames if frame.language == "native"}:
        if frame.function:
            names.add(frame.function)
        elif frame.file in real or len(real) < _MAX_LIBRARIES:
            if frame.file not in real:
                real[frame.file] = _real(frame.file)
            offsets.setdefault(real[frame.file], set()).add(frame.line)
            known_builds.setdefault(real[frame.file], set()).update(builds.get(frame.file, ()))
    if not offsets and not names:
        return None
    left = SymbolBudget(_MAX_SYMBOLS)
    found = {
        (file, at): name
        for file, wanted in offsets.items()
        for at, name in _names_of_build(file, wanted, known_builds[file], left).items()
    }
    readable = demangle({*found.values(), *names})

    def named(frame: Frame) -> Frame:
        if frame.language != "native":
            return frame
        name = frame.function or found.get((real.get(frame.file, ""), frame.line), "")
        name = readable.get(name, name)
        return frame if name == frame.function else replace(frame, function=name)

    return named


def _real(path: str) -> str:
    """*path* without links and detours: the same library has one name."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # a zero byte in it
        return path


def _names_of_build(
    file: str, offsets: set[int], builds: Collection[str], left: SymbolBudget
) -> dict[int, str]:
    """What *file* calls them, if it is still the one that was loaded; of several nobody knows which was."""
    if len(builds) > 1:
        return {}
    return function_names(file, offsets, next(iter(builds), "") or None, left=left)
