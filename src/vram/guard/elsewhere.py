"""A process that fills device memory and is killed with it: what another one may find afterwards."""

from __future__ import annotations

import subprocess
from threading import Timer

from vram.errors import DeviceError
from vram.payloads import command

DEADLINE_S = 60.0


def left_by_a_killed_process(device: int, nbytes: int, pattern: bytes) -> int:
    """Let another process write *pattern* over *nbytes*; how many it found there before its end.

    When this returns the process is gone, and the driver has its memory back.
    """
    figures = (device, nbytes // len(pattern), len(pattern))
    words = command("fill_and_wait", *map(str, figures))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as process:  # type: ignore[call-overload]
        too_late = Timer(DEADLINE_S, process.kill)
        too_late.start()
        try:
            process.stdin.write(pattern)
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            too_late.cancel()
            process.kill()
        complaint = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
    if not answer:
        raise DeviceError(f"the other process did not answer: {complaint or 'it gave no reason'}")
    return int(answer)
