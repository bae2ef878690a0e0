"""A program that takes some memory on the GPU, reports to its test and waits for the test's end.

    worker.py SOCKET NAME [ANYTHING ...]

Options are for those who read the command line, but for --without-memory=RANK: that rank takes none. NAME
may contain variables of the environment, as in
``rank{RANK}``. Launchers import this module: whatever a test starts reports by a connection to its socket,
and exits when the test closes that, or dies.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys

NBYTES = 32 << 20
PR_SET_NAME = 15


def take_memory() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    for answer in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(NBYTES)),
    ):
        if answer:
            raise SystemExit(f"a driver call answered {answer}")


def report(address: str, name: str) -> socket.socket:
    """Connect to the test; the kernel tells it our pid, as the test's own PID namespace counts."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    connection.sendall(name.format(**os.environ).encode() + b"\n")
    return connection


def report_head(address: str) -> socket.socket:
    """As the launcher of others. Where a test has several, $HEAD is its name."""
    return report(address, os.environ.get("HEAD", "head"))


def wait_for_end(connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.poll()


def hold(address: str, name: str) -> None:
    """Hold memory until the test is over. With $IGNORES_SIGTERM only SIGKILL ends it before.

    The rank that $TITLED names writes a title over its environment.
    """
    if os.environ.get("IGNORES_SIGTERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    take_memory()
    if os.environ.get("TITLED", "none") == os.environ.get("RANK"):
        set_title("train")
    wait_for_end(report(address, name))


def hold_with_the_gil(address: str, name: str) -> None:
    """As hold(), inside a C call that never lets another thread of this Python run."""
    take_memory()
    connection = report(address, name)
    request = (ctypes.c_int * 2)(connection.fileno(), select.POLLIN)  # struct pollfd
    ctypes.PyDLL(None).poll(request, 1, -1)


def set_title(title: str) -> None:
    """Write *title* over our command line and environment, as setproctitle 1.3.8 does on Linux.

    src/spt_status.c: the title is copied to where the arguments begin, and all that follows, up to the end of
    the environment, becomes NUL. So /proc/PID/environ names nothing any more, and /proc/PID/cmdline is the
    title, followed by NULs where the arguments were longer.
    """
    for key, value in os.environ.items():
        os.environ[key] = value  # libc's copies must not lie in what is overwritten
    with open("/proc/self/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    arguments_begin, environment_end = int(fields[45]), int(fields[48])
    ctypes.memset(arguments_begin, 0, environment_end - arguments_begin)
    ctypes.memmove(arguments_begin, title.encode(), len(title.encode()))
    ctypes.CDLL(None).prctl(PR_SET_NAME, title.encode())


if __name__ == "__main__":
    address, name, *_ = (word for word in sys.argv[1:] if not word.startswith("-"))
    if f"--without-memory={os.environ.get('RANK')}" in sys.argv:
        wait_for_end(report(address, name))
    else:
        hold(address, name)
