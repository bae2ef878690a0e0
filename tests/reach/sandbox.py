"""Give up system calls, as sandboxed programs do, or as a container runtime does for the programs in it.

    sandbox.py FILTER COMMAND ...         COMMAND has that filter from its start

Programs import it, and give up calls themselves. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_KILL, _TRAP, _ERRNO, _ALLOW = 0x80000000, 0x00030000, 0x00050000, 0x7FFF0000
_EPERM = 1
_MACHINES = {
    "x86_64": {
        "seccomp": 317,
        "connect": 42,
        "clone": 56,
        "clone3": 435,
        "mmap": 9,
        "restart_syscall": 219,
        "io_uring_setup": 425,
        "kexec_load": 246,
        "kcmp": 312,
    },
    "aarch64": {
        "seccomp": 277,
        "connect": 203,
        "clone": 220,
        "clone3": 435,
        "mmap": 222,
        "restart_syscall": 128,
        "io_uring_setup": 425,
        "kexec_load": 104,
        "kcmp": 272,
    },
}
NUMBERS = _MACHINES.get(platform.machine(), {})

# What becomes of a program that makes one of these calls. The last one is what container runtimes set: it
# forbids what no Python needs, and kills nobody.
FILTERS = {
    "kill-connect": (_KILL, "connect"),
    "kill-clone": (_KILL, "clone", "clone3"),
    "kill-exec-memory": (_KILL, "mmap"),
    "kill-restart": (_KILL, "restart_syscall"),
    "trap-connect": (_TRAP, "connect"),
    "errno-connect": (_ERRNO | _EPERM, "connect"),
    "errno-kcmp": (_ERRNO | _EPERM, "kcmp"),
    "container": (_ERRNO | _EPERM, "io_uring_setup", "kexec_load"),
}
_PROT_EXEC = 4
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_CAP_SYS_ADMIN = 21
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("at", ctypes.c_void_p))


def give_up(name: str, *, all_threads: bool = True, as_root: bool = False) -> None:
    """Set the filter *name*, or "strict": then only read, write, exit and the return from a signal are left.

    *as_root*: without giving up new privileges, which takes CAP_SYS_ADMIN.
    """
    if name == "strict":
        _done(_libc.prctl(_PR_SET_SECCOMP, 1, 0, 0, 0))
        return
    if not as_root:
        _done(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    code = _instructions(name)
    program = _Program(len(code) // 8, ctypes.cast(ctypes.c_char_p(code), ctypes.c_void_p))
    flags = _ALL_THREADS if all_threads else 0
    _done(_libc.syscall(NUMBERS["seccomp"], _SET_MODE_FILTER, flags, ctypes.byref(program)))


def _instructions(name: str) -> bytes:
    action, *calls = FILTERS[name]
    load, equal, has_bits, result = 0x20, 0x15, 0x45, 0x06
    lines = [(load, 0, 0, 0)]
    if calls == ["mmap"]:  # only of memory to be executed, as by dlopen
        lines += [(equal, 0, 3, NUMBERS["mmap"]), (load, 0, 0, 32), (has_bits, 0, 1, _PROT_EXEC)]
    else:
        lines += [
            (equal, len(calls) - 1 - at, int(at == len(calls) - 1), NUMBERS[call])
            for at, call in enumerate(calls)
        ]
    lines += [(result, 0, 0, action), (result, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def _done(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def drop_sys_admin() -> None:
    _done(_libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0))


if __name__ == "__main__":
    is_root = sys.argv[1].startswith("root:")
    give_up(sys.argv[1].removeprefix("root:"), as_root=is_root)
    if is_root:
        drop_sys_admin()
    os.execvp(sys.argv[2], sys.argv[2:])
