"""Names and lines for native frames of a trace, from the debug information and symbols of their files.

A trace says which file to read, and may come from any user: only regular ELF files are read, with limits on
every size, and nothing of them is executed.
"""

from __future__ import annotations

import bisect
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from vram.files import open_plain
from vram.model.trace import CallStack, Frame, LiveTrace, TracedProcess, TraceView
from vram.trace.cpp_names import shorten
from vram.trace.lines import SourceLine, WantedLines, find_lines

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _NOTE, _DYNSYM = 2, 7, 11
_FUNCTION, _INDIRECT_FUNCTION = 2, 10
_BUILD_ID = 3
_MAX_SECTIONS = 10_000
_MAX_SYMBOLS = 5_000_000  # of all libraries of a trace together; libtorch_cpu.so has 0.4 million
_MAX_LIBRARIES = 500
_MAX_MATCHES = 2_000_000  # of an offset and a function, in one file
_MAX_NOTE_NBYTES = 1 << 16
_MAX_NAME_LENGTH = 4096
_SYMBOLS_AT_ONCE = 32_768

_DEMANGLE_S = 10.0
_MAX_DEMANGLED = 20_000
_MAX_ROUNDS = 3  # each but the last loses a name that takes too much


# ---- the frames of a view ----

Naming = Callable[[Frame], tuple[Frame, ...]]
"""A recorded frame with its names; several where functions are inlined into it, innermost first."""


def with_names(view: TraceView, builds: Mapping[str, Collection[str]]) -> TraceView:
    """*view* with the functions and lines of native frames, where their libraries can be read."""
    named = naming(view, builds)
    if named is None:
        return view
    stacks = tuple(name_stack(stack, named) for stack in view.stacks)
    return replace(view, stacks=stacks)


def name_stack(stack: CallStack, named: Naming) -> CallStack:
    return CallStack(tuple(each for frame in stack.frames for each in named(frame)))


def naming(view: TraceView, builds: Mapping[str, Collection[str]]) -> Naming | None:
    """A function that names the native frames of *view*; None where it has none.

    *builds* (``Trace.builds()``) has the build ids that libraries had while they were recorded. A file that
    has another one now names nothing; nor does one without, if it was changed after the recording began.
    """
    frames = _native_frames(view.stacks)
    return _naming(frames, view.processes, builds) if frames else None


class GrowingNames:
    """Names for the native frames of a trace that is still written.

    To read debug information takes time, and more of it with each new stack: after each reading comes a pause
    that is much longer. Until then new frames have what the trace says of them.
    """

    def __init__(self) -> None:
        self._known: dict[Frame, tuple[Frame, ...]] = {}
        self._done: list[CallStack] = []
        self._not_before = 0.0

    def named(self, trace: LiveTrace, builds: Callable[[], Mapping[str, Collection[str]]]) -> LiveTrace:
        """*trace*, whose stacks are those of the call before and further ones."""
        new = trace.stacks[len(self._done) :]
        unknown = _native_frames(new).difference(self._known)
        began = time.monotonic()
        if unknown and began >= self._not_before:
            name = _naming(unknown, trace.processes, builds())
            self._known.update((frame, name(frame)) for frame in unknown)
            self._not_before = time.monotonic() + _PAUSE_TIMES * (time.monotonic() - began)
            unknown = set()
        named = [name_stack(stack, lambda frame: self._known.get(frame, (frame,))) for stack in new]
        stacks = (*self._done, *named)
        if not unknown:
            self._done += named
        return replace(trace, stacks=stacks)


_PAUSE_TIMES = 20


def _native_frames(stacks: Iterable[CallStack]) -> set[Frame]:
    return {frame for stack in stacks for frame in stack.frames if frame.language == "native"}


def _naming(
    frames: Collection[Frame], processes: Iterable[TracedProcess], builds: Mapping[str, Collection[str]]
) -> Naming:
    elsewhere = getattr(builds, "elsewhere", None)
    if elsewhere is not None and elsewhere.is_here:
        elsewhere = None
    files = _wanted_files(frames, builds, has_links=elsewhere is None)
    opened = elsewhere.open_files([each.path for each in files]) if elsewhere is not None else {}
    try:
        if elsewhere is not None:
            # A file of the same name here is another one, unless its build is the same.
            files = [each for each in files if each.path in opened or each.build]
            for each in files:
                each.path = f"/proc/self/fd/{opened[each.path]}" if each.path in opened else each.path
        began_ns = min((each.started_wall_ns for each in processes), default=0)
        wanted = [WantedLines(each.path, each.build, began_ns, sorted(each.offsets)) for each in files]
        lines = find_lines(wanted, tuple(opened.values()))
        left = SymbolBudget(_MAX_SYMBOLS)
        symbols = {
            (file.path, at): name
            for file in files
            for at, name in function_names(
                file.path, file.nameless, file.build, not_after_ns=began_ns, left=left
            ).items()
        }
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    inner = {line.function for found in lines.values() for line in found}
    readable = demangle({*symbols.values(), *inner, *(frame.function for frame in frames)})
    real = {path: file.path for file in files for path in file.spelled}

    def short(name: str) -> str:
        return shorten(readable.get(name, name))

    @cache
    def named(frame: Frame) -> tuple[Frame, ...]:
        if frame.language != "native":
            return (frame,)
        at = (real.get(frame.file, ""), frame.line)
        symbol = frame.function or symbols.get(at, "")
        found = lines.get(at, ())
        if not found:
            return (replace(frame, function=short(symbol)),)
        *inlined, (function, file, line) = found
        # Without the linker's name, a function's own does not say which class it is of.
        function = symbol if symbol and not function.startswith("_Z") else function
        return tuple(
            _with_line(frame, short(each.function), each)
            for each in (*inlined, SourceLine(function, file, line))
        )

    return named


def _with_line(frame: Frame, function: str, found: SourceLine) -> Frame:
    if not found.file or not found.line:
        return replace(frame, function=function)
    return Frame("native", function, os.path.normpath(found.file), found.line, frame.file)


class _WantedFile:
    """A file that frames are in, and the build of it; *spelled* are the paths that the trace has for it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.spelled: set[str] = set()
        self.offsets: set[int] = set()
        self.nameless: set[int] = set()
        self.builds: set[str] = set()

    @property
    def build(self) -> str | None:
        return next(iter(self.builds), "").lower() or None


def _wanted_files(
    frames: Iterable[Frame], builds: Mapping[str, Collection[str]], *, has_links: bool
) -> list[_WantedFile]:
    """*has_links*: the paths mean files here, where the same library may have several names."""
    found: dict[str, _WantedFile] = {}
    real: dict[str, str] = {}
    for frame in frames:
        if frame.file not in real:
            if len(real) == _MAX_LIBRARIES:
                continue
            real[frame.file] = _real(frame.file) if has_links else frame.file
        file = found.setdefault(real[frame.file], _WantedFile(real[frame.file]))
        file.spelled.add(frame.file)
        file.builds.update(builds.get(frame.file, ()))
        file.offsets.add(frame.line)
        if not frame.function:
            file.nameless.add(frame.line)
    # With several build ids, the file was built again, and which build was loaded is unknown.
    return [file for file in found.values() if len(file.builds) < 2]


def _real(path: str) -> str:
    """*path* without links and detours: the same library has one name."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # a zero byte in it
        return path


# ---- ELF files ----


class _Section(Struct, frozen=True):
    kind: int
    offset: int
    nbytes: int
    link: int


class SymbolBudget:
    """How many symbols may still be read, of several libraries together."""

    def __init__(self, symbols: int) -> None:
        self.symbols = symbols


def function_names(
    path: str,
    offsets: Iterable[int],
    build_id: str | None = None,
    *,
    not_after_ns: int | None = None,
    left: SymbolBudget | None = None,
) -> dict[int, str]:
    """The functions of the ELF file *path* in which these *offsets* (addresses less the load bias) lie.

    Offsets in no known function are left out. Nothing is returned where the file cannot be read, is no 64-bit
    ELF file, has another build id than *build_id*, or, without one, was changed after *not_after_ns*.
    """
    wanted = sorted({each for each in offsets if 0 <= each < 1 << 64})
    try:
        file = open_plain(path)
    except (OSError, ValueError):
        return {}
    try:
        if not wanted:
            return {}
        sections = _sections(file)
        if build_id is not None:
            if _build_id(file, sections) != build_id.lower():
                return {}
        elif not_after_ns is not None and os.fstat(file).st_mtime_ns > not_after_ns:
            return {}
        return _find(file, sections, wanted, left or SymbolBudget(_MAX_SYMBOLS))
    except (OSError, struct.error, OverflowError):
        return {}
    finally:
        os.close(file)


def _sections(file: int) -> list[_Section]:
    header = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
    ident, at, size, count = header[0], header[6], header[11], header[12]
    if ident[:6] != b"\x7fELF\x02\x01" or size != _SECTION.size or not count <= _MAX_SECTIONS:
        return []
    table = os.pread(file, size * count, at)
    rows = _SECTION.iter_unpack(table[: len(table) // size * size])
    return [_Section(kind, offset, nbytes, link) for _, kind, _, _, offset, nbytes, link, _, _, _ in rows]


def _build_id(file: int, sections: list[_Section]) -> str | None:
    for section in sections:
        if section.kind != _NOTE or section.nbytes > _MAX_NOTE_NBYTES:
            continue
        notes = os.pread(file, section.nbytes, section.offset)
        while len(notes) >= 12:
            name_nbytes, nbytes, kind = struct.unpack_from("<III", notes)
            begins = 12 + (name_nbytes + 3 & ~3)
            if kind == _BUILD_ID and notes[12 : 12 + name_nbytes] == b"GNU\0":
                return notes[begins : begins + nbytes].hex()
            notes = notes[begins + (nbytes + 3 & ~3) :]
    return None


def _find(file: int, sections: list[_Section], wanted: list[int], budget: SymbolBudget) -> dict[int, str]:
    """The best symbol for each offset: of the full table before the exported ones, global before local."""
    found: dict[int, tuple[int, int, int]] = {}  # (rank, where its name lies, how long that may be)
    left = _MAX_MATCHES
    for table in sections:
        if table.kind not in (_SYMTAB, _DYNSYM) or table.link >= len(sections):
            continue
        strings = sections[table.link]
        for name, binding, value, nbytes in _functions(file, table, budget):
            first = bisect.bisect_left(wanted, value)
            if first == len(wanted) or wanted[first] - value >= nbytes or name >= strings.nbytes:
                continue
            rank = (2 if table.kind == _SYMTAB else 0) + (binding != 0)
            place = (rank, strings.offset + name, min(strings.nbytes - name, _MAX_NAME_LENGTH))
            inside = wanted[first : bisect.bisect_left(wanted, value + nbytes)]
            left -= len(inside)
            if left < 0:
                return {}  # functions that overlap a thousand times: no compiler made this
            for each in inside:
                if each not in found or found[each][0] < rank:
                    found[each] = place
    names = {each: _string(file, at, longest) for each, (_, at, longest) in found.items()}
    return {each: name for each, name in names.items() if name}


def _functions(file: int, table: _Section, budget: SymbolBudget) -> Iterator[tuple[int, int, int, int]]:
    """For each function with a size: where its name begins, its binding (0: local), its address, its size."""
    size = _SYMBOL.size
    count = min(table.nbytes // size, budget.symbols)
    budget.symbols -= count
    for begin in range(0, count, _SYMBOLS_AT_ONCE):
        symbols = os.pread(file, min(count - begin, _SYMBOLS_AT_ONCE) * size, table.offset + begin * size)
        if not symbols:
            return
        for name, info, _, section, value, nbytes in _SYMBOL.iter_unpack(
            symbols[: len(symbols) // size * size]
        ):
            if info & 15 in (_FUNCTION, _INDIRECT_FUNCTION) and section and nbytes:
                yield name, info >> 4, value, nbytes


def _string(file: int, at: int, longest: int) -> str:
    text = os.pread(file, longest, at).split(b"\0", 1)[0]
    return text.decode(errors="replace")


# ---- C++ ----

# A name that was made for it takes exponential time and memory to demangle: hence a process with limits.
# Names in, one a line; names out in the same order, each as soon as it is known: when the process is ended by
# a name that takes too much, the number of answers says which one it was.
_DEMANGLER = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
library = ctypes.CDLL("libstdc++.so.6")
demangle, free = library.__cxa_demangle, ctypes.CDLL(None).free
demangle.restype, free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
out = sys.stdout.buffer
for line in sys.stdin.buffer.read().split(b"\\n"):
    found = demangle(line, None, None, None)
    text = ctypes.string_at(found)[:4096] if found else line
    free(found)
    out.write(text.replace(b"\\n", b" ") + b"\\n")
    out.flush()
"""


def demangle(names: Iterable[str]) -> Mapping[str, str]:
    """Readable forms of the C++ names among *names*; those that have none, or take too long, are left out."""
    waiting = [name for name in dict.fromkeys(names) if _is_mangled(name)][:_MAX_DEMANGLED]
    answers: dict[str, str] = {}
    for _ in range(_MAX_ROUNDS):
        if not waiting:
            break
        lines, was_ended = _run_demangler(waiting)
        answers.update(zip(waiting, lines, strict=False))
        if not was_ended:
            break  # all answered, or there is no libstdc++
        waiting = waiting[len(lines) + 1 :]
    return {name: text for name, text in answers.items() if text != name}


def _is_mangled(name: str) -> bool:
    return name.startswith("_Z") and name.isascii() and name.isprintable() and len(name) <= _MAX_NAME_LENGTH


def _run_demangler(names: list[str]) -> tuple[list[str], bool]:
    """The first answers, and whether the process was ended in the middle."""
    command = [sys.executable, "-I", "-S", "-c", _DEMANGLER]
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
            try:
                output, _ = process.communicate("\n".join(names).encode(), timeout=_DEMANGLE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
    except OSError:
        return [], False
    return output.decode(errors="replace").split("\n")[:-1][: len(names)], process.returncode < 0
