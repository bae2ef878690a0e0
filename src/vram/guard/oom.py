"""``vram.on_oom()``: a recorder that explains every out-of-memory error of this process.

The out-of-memory classes of frameworks get an ``__init__`` that calls their own and then the recorder: so it
also runs for an error that the program catches, and can be removed. (PyTorch's observers cannot.)
"""

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
from vram.guard.cuda_errors import add_broken_notes, broken_contexts, is_out_of_memory, sticky_code
from vram.guard.memory import driver_is_loaded
from vram.guard.oom_report import BEGINNING, OomFigures, gather, requested, sentence, write
from vram.python_310 import add_note, show_notes

# ---- hooks on exception classes ----

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


class ExceptionHooks:
    """Calls *created* with each new instance of the classes in the table, those imported later included."""

    def __init__(self, created: Callable[[BaseException], None]) -> None:
        self._born = created
        self._changed: dict[type, Any] = {}
        self._finder = _ImportHook(self._hook_module)

    def attach(self) -> None:
        for name in CLASSES:
            self._hook_module(name, sys.modules.get(name))
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

    def _hook_module(self, name: str, module: ModuleType | None) -> None:
        """*module* may be anything: programs put None or a stub into sys.modules to disable a framework."""
        for each in CLASSES[name]:
            self._hook_class(getattr(module, each, None))

    def _hook_class(self, kind: Any) -> None:
        if not isinstance(kind, type) or kind in self._changed:
            return
        original, created = kind.__init__, self._born  # type: ignore[misc]

        def hooked(self: BaseException, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            created(self)

        # JAX's has no qualified name, which a Python function must have.
        with suppress(TypeError, AttributeError):
            update_wrapper(hooked, original)
        own = vars(kind).get("__init__")
        # The errors of a class that cannot be changed are recorded where they are uncaught.
        with suppress(TypeError, AttributeError):
            kind.__init__ = hooked  # type: ignore[misc]
            self._changed[kind] = own


class _ImportHook(MetaPathFinder):
    """Finds no module itself: it wraps the loaders of modules in the table, to be called after they ran."""

    def __init__(self, imported: Callable[[str, ModuleType], None]) -> None:
        self._imported = imported
        # While this thread calls the other finders, this finder must not answer.
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in CLASSES or getattr(self._searching, "now", False):
            return None
        self._searching.now = True
        try:
            from importlib.util import find_spec

            spec = find_spec(fullname)
        finally:
            self._searching.now = False
        loader = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            return None
        run = loader.exec_module

        def run_and_hook(module: ModuleType) -> None:
            run(module)
            # One loader may load many modules, as that of a zip file does.
            if module.__name__ == fullname:
                self._imported(fullname, module)

        with suppress(AttributeError):
            loader.exec_module = run_and_hook
            return spec
        return None


# ---- the recorder ----

MAX_FILES = 20
# A framework that frees its caches and tries again fails twice in a row: that is one event.
SAME_EVENT_S = 1.0

_recorder: Recorder | None = None
_lock = threading.RLock()


def on_oom(folder: str | os.PathLike[str] | None = None, *, most_files: int = MAX_FILES) -> Recorder:
    """Write a file into *folder* whenever the GPU runs out of memory in this process.

    *folder* is created if it is missing; left out, it is $VRAM_OOM_FOLDER or the working directory at
    that moment. After *most_files* files errors still get their note, and no more files are written. An
    error that broke the context gets a note that says so, and no file. A second call changes the
    folder. Returns the recorder: ``close()`` removes it.
    """
    global _recorder
    target = _check_folder(folder if folder is not None else os.environ.get("VRAM_OOM_FOLDER") or None)
    if isinstance(most_files, bool) or not isinstance(most_files, int) or most_files < 0:
        raise UsageError(f"most_files={most_files!r} is not a number of files", hint="write most_files=20")
    with _lock:
        if _recorder is None:
            _recorder = Recorder()
        _recorder.folder, _recorder.most_files = target, most_files
        return _recorder


def record_oom(error: BaseException) -> None:
    """Record *error*, if a recorder is installed and has not recorded it yet."""
    if _recorder is not None:
        _recorder.record(error)


class Recorder:
    """Installed until ``close()``. ``files`` are the paths that it has written."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.most_files = MAX_FILES
        self.files: list[str] = []
        self._figures: OomFigures | None = None
        self._file_note = ""
        self._last = float("-inf")
        self._busy = threading.local()
        show_notes()
        self._hooks = (sys.excepthook, threading.excepthook)
        self._own_hooks = (self._uncaught, self._uncaught_in_thread)
        sys.excepthook, threading.excepthook = self._own_hooks
        self._class_hooks = ExceptionHooks(self.record)
        self._class_hooks.attach()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the recorder. Hooks that were installed on top of ours stay; ours then only forward."""
        global _recorder
        with _lock:
            self._class_hooks.detach()
            if sys.excepthook is self._own_hooks[0]:
                sys.excepthook = self._hooks[0]
            if threading.excepthook is self._own_hooks[1]:
                threading.excepthook = self._hooks[1]
            if _recorder is self:
                _recorder = None

    def record(self, error: BaseException) -> None:
        """Record *error* once, and add a note with the cause to it. Never raises."""
        if getattr(self._busy, "now", False) or isinstance(error, LimitExceeded):
            return  # a scope's own limit says nothing about the GPU
        is_about_memory = is_out_of_memory(error) or sticky_code(error) is not None
        if not is_about_memory or _is_noted(error) or _is_host_memory(error):
            return
        self._busy.now = True
        try:
            broken = broken_contexts(error)
            if broken:  # memory is not the problem: a file about memory would mislead
                add_broken_notes(error, broken)
                return
            with _lock:
                if time.monotonic() - self._last > SAME_EVENT_S:
                    self._write_report(error)
                    self._last = time.monotonic()
                assert self._figures is not None
                # The cause by the last figures and by what this error requested.
                cause = sentence(self._figures._replace(requested=requested(error)))
                note = f"{MARK}{cause}{self._file_note}"
            add_note(error, note)
        except Exception as trouble:  # the program must get its own error, not ours
            add_note(error, f"{MARK}this could not be recorded: {type(trouble).__name__}: {trouble}")
        finally:
            self._busy.now = False

    def _write_report(self, error: BaseException) -> None:
        self._figures, report = gather(error)
        self._file_note = ""
        if len(self.files) < self.most_files:
            path = write(report, self.folder or ".")
            self.files.append(path)
            self._file_note = f". The full report is in {path}"

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _recorder is self:
            self.record(error)
        self._hooks[0](kind, error, trace)

    def _uncaught_in_thread(self, args: Any) -> None:
        if _recorder is self and args.exc_value is not None:
            self.record(args.exc_value)
        self._hooks[1](args)


MARK = "vram: "


def _is_host_memory(error: BaseException) -> bool:
    """JAX raises the same error for host memory, if it runs on the CPU."""
    if type(error).__module__.partition(".")[0] not in ("jax", "jaxlib") or driver_is_loaded():
        return False
    return not any(name.startswith("jax") and "rocm" in name for name in tuple(sys.modules))


def _is_noted(error: BaseException) -> bool:
    return any(str(note).startswith(f"{MARK}{BEGINNING}") for note in getattr(error, "__notes__", ()))


def _check_folder(named: str | os.PathLike[str] | None) -> str | None:
    if named is None:
        return None
    try:
        folder = os.fsdecode(named)
        make_folder(folder, mode=0o700)
    except (OSError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{str(named)!r} cannot be used as a folder: {reason}", hint="name one that can be created"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} is not writable", hint="name another folder")
    return os.path.abspath(folder)
