"""Records this process itself for a while: what a test or a notebook's cell asks of the driver."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from vram.errors import VramError
from vram.host.local.system_info import cupti_places
from vram.model.trace import TraceView
from vram.trace.frameworks import with_frameworks
from vram.trace.launch import FRAMEWORK_PAYLOAD, LIBRARY, require_library
from vram.trace.reader import open_trace

_MODULE = "_vram_tracer_frameworks"

_ALREADY, _NO_CUPTI, _SUBSCRIBER = 1, 3, 4
_HINTS = {
    _ALREADY: "run it without `vram run` or `vram attach` around it",
    _NO_CUPTI: "install it with `pip install nvidia-cuda-cupti`, or the CUDA toolkit",
    _SUBSCRIBER: "a profiler has CUPTI in this process: run without it",
}


class NotRecorded(VramError):
    """This process cannot be recorded."""


class RecordingHere:
    """From ``start()`` to ``stop()``, every allocation of this process; then ``view()`` says what there was.

    Used as a context manager it starts and stops. Frameworks that are loaded say what they used theirs for.
    Raises NotRecorded where recording is impossible.
    """

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._folder = ""
        self._view: TraceView | None = None

    def start(self) -> None:
        """Begin; nothing that is held already is part of it."""
        require_library(NotRecorded)
        self._library = library = ctypes.CDLL(LIBRARY)
        library.vram_tracer_error.restype = ctypes.c_char_p
        self._folder = tempfile.mkdtemp(prefix="vram-trace-")
        candidates = ":".join(path for path in cupti_places("", os.environ) if ":" not in path)
        settings = f"output={self._folder}/here\nstacks=python\ncupti={candidates}\n"
        code = library.vram_tracer_start(settings.encode())
        if code:
            self._library = None
            shutil.rmtree(self._folder, ignore_errors=True)
            said = (library.vram_tracer_error() or b"").decode(errors="replace")
            raise NotRecorded(f"this process cannot be recorded: {said}", hint=_HINTS.get(code, ""))
        # Frameworks say what they used their memory for.
        names = {"__name__": _MODULE, "__vram_tracer__": LIBRARY, "__vram_frameworks__": "auto"}
        exec(compile(Path(FRAMEWORK_PAYLOAD).read_bytes(), FRAMEWORK_PAYLOAD, "exec"), names)

    def stop(self) -> None:
        """End it; what was recorded is read with ``view()``."""
        library, self._library = self._library, None
        if library is None:
            return
        frameworks = sys.modules.pop(_MODULE, None)
        if frameworks is not None:
            frameworks.finish("detach")
        library.vram_tracer_stop()
        try:
            parts = sorted(Path(self._folder).glob("here*"))
            if parts:
                with open_trace(parts) as trace:
                    self._view = with_frameworks(trace.view(), trace)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def view(self) -> TraceView | None:
        """What was recorded; None where the process asked the driver for nothing."""
        return self._view

    def __enter__(self) -> RecordingHere:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
