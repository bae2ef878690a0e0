"""The library that is loaded into a running program for one visit: a copy, with the request written into it.

``native/visitor`` is its source. A copy is a file of its own, because the loader takes a file that it knows
for the library that it has. It lies in the private folder of the visit, beside the socket. Where that folder
forbids to execute files, or the program sees other files than we do, it is a file in memory, and our own
processes open it and the folder through ours, below /proc.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import Any

from vram.errors import NotReachable, Refused, TimedOut
from vram.installation import how_to_get_native
from vram.reach.payload import PayloadRequest
from vram.reach.script_drop import LIBRARY, VisitDrop, make_folder
from vram.reach.target_process import TargetProcess, may_open_our_files, shares_namespace

PATH = os.path.join(os.path.dirname(__file__), "lib", "libvramvisitor.so")
PAYLOADS = ("trim", "tracer.control")
"""What it can be asked: the payloads for Python that it has the same answers to."""

MEMORY_FILE = b"vram-visitor"
"""What the kernel calls a copy that is a file in memory."""

# struct visit of native/visitor/visitor.h
_MARK = b"vram visitor: request follows.."
_VISIT = struct.Struct("<32sQiI4096s28608s")
# Where Debian and its like forbid to execute what lies in /run, root's visits to others lie here.
_ROOTS_FOLDERS = ("/run/vram-visits", "/var/lib/vram-visits")


class LibraryDrop(VisitDrop):
    """A request to a program of any language, as a library."""

    def __init__(self, request: PayloadRequest, process: TargetProcess, until: float) -> None:
        self._request = request
        self._memory_file: int | None = None
        super().__init__(process, until)

    def _make_folder(self) -> str:
        if self._process.is_ours:
            return make_folder(self._process)
        usable = (path for path in _ROOTS_FOLDERS if not _forbids_execution(os.path.dirname(path)))
        return make_folder(self._process, next(usable, _ROOTS_FOLDERS[0]))

    def _write_files(self) -> None:
        sees_folder = shares_namespace(self._pid, "mnt")
        if sees_folder and not _forbids_execution(self.path):
            self.library = os.path.join(self.path, LIBRARY)
            mode = 0o700 if self._process.is_ours else 0o755
            os.close(self._write(LIBRARY, self._filled(self.path), mode))
            return
        if not may_open_our_files(self._process):
            raise NotReachable(
                f"{self.path} forbids to execute files (noexec)"
                if sees_folder
                else "it sees other files than vram",
                hint="mount one of /run and /var without noexec"
                if sees_folder
                else "run vram inside its container",
            )
        ours = f"/proc/{os.getpid()}/fd"
        self._memory_file = os.memfd_create(MEMORY_FILE.decode(), os.MFD_CLOEXEC)
        os.write(self._memory_file, self._filled(f"{ours}/{self._folder}"))
        self.library = f"{ours}/{self._memory_file}"

    def _filled(self, folder: str) -> bytes:
        return filled(folder, self._process.pid_inside, self._until, lines(self._request))

    def close(self) -> None:
        if self._memory_file is not None:
            os.close(self._memory_file)
            self._memory_file = None
        self._close_keeping(None)

    def timed_out(self) -> Refused:
        return TimedOut(
            f"pid {self._pid} did not load vram's library in time; nothing was done",
            hint="it is busy loading libraries, or has no processor time; wait longer with --deadline",
        )


def why_missing() -> str | None:
    """Why the library cannot be used here; None where it can."""
    try:
        _original()
    except FileNotFoundError:
        return f"vram's library for it is not installed: {how_to_get_native()}"
    except (OSError, ValueError) as error:
        return f"vram's library for it cannot be read: {error}"
    return None


def filled(folder: str, pid: int, until: float, text: str) -> bytes:
    """The library with a request in it. Raises NotReachable where it does not fit."""
    original, at = _original()
    fields = os.fsencode(folder), text.encode("utf-8", "surrogateescape")
    if len(fields[0]) >= 4096 or len(fields[1]) >= 28608 or b"\0" in fields[0] + fields[1]:
        raise NotReachable("the request to the process is too long")
    visit = _VISIT.pack(_MARK, int(until * 1e9), pid, 0, *fields)
    return original[:at] + visit + original[at + len(visit) :]


def lines(request: PayloadRequest) -> str:
    """*request* as lines of key=value, which need no parser in somebody else's program."""
    fields: dict[str, Any] = dict(request.fields)
    settings = dict(fields.pop("settings", {}))
    plain = {key: fields[key] for key in ("verb", "library", "for_s", "file") if fields.get(key) is not None}
    if settings:
        plain["output"] = settings["output"]
        first, rest = fields.get("cupti_first", ()), fields.get("cupti", ())
        found = dict.fromkeys(os.path.realpath(path) for path in (*first, *rest))
        settings["cupti"] = ":".join(path for path in found if ":" not in path)
    written = [f"{key}={value}" for key, value in plain.items()]
    written += [
        f"held={each['uuid'] or '-'} {each['nbytes']} {each['source']}" for each in fields.get("held", ())
    ]
    if any("\n" in line for line in written):
        raise NotReachable("a line break in a path cannot be handed over")
    if settings:
        written += ["settings:", *(f"{key}={value}" for key, value in settings.items() if value)]
    return "".join(f"{line}\n" for line in written)


@cache
def _original() -> tuple[bytes, int]:
    with open(PATH, "rb") as file:
        content = file.read()
    at = content.find(_MARK)
    if at < 0 or content.find(_MARK, at + 1) >= 0 or at + _VISIT.size > len(content):
        raise ValueError("it is not the one that came with this vram")
    return content, at


def _forbids_execution(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return True
