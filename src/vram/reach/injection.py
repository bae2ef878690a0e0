"""How a stopped Python is made to run a line of code, without harm: two routes, told apart by its state.

**At rest**: the main thread waits in the C library, called by Python itself, and nobody
holds the interpreter's lock. Then the main thread takes the lock, starts a thread of its
own for the code, and gives the lock back: some microseconds. Nothing else is safe to take
the lock from: not a thread inside malloc, a driver call or a library that has locks of its own.

**Busy**: the code is left as a pending call, which Python makes at its next safe point. That
takes neither the interpreter's lock nor memory from malloc, so it is safe wherever the
thread was stopped. Where Python never comes to a safe point, the code never runs.
"""

from __future__ import annotations

import os
import re
from typing import Literal, Protocol

from msgspec import Struct

Route = Literal["at-rest", "pending"]
GONE = "the process has ended"

PAGE_NBYTES = 4096
READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22
FRAMES = 8

_MMAP = "void*(*)(void*,unsigned long,int,int,int,long)"
_LIBC = re.compile(r"/(libc|libpthread)[.-]")
_PYTHON = re.compile(r"/libpython3|/lib-dynload/")
# Waits for the interpreter's lock are condition waits; the rest holds or changes locks of libc's own.
_NOT_AT_REST = re.compile(r"cond|mutex|alloc|free|dl_|fork|lll_lock", re.IGNORECASE)
_IN_PENDING_CALLS = re.compile(r"pending", re.IGNORECASE)


class Complaint(Exception):
    """The debugger answered with an error."""


class Silence(Exception):
    """The debugger did not answer in time, or is gone."""


class Debugger(Protocol):
    """What a debugger must offer. Every method may raise Complaint or Silence."""

    def attach(self, pid: int) -> None: ...
    def detach(self) -> None: ...
    def end(self) -> None: ...
    def threads(self) -> dict[int, int]: ...
    def frames(self, thread: int, most: int) -> list[tuple[int, str]]: ...
    def select(self, thread: int) -> None: ...
    def hold_others(self, held: bool) -> bool: ...
    def address(self, function: str) -> int: ...
    def call(self, function: str, signature: str, *arguments: str) -> int: ...
    def write(self, address: int, contents: bytes) -> None: ...


def without_python_settings() -> dict[str, str]:
    """Our environment for a debugger: it has a Python of its own inside, and settings for another one
    are not meant for it. Visits by cuda-gdb 13.0 failed until they were kept from it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


class Injection(Struct, frozen=True):
    """What to run, and in which Python."""

    pid: int
    minor: int | None
    code: str


class Unsafe(Exception):
    """The target is in a state in which nothing may be done to it; nothing was."""


def inject(debugger: Debugger, injection: Injection) -> Route:
    """Have the stopped target run the code soon; it may be let go of right after."""
    threads = debugger.threads()
    main = threads.get(injection.pid)
    if main is None:
        raise Unsafe("its main thread has ended")
    debugger.select(main)
    frames = debugger.frames(main, FRAMES)
    if any(_IN_PENDING_CALLS.search(name) for _, name in frames):
        raise Unsafe("it is just making pending calls of its own")
    # Where the others cannot be held, the main thread alone is asked: taking the lock then waits for
    # whoever has it, and they run and let go of it. It must only not have it itself already.
    asked = threads if debugger.hold_others(True) else {injection.pid: main}
    if not debugger.call("Py_IsInitialized", "int(*)(void)"):
        raise Unsafe("its Python is not started, or is ending")
    resting = is_at_rest(frames, injection.pid) and _lock_is_free(debugger, asked, main, injection.minor)
    page = _page(debugger, injection.code)
    # From here on the others run: whoever holds a lock that a call needs can let go of it.
    debugger.hold_others(False)
    return _now(debugger, page) if resting else _soon(debugger, page)


def _page(debugger: Debugger, code: str) -> int:
    """Put the code into memory of its own: a debugger's string would come from the target's malloc."""
    contents = code.encode() + b"\0"
    assert len(contents) <= PAGE_NBYTES
    wanted = ("(void*)0", str(PAGE_NBYTES), str(READ_WRITE), str(PRIVATE_ANONYMOUS), "-1", "0")
    page = debugger.call("mmap", _MMAP, *wanted)
    if page in (-1, 2**64 - 1):
        raise Unsafe("it cannot get a page of memory")
    debugger.write(page, contents)
    return page


def _now(debugger: Debugger, page: int) -> Route:
    state = debugger.call("PyGILState_Ensure", "int(*)(void)")
    try:
        debugger.call("PyRun_SimpleString", "int(*)(void*)", f"(void*){page:#x}")
    finally:
        debugger.call("PyGILState_Release", "int(*)(int)", str(state))
    debugger.call("munmap", "int(*)(void*,unsigned long)", f"(void*){page:#x}", str(PAGE_NBYTES))
    return "at-rest"


def _soon(debugger: Debugger, page: int) -> Route:
    # The page stays: nobody can tell when it is read. 4 KiB for each visit to a busy process.
    arguments = (f"(void*){debugger.address('PyRun_SimpleString'):#x}", f"(void*){page:#x}")
    if debugger.call("Py_AddPendingCall", "int(*)(void*,void*)", *arguments):
        raise Unsafe("its list of pending calls is full: it has not come to a safe point for long")
    return "pending"


def _lock_is_free(debugger: Debugger, threads: dict[int, int], main: int, minor: int | None) -> bool:
    """Whether none of *threads* holds the interpreter's lock."""
    name = "_PyThreadState_UncheckedGet" if minor is None or minor < 13 else "PyThreadState_GetUnchecked"
    # Before 3.12 every thread sees the same holder; since then each knows of itself alone.
    asked = [main] if minor is not None and minor < 12 else list(threads.values())
    try:
        for thread in asked:
            debugger.select(thread)
            if debugger.call(name, "void*(*)(void)"):
                return False
    finally:
        debugger.select(main)
    return True


def is_at_rest(frames: list[tuple[int, str]], pid: int) -> bool:
    """Whether a thread waits in the C library, called there by Python itself."""
    files = _Files(pid)
    inside = 0
    for address, name in frames:
        file = files.at(address)
        if _LIBC.search(file):
            if _NOT_AT_REST.search(name):
                return False
            inside += 1
            continue
        return inside > 0 and (file == files.program or _PYTHON.search(file) is not None)
    return False


class _Files:
    """Which file lies at an address of the target."""

    def __init__(self, pid: int) -> None:
        self.program = os.readlink(f"/proc/{pid}/exe")
        self._ranges: list[tuple[int, int, str]] = []
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                words = line.split(maxsplit=5)
                start, _, end = words[0].partition("-")
                self._ranges.append(
                    (int(start, 16), int(end, 16), words[5].strip() if len(words) > 5 else "")
                )

    def at(self, address: int) -> str:
        return next((file for start, end, file in self._ranges if start <= address < end), "")
