"""A lock for each process that is moved: one vram, with its checkpoint worker, has it at a time.

A claim is a lock on the byte number PID of one file in the private state folder. It belongs to the
open file and travels with its descriptor, so it lasts while the vram or the worker that moves the
process lives, and not a moment longer. A process that is stopped, or stuck in the driver, still has it:
others wait up to a deadline, and then the error says who has it.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

from vram.errors import AuditUnavailable, TimedOut
from vram.host.ports import Host
from vram.reclaim import state

# Longer than a vram takes to clean up after another; a move itself is not waited for.
WAIT_S = 2.0
_PAUSE_S = 0.01
WORKER = "vram-checkpoint-worker"
_SEARCH_S = 1.0
_NOT_RUNNING = {
    "T": ", which is stopped",
    "t": ", which a debugger has stopped",
    "D": ", stuck in the kernel",
}


class ProcessClaim:
    """The lock on moving one process."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __enter__(self) -> ProcessClaim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def fileno(self) -> int:
        return self._file


def try_claim(host_name: str, pid: int) -> ProcessClaim | None:
    """Take the claim on *pid*; None where somebody has it.

    Raises AuditUnavailable where the file or its disk takes no locks.
    """
    file = state.open_file(_file_name(host_name), os.O_RDWR | os.O_CREAT)
    lock = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, pid, 1, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    except (BlockingIOError, PermissionError):  # POSIX lets a system choose between the two
        os.close(file)
        return None
    except OSError as error:
        os.close(file)
        raise AuditUnavailable(
            f"cannot lock {_file_name(host_name)}: {error.strerror}",
            hint="set XDG_STATE_HOME to a folder on a disk that supports file locks",
        ) from error
    return ProcessClaim(file)


def claim(host: Host, host_name: str, pid: int, wait_s: float = WAIT_S) -> ProcessClaim:
    """Take the claim on *pid*, waiting for it up to *wait_s*; raises TimedOut and says who has it."""
    deadline = host.clock.monotonic() + wait_s
    while (taken := try_claim(host_name, pid)) is None:
        if host.clock.monotonic() >= deadline:
            raise _timed_out(host, host_name, pid)
        host.clock.sleep(_PAUSE_S)
    return taken


def _timed_out(host: Host, host_name: str, pid: int) -> TimedOut:
    names = [_described(host, holder) for holder in _holders(host_name, pid)]
    who = f"by {' and '.join(names)}" if names else "by a process that is not visible from here"
    return TimedOut(
        f"pid {pid} is being moved {who}; it was not touched",
        hint="wait until that is done; `vram park` shows its state. If the mover has exited, the next"
        " vram command resumes it",
    )


def _described(host: Host, pid: int) -> str:
    seen = host.proc.facts(pid)
    if seen is None:
        return f"pid {pid}"
    facts = seen[1]
    # A worker's own command line is a line of Python that means nothing to people.
    command = facts.argv[-1] if facts.argv[-1:] == (WORKER,) else " ".join(facts.argv) or facts.command
    return f"pid {pid} ({command}){_NOT_RUNNING.get(facts.state, '')}"


def _holders(host_name: str, pid: int) -> list[int]:
    """Who has the locked file open. The kernel names no process for such a lock, only the open files that
    carry it."""
    path = os.fsencode(os.path.realpath(os.path.join(state.folder_path(), _file_name(host_name))))
    deadline = time.monotonic() + _SEARCH_S
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if time.monotonic() >= deadline:
            break
        if any(_covers(info, pid) for info in _infos(name, path)):
            found.append(int(name))
    return found


def _infos(process: str, path: bytes) -> Iterator[str]:
    """The fdinfo of each descriptor of *process* that is *path*."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{process}/fd"):
            with suppress(OSError):
                if os.readlink(os.fsencode(f"/proc/{process}/fd/{number}")) == path:
                    with open(f"/proc/{process}/fdinfo/{number}", encoding="ascii") as file:
                        yield file.read()


def _covers(info: str, pid: int) -> bool:
    ranges = re.findall(r"^lock:.* (\d+) (\d+|EOF)$", info, re.MULTILINE)
    return any(int(first) <= pid and (last == "EOF" or pid <= int(last)) for first, last in ranges)


def _file_name(host_name: str) -> str:
    return f"parking-{file_name_part(host_name)}.lock"


def file_name_part(word: str) -> str:
    """*word* as a part of a file's name."""
    return re.sub(r"[^0-9A-Za-z.-]", "-", word)
