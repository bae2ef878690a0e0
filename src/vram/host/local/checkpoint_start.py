"""Starts a checkpoint worker, before vram does anything else.

It imports next to nothing: the driver takes as long to initialise as the rest of vram takes to be imported.
"""

from __future__ import annotations

import os
import sys
from socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair

from vram.host.local.child import driver_environment

_SOCKET_FD = 3

Started = tuple[int, socket]


def start_worker() -> Started:
    """Return the checkpoint worker's pid and our end of its socket."""
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    with theirs:
        return _spawn(theirs.fileno()), ours


def _spawn(socket_fd: int) -> int:
    """Start the checkpoint worker in a session of its own: what is typed at our terminal is not for it."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    code = f"import sys; sys.path.append({root!r}); from vram.payloads.checkpoint_worker import main; main()"
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    # Descriptor 3 may be the socket itself; dup2 onto itself would leave close-on-exec set.
    copy = os.dup(socket_fd) if socket_fd == _SOCKET_FD else socket_fd
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", code, "vram-checkpoint-worker"],
            driver_environment(),
            file_actions=[*quiet, (os.POSIX_SPAWN_DUP2, copy, _SOCKET_FD)],
            setsid=True,
        )
    finally:
        if copy != socket_fd:
            os.close(copy)
