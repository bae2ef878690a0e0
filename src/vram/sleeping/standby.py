"""The standby: waits for the waker to be killed, and starts another one. One that ends by itself says so.

It becomes the new waker, and leaves a copy of itself as the next standby: neither is alone for longer than it
takes to make a process.
"""

from __future__ import annotations

import os
import select
import sys

from vram.children import interpreter

PIPE_FD = 3


def main() -> None:
    os.chdir("/")
    pipe = PIPE_FD
    while True:
        if not _waker_was_killed(pipe):
            return
        os.close(pipe)
        pipe, theirs = os.pipe()
        child = os.fork()
        if child:
            # This process is the waker from now on; its end of the pipe shows whether it lives.
            os.close(pipe)
            os.set_inheritable(theirs, True)
            os.execv(sys.executable, interpreter("vram.sleeping.waker", str(theirs), str(child)))
        os.close(theirs)


def _waker_was_killed(pipe: int) -> bool:
    poll = select.poll()
    # The pipe breaks with the waker, however that ends; what it wrote before is still there.
    poll.register(pipe, select.POLLIN)
    poll.poll()
    try:
        return not os.read(pipe, 16)
    except OSError:
        return True
