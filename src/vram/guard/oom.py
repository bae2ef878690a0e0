"""DOC"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import update_wrapper
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from vram.errors import LimitExceeded, UsageError
from vram.files import make_folder
from vram.guard.cuda_errors import broken_contexts, is_out_of_memory, is_sticky
from vram.guard.cuda_errors import note as note_broken
from vram.guard.footprint import driver_is_loaded
from vram.guard.oom_report import BEGINNING, Situation, sentence

# ---- watched exception classes ----


# module: its classes
CLASSES = {
    "torch": ("OutOfMemoryError", "AcceleratorError"),
    "torch.cuda": ("OutOfMemoryError",),
    "cupy.cuda.memory": ("OutOfMemoryError",),
    "cupy_backends.cuda.api.runtime": ("CUDARuntimeError",),
    "jaxlib.xla_extension": ("XlaRuntimeError",),
    "jaxlib._jax": ("JaxRuntimeError",),
    "numba.cuda.cudadrv.driver": ("CudaAPIError",),
    "cuda.core._utils.cuda_utils": ("CUDAError",),
    "pycuda._driver": ("MemoryError", "LaunchError", "LogicError"),
    "vram.errors": ("OutOfMemory",),
}


class Classes:
    """Every class of the table that is there or comes: *born* is called with each new instance."""

    def __init__(self, born: Callable[[BaseException], None]) -> None:
        self._born = born
        self._changed: dict[type, Any] = {}
        self._finder = _Awaiting(self._watch_classes)

    def attach(self) -> None:
        for name in CLASSES:
            self._watch_classes(name, sys.modules.get(name))
        sys.meta_path.insert(0, self._finder)

    def detach(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self._finder)
        for kind, original in self._changed.items():
            if original is None:
                del kind.__init__  # type: ignore[misc]
            else:
                kind.__init__ = original  # type: ignore[misc]
        self._changed.clear()

    def _watch_classes(self, name: str, module: ModuleType | None) -> None:
        """Under *name* may be anything: programs put None or a stand-in there to do without a framework."""
        for each in CLASSES[name]:
            self._watch_class(getattr(module, each, None))

    def _watch_class(self, kind: Any) -> None:
        if not isinstance(kind, type) or kind in self._changed:
            return
        original, born = kind.__init__, self._born  # type: ignore[misc]

        def announced(self: BaseException, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            born(self)

        # JAX's has no qualified name, which a Python function cannot go without.
        with suppress(TypeError, AttributeError):
            update_wrapper(announced, original)
        own = vars(kind).get("__init__")
        # A class that cannot be changed is recorded where it is uncaught, as all others are.
        with suppress(TypeError, AttributeError):
            kind.__init__ = announced  # type: ignore[misc]
            self._changed[kind] = own


class _Awaiting(MetaPathFinder):
    """Finds nothing itself: it looks at modules of the table once they have been run."""

    def __init__(self, arrived: Callable[[str, ModuleType], None]) -> None:
        self._arrived = arrived
        # While one thread asks the other finders, imports of its own kind must pass.
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in CLASSES or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            from importlib.util import find_spec

            spec = find_spec(fullname)
        finally:
            self._asking.now = False
        loader = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            return None
        run = loader.exec_module

        def run_and_look(module: ModuleType) -> None:
            run(module)
            # A loader may be one for many modules, as that of a zip file is.
            if module.__name__ == fullname:
                self._arrived(fullname, module)

        with suppress(AttributeError):
            loader.exec_module = run_and_look
            return spec
        return None


# ---- the recorder ----


MOST_FILES = 20
# A framework that frees its caches and tries again fails twice in a row: that is one event.
SAME_EVENT_S = 1.0

_recorder: Recorder | None = None
_lock = threading.RLock()


def on_oom(folder: str | os.PathLike[str] | None = None, *, most_files: int = MOST_FILES) -> Recorder:
    """Write a file into *folder* whenever the GPU runs out of memory in this process.

    *folder* is made where it is missing; left out, it is $VRAM_OOM_FOLDER or the folder in which
    the program runs at that moment. After *most_files* files, errors get their sentence and no
    more are written. An error that broke the context gets a sentence that says so, and no file.
    Called again, it moves to the new folder. Returns the recorder: ``close()`` takes it out again.
    """
    global _recorder
    place = _usable(folder if folder is not None else os.environ.get("VRAM_OOM_FOLDER") or None)
    if isinstance(most_files, bool) or not isinstance(most_files, int) or most_files < 0:
        raise UsageError(f"most_files={most_files!r} is no number of files", hint="write most_files=20")
    with _lock:
        if _recorder is None:
            _recorder = Recorder()
        _recorder.folder, _recorder.most_files = place, most_files
        return _recorder


def noticed(error: BaseException) -> None:
    """Record *error*, where a recorder is installed and has not seen it yet."""
    if _recorder is not None:
        _recorder.notice(error)


class Recorder:
    """Installed until ``close()``. ``files`` are the paths that it has written."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.most_files = MOST_FILES
        self.files: list[str] = []
        self._situation: Situation | None = None
        self._where = ""
        self._last = float("-inf")
        self._busy = threading.local()
        self._hooks = (sys.excepthook, threading.excepthook)
        self._own = (self._uncaught, self._uncaught_in_thread)
        sys.excepthook, threading.excepthook = self._own
        self._classes = Classes(self.notice)
        self._classes.attach()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take everything out again; hooks that somebody has put over ours stay, and lead nowhere else."""
        global _recorder
        with _lock:
            self._classes.detach()
            if sys.excepthook is self._own[0]:
                sys.excepthook = self._hooks[0]
            if threading.excepthook is self._own[1]:
                threading.excepthook = self._hooks[1]
            if _recorder is self:
                _recorder = None

    def notice(self, error: BaseException) -> None:
        """Record *error* once, and add the sentence to its notes. Never raises."""
        if getattr(self._busy, "now", False) or isinstance(error, LimitExceeded):
            return  # a scope's limit is no fact about the GPU
        if not (is_out_of_memory(error) or is_sticky(error)) or _is_noted(error) or _is_of_the_host(error):
            return
        self._busy.now = True
        try:
            broken = broken_contexts(error)
            if broken:  # what is missing is no memory, and a file about memory would mislead
                note_broken(error, broken)
                return
            with _lock:
                if time.monotonic() - self._last > SAME_EVENT_S:
                    self._record(error)
                    self._last = time.monotonic()
                note = self._note(error)
            error.add_note(note)
        except Exception as trouble:  # whoever runs out of memory must learn that, and not of our trouble
            error.add_note(f"{MARK}this could not be recorded: {type(trouble).__name__}: {trouble}")
        finally:
            self._busy.now = False

    def _record(self, error: BaseException) -> None:
        from vram.guard.oom_report import gather, write

        self._situation, report = gather(error)
        self._where = ""
        if len(self.files) < self.most_files:
            path = write(report, self.folder or ".")
            self.files.append(path)
            self._where = f". The whole account is in {path}"

    def _note(self, error: BaseException) -> str:
        """What was measured last, judged by what *error* asked for."""
        from vram.guard.oom_report import requested

        assert self._situation is not None
        return f"{MARK}{sentence(self._situation._replace(requested=requested(error)))}{self._where}"

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _recorder is self:
            self.notice(error)
        self._hooks[0](kind, error, trace)

    def _uncaught_in_thread(self, args: Any) -> None:
        if _recorder is self and args.exc_value is not None:
            self.notice(args.exc_value)
        self._hooks[1](args)


MARK = "vram: "


def _is_of_the_host(error: BaseException) -> bool:
    """JAX says the same of the host's memory, where it runs on the processor."""
    if type(error).__module__.partition(".")[0] not in ("jax", "jaxlib") or driver_is_loaded():
        return False
    return not any(name.startswith("jax") and "rocm" in name for name in tuple(sys.modules))


def _is_noted(error: BaseException) -> bool:
    return any(str(note).startswith(f"{MARK}{BEGINNING}") for note in getattr(error, "__notes__", ()))


def _usable(named: str | os.PathLike[str] | None) -> str | None:
    if named is None:
        return None
    try:
        folder = os.fsdecode(named)
        make_folder(folder, mode=0o700)
    except (OSError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{str(named)!r} is no folder to write into: {reason}", hint="name one that can be made"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} may not be written into", hint="name another folder")
    return os.path.abspath(folder)
