"""A debugger as a process of ours: lines in, bytes out, never waited for beyond a deadline."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence

from vram.reach.injection import Silence, without_python_settings


class DebuggerPipe:
    """One debugger process; what it is told, and how its answers end, is its dialect's matter."""

    def __init__(self, argv: Sequence[str], *, stderr: int) -> None:
        self._rest = b""
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd="/",
            env=without_python_settings(),
        )

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Silence("the debugger has ended") from None

    def hear(self, mark: bytes, until: float) -> bytes:
        """What it prints before *mark*, which is taken off. Raises Silence."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(output, select.POLLIN)
        while mark not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not poll.poll(None if left == float("inf") else left * 1000):
                raise Silence("the debugger did not answer in time")
            part = os.read(output, 1 << 16)
            if not part:
                raise Silence("the debugger has ended")
            self._rest += part
        told, _, self._rest = self._rest.partition(mark)
        return told

    def end(self) -> None:
        """End the debugger. Attached or not: the kernel lets go of what it held."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
