"""Calls that vram depends on, made once in a process of their own, and how they went.

    self_tests cuda                 load and initialise libcuda; no context is made
    self_tests kernel LIBRARY…      system calls, on itself and on a child of its own; loads the libraries

Every call is announced before it is made: where one hangs, its name is known.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import time

from . import PIPE, end_with_parent, say
from .libcuda import CHECKPOINT_CALLS, IN_MAPS, Libcuda, load
from .procfs import map_lines

SYS_PIDFD_GETFD = 438  # the same number on every architecture
SYS_KCMP = {"x86_64": 312, "aarch64": 272}
KCMP_FILE = 0
PTRACE_SEIZE = 0x4206
NOT_IMPLEMENTED = 38

LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    end_with_parent()
    which, *arguments = sys.argv[1:]
    if which == "cuda":
        try_cuda()
    else:
        try_kernel(arguments)


# ---- the CUDA driver ----


def try_cuda() -> None:
    began = time.monotonic()
    say(calling="dlopen")
    try:
        cuda = load()
    except OSError as error:
        say(error=str(error), calling=None)
        return
    path = loaded_from(IN_MAPS)
    lacks = [name for name in CHECKPOINT_CALLS if not hasattr(cuda, name)]
    say(path=path, library_version=version_in(path), lacks=lacks)
    say(calling="cuDriverGetVersion")
    say(cuda_version=cuda_version(cuda))
    say(calling="cuInit")
    code = int(cuda.cuInit(0))
    say(init_code=code)
    if code == 0:
        say(calling="cuDeviceGetCount")
        say(gpus=number(cuda.cuDeviceGetCount))
    say(calling=None, took_s=round(time.monotonic() - began, 3))


def loaded_from(name: bytes) -> str | None:
    """The file behind a library that is loaded: the loader follows links, the kernel names their end."""
    with open("/proc/self/maps", "rb") as maps:
        return next((os.fsdecode(line.path) for line in map_lines(maps.read(), (name,))), None)


def version_in(path: str | None) -> str | None:
    found = re.search(r"\.so\.(\d{3,}(?:\.\d+)+)$", path or "")
    return found.group(1) if found else None


def cuda_version(cuda: Libcuda) -> str | None:
    version = number(cuda.cuDriverGetVersion)
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def number(call: ctypes._NamedFuncPointer) -> int | None:
    value = ctypes.c_int(-1)
    return value.value if call(ctypes.byref(value)) == 0 else None


# ---- the kernel ----


def try_kernel(libraries: list[str]) -> None:
    for name, attempt in (
        ("pidfd_open", try_pidfd_open),
        ("pidfd_getfd", try_pidfd_getfd),
        ("kcmp", try_kcmp),
        ("ptrace", try_ptrace),
    ):
        say(calling=name)
        say(**{name: attempt()})
    say(natives={path: try_loading(path) for path in libraries})
    say(calling=None)


def try_pidfd_open() -> int:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return error.errno or -1
    return 0


def try_pidfd_getfd() -> int:
    """Copy a descriptor of our own; a kernel or a filter that forbids the call forbids it here too."""
    try:
        ourselves = os.pidfd_open(os.getpid())
    except OSError as error:
        return error.errno or -1
    copy, code = call(SYS_PIDFD_GETFD, ourselves, PIPE, 0)
    if copy >= 0:
        os.close(copy)
    os.close(ourselves)
    return code


def try_kcmp() -> int:
    number = SYS_KCMP.get(platform.machine())
    ourselves = os.getpid()
    return NOT_IMPLEMENTED if number is None else call(number, ourselves, ourselves, KCMP_FILE, PIPE, PIPE)[1]


def try_ptrace() -> int:
    """Attach to a child of our own, which Yama allows: what is left are filters and capabilities."""
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.read(theirs, 1)  # ends when we close our end
        os._exit(0)
    os.close(theirs)
    ctypes.set_errno(0)
    result = LIBC.ptrace(ctypes.c_long(PTRACE_SEIZE), ctypes.c_int(child), None, None)
    error = ctypes.get_errno() if result else 0
    os.close(ours)
    os.waitpid(child, 0)
    return error


def try_loading(path: str) -> str | None:
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error)
    return None


def call(number: int, *arguments: int) -> tuple[int, int]:
    """What a system call returned, and its error; 0 where there was none."""
    ctypes.set_errno(0)
    result = int(LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))
    return result, ctypes.get_errno() if result < 0 else 0
