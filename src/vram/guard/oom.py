"""Out of memory, explained where it happens: ``vram.on_oom()`` installs a recorder.

Frameworks' out-of-memory classes get an ``__init__`` that calls their own and then the
recorder: so it also runs for an error that the program catches, it costs nothing until one is
made, and it goes away without a trace. (PyTorch's observers can never be detached, and no other
framework has any.) Errors of classes that everybody shares are recorded where they are uncaught.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Any

from vram.errors import LimitExceeded, UsageError
from vram.files import make_folder
from vram.guard.broken import broken_contexts, is_sticky
from vram.guard.broken import note as note_broken
from vram.guard.footprint import driver_is_loaded
from vram.guard.oom_classes import Classes
from vram.guard.oom_sentence import BEGINNING, Situation, sentence
from vram.guard.out_of_memory import is_out_of_memory

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
