"""Becomes a user, inside the running interpreter of a worker that the service started as root.

Rights that are dropped after exec leave a process that its user may signal, and neither trace nor dump: the
kernel clears "dumpable". Before that the worker leaves what is the service's: its control groups, which may
allow devices that the user's own deny, and its session keyring, which may hold keys of root's.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from contextlib import suppress

import msgspec
from msgspec import Struct

from vram.errors import NotPermitted

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_ENOSYS = 38
# Each starts another program. One in the service's control groups could be traced and taken over by its user.
_STARTS_A_PROGRAM = frozenset(("os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"))


class RunAs(Struct, frozen=True):
    """Whose rights a worker has, by numbers that the kernel said.

    ``cgroups`` is the text of that user's /proc/PID/cgroup: of who asks, or of the process that is acted on.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    cgroups: str = ""


def become(text: str) -> None:
    """Be the user of the RunAs in *text* from now on, for good. Call it first, with one thread, as root."""
    run_as = msgspec.json.decode(text, type=RunAs)
    service = os.getppid()
    is_moved = join_cgroups(run_as.cgroups)
    _join_new_keyring()
    os.setgroups(run_as.groups)
    os.setresgid(run_as.gid, run_as.gid, run_as.gid)
    os.setresuid(run_as.uid, run_as.uid, run_as.uid)
    # In a group of the user's, systemd does not end it with the service any more. Cleared by a change of uid.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_DUMPABLE, 0)  # setresuid has done it, unless fs.suid_dumpable is 1
    if os.getppid() != service:
        raise SystemExit(128 + signal.SIGTERM)
    if not is_moved:
        sys.addaudithook(_refuse_programs)


def enter_cgroups(memberships: str) -> None:
    """Be in these control groups from now on; where that cannot be, start no program any more."""
    if not join_cgroups(memberships):
        sys.addaudithook(_refuse_programs)


def _refuse_programs(event: str, _: object) -> None:
    if event in _STARTS_A_PROGRAM:
        raise NotPermitted(
            "the service cannot enter your control group, and starts no program outside of it",
            hint="do it yourself, without `serve`; docs/guides/serve-socket.md says what the service needs",
        )


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def _join_new_keyring() -> None:
    """Have an empty session keyring. Raises where there are keyrings and we cannot leave ours."""
    number = _KEYCTL.get(platform.machine())
    if number is None:
        raise NotPermitted(f"the system calls of {platform.machine()} are not known here")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None) < 0:
        error = ctypes.get_errno()
        if error != _ENOSYS:  # a kernel without keyrings
            raise OSError(error, os.strerror(error))


# ---- control groups ----


def join_cgroups(memberships: str) -> bool:
    """Move this process into these control groups; False where it is not in all of them afterwards."""
    wanted = _by_hierarchy(memberships)
    for controllers, path in (wanted.items() - _by_hierarchy(_own()).items()) if wanted else ():
        # What is outside of our cgroup namespace begins with "/.."; its folder cannot be named.
        if ".." not in path.split("/") and (mount := _mount_point(controllers)):
            with suppress(OSError), open(f"{mount}{path}/cgroup.procs", "wb", buffering=0) as file:
                file.write(b"0")
    return bool(wanted) and _by_hierarchy(_own()) == wanted


def _own() -> str:
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        return file.read()


def _by_hierarchy(memberships: str) -> dict[str, str]:
    """Paths by controllers; "" is version 2. Without the freezer of version 1, in which SIGKILL waits."""
    fields = [line.split(":", 2) for line in memberships.splitlines()]
    return {each[1]: each[2] for each in fields if len(each) == 3 and each[1] != "freezer"}


def _mount_point(controllers: str) -> str | None:
    """Where the hierarchy of *controllers* is mounted whole."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields, (kind, _, options) = before.split(" "), after.rstrip("\n").split(" ", 2)
            named = set(controllers.split(",")) <= set(options.split(",")) if controllers else True
            if fields[3] == "/" and kind == ("cgroup" if controllers else "cgroup2") and named:
                return fields[4]
    return None
