"""Starting fast, in one place: what is begun before the command line is parsed, and how the host is made.

Child processes read the driver, and wake it up for parking, while this process parses and
imports. Words that turn out to be wrong cost nothing but those processes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vram.children import Child
    from vram.host.local import LocalHost

# These only read: nothing is left to tidy up, so their process may end without ceremony.
READ_ONLY = frozenset(("why", "ps", "who", "check", "doctor", "explain", "oom"))
# These have waited for all that they began, so the same holds.
FINISHED = frozenset(("park", "unpark", "borrow"))

_READ_THE_DRIVER = READ_ONLY - {"explain", "oom"} | {
    *("inside", "snapshot", "free", "kill", "reset", "trim", "release", "park", "borrow")
}
_PARK = frozenset(("park", "unpark", "borrow"))
_USE_MSGSPEC = (
    READ_ONLY
    | FINISHED
    | _READ_THE_DRIVER
    | {"run", "attach", "report", "watch", "wait", "serve", "history", "slurm", "lab"}
)
# With these words another source is read, or nothing, or the same more than once.
_NOT_NOW = ("--from", "--help", "-h")

_reader: Child | None = None
_worker: Child | None = None


def begin(words: Sequence[str]) -> bool:
    """Start what *words* look as if they will need; say whether the process may end without ceremony."""
    global _reader, _worker
    name = words[0] if words else ""
    is_short = name in READ_ONLY | FINISHED
    if is_short:
        gc.disable()  # for one answer there is nothing worth collecting
    else:
        gc.set_threshold(50_000)  # imports make no garbage: looking for it costs a tenth of `vram free`
    # `vram park` without a pid only lists: it moves nothing and reads no GPU.
    lists_parked = name == "park" and not any(word.isdigit() for word in words)
    if words and not any(word.startswith(_NOT_NOW) for word in words) and not lists_parked:
        if name in _PARK:
            _worker = _checkpoint_worker()
        if name in _READ_THE_DRIVER:
            _reader = _driver_reader()
    if name in _USE_MSGSPEC:
        _import_msgspec()
    return is_short


def open_host(
    *,
    reads_driver: bool = True,
    parks: bool = False,
    read_ahead_s: float | None = None,
    proc_root: str = "/proc",
    **options: Any,
) -> LocalHost:
    """This machine, with the children that have been started already, or are started now.

    *reads_driver* and *parks* say what the command will ask; with *read_ahead_s* open files are
    read from now on too. Other *options* are those of :class:`LocalHost`.
    """
    reader = _driver_reader() if reads_driver else None
    worker = _checkpoint_worker() if parks else None
    from vram.host.local import LocalHost

    return LocalHost(proc_root, reader=reader, read_ahead_s=read_ahead_s, checkpoint_worker=worker, **options)


def import_for_readers() -> None:
    """Import what every reader of the driver needs, once: for commands that read again and again.

    Readers are forked, so they find it there. No library of the driver is loaded by it.
    """
    import vram.host.local.nvml_child  # noqa: F401

    with suppress(ImportError):  # the reader meets it again, and reports it
        import pynvml  # noqa: F401


def _driver_reader() -> Child | None:
    """The reader that was started, once, or one that starts now."""
    global _reader
    started, _reader = _reader, None
    if started is None:
        from vram.host.local import start_reader

        with suppress(OSError):  # the reading itself meets it again, and reports it
            started = start_reader(set())
    return started


def _checkpoint_worker() -> Child | None:
    """The checkpoint worker that was started, once, or one that starts now."""
    global _worker
    started, _worker = _worker, None
    if started is None:
        from vram.host.local import start_checkpoint_worker

        with suppress(OSError):  # met again when it is asked
            started = start_checkpoint_worker()
    return started


def _import_msgspec() -> None:
    """Import msgspec without typing_extensions: typing has all that our types need.

    Where that package is installed, importing it takes a fifth of the time of `vram why`. Later it can
    be imported again.
    """
    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]
