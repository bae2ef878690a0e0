"""The library that is loaded into a running program for one visit: a copy, with the request written into it.

``native/visitor`` is its source. A copy is a file of its own, because the loader takes a file that it knows
for the library that it has. It lies in the private folder of the visit, beside the socket. Where that folder
forbids to execute files, or the program sees other files than we do, the program itself makes a file in
memory, which we fill (:mod:`vram.reach.native`).
"""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import Any

from vram.errors import NotReachable, Refused, TimedOut
from vram.installation import how_to_get_native
from vram.payloads import delivery
from vram.reach.payload import PayloadRequest
from vram.reach.script_drop import LIBRARY, NamedSocket, PrivateFolder, VisitDrop
from vram.reach.target_process import TargetProcess

PATH = os.path.join(os.path.dirname(__file__), "lib", "libvramvisitor.so")
PAYLOADS = ("trim", "tracer.control")
"""What it can be asked: the payloads for Python that it has the same answers to."""

MEMORY_FILE = "vram-visitor"
"""How the name of a copy begins that is a file in memory."""

# struct visit of native/visitor/visitor.h
_MARK = b"vram visitor: request follows.."
_VISIT = struct.Struct("<32sQiI40s4056s28608s")


class LibraryDrop(VisitDrop):
    """A request to a program of any language, as a library."""

    def __init__(self, request: PayloadRequest, process: TargetProcess, until: float) -> None:
        self._request = request
        self._carried = b""
        self.library: str | None = None
        """Its path; None where the program has to make a file for it in memory, of that name and content:"""
        self.memory_file, self.content = "", b""
        super().__init__(process, until)

    def _make_place(self) -> PrivateFolder | NamedSocket:
        place = super()._make_place()
        if isinstance(place, NamedSocket) or not _forbids_execution(place.path):
            return place
        place.close()
        return NamedSocket(self._process, self._until)

    def _prepare(self) -> None:
        pid, until = self._process.pid_inside, self._until
        if isinstance(self.place, PrivateFolder):
            content = filled(self.place.path, pid, until, lines(self._request))
            os.close(self.place.write(LIBRARY, content, 0o755))
            self.library = os.path.join(self.place.path, LIBRARY)
            return
        # The library finds by the name of the socket who has died: nobody listens there any more.
        self.memory_file = self.place.name.replace("vram-", f"{MEMORY_FILE}-", 1)
        self._carried = dict(self._request.read_files()).get("library", b"")
        self.content = filled(
            f"@{self.place.name}",
            *(pid, until, lines(self._request)),
            secret=self.place.secret,
            carried=len(self._carried),
        )

    def _greeting(self) -> bytes:
        secret = b"" if isinstance(self.place, PrivateFolder) else self.place.secret
        return secret + self._carried + delivery.GO

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


def filled(
    address: str, pid: int, until: float, text: str, *, secret: bytes = b"", carried: int = 0
) -> bytes:
    """The library with a request in it. Raises NotReachable where it does not fit.

    *address* is the folder with our socket, or its abstract name after "@": then the library waits for
    *secret*, and so many bytes of the recorder's library follow.
    """
    original, at = _original()
    fields = os.fsencode(address), text.encode("utf-8", "surrogateescape")
    if len(fields[0]) >= 4056 or len(fields[1]) >= 28608 or b"\0" in fields[0] + fields[1]:
        raise NotReachable("the request to the process is too long")
    visit = _VISIT.pack(_MARK, int(until * 1e9), pid, carried, secret, *fields)
    return original[:at] + visit + original[at + len(visit) :]


def lines(request: PayloadRequest) -> str:
    """*request* as lines of key=value, which need no parser in somebody else's program."""
    fields: dict[str, Any] = dict(request.fields)
    settings = dict(fields.pop("settings", {}))
    plain = {
        key: fields[key]
        for key in ("verb", "library", "for_s", "file", "elsewhere")
        if fields.get(key) is not None
    }
    if settings:
        plain["output"] = settings["output"]
        first, rest = fields.get("cupti_first", ()), fields.get("cupti", ())
        found = dict.fromkeys(os.path.realpath(path) for path in (*first, *rest))
        settings["cupti"] = ":".join(path for path in found if ":" not in path)
    written = [f"{key}={value}" for key, value in plain.items()]
    written += [
        f"held={each['uuid'] or '-'} {each['nbytes']} {each['source']}" for each in fields.get("held", ())
    ]
    written += [f"folder={each}" for each in fields.get("folders", ())]
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
