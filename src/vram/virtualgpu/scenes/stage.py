"""How a scene is played: one JSON line per stage on stdout, one line on stdin to go on.

End of file on stdin ends the scene: it cleans up and leaves. Processes that a scene starts
never outlive it, except where that is the point; those watch the same stdin for its end.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import Any, ClassVar

MIB = 1024**2
GIB = 1024**3
PR_SET_PDEATHSIG = 1

Play = Generator[Any, Any, None]


def ready(stage: str, *, pids: dict[str, int] | None = None, nbytes: int = 0, **facts: Any) -> None:
    """Tell the audience that *stage* is set, and who takes part in it."""
    line = {"ready": True, "stage": stage, "pids": pids or {"self": os.getpid()}, "nbytes": nbytes, **facts}
    print(json.dumps(line), flush=True)


def wait() -> str:
    """Wait for the word to go on; end the scene where nobody is left to give it."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    return line.strip()


def size_argument(default: int) -> int:
    """Return the scene's size in bytes: its first argument (4096, 64MiB, 4GiB), else *default*."""
    word = sys.argv[1] if len(sys.argv) > 1 else str(default)
    for unit, scale in (("MiB", MIB), ("GiB", GIB)):
        if word.endswith(unit):
            return int(word.removesuffix(unit)) * scale
    return int(word)


def act(scene: Callable[[], None]) -> None:
    """Run *scene*; a failure becomes a line that the audience can read."""
    try:
        scene()
    except Exception as error:
        print(json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"}), flush=True)
        raise SystemExit(1) from error
    finally:
        # Whoever waits for this process may measure at once: nobody may still be leaving.
        for worker in tuple(Worker.living):
            worker.kill()


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that forked it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end(child: int) -> None:
    """End a child of this process at once, and reap it."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def outlive(until_fd: int = 0) -> None:
    """Sleep until the other end of *until_fd* is closed, without reading from it."""
    poll = select.poll()
    poll.register(until_fd, 0)
    poll.poll()


class Worker:
    """A forked process that plays its part in turns.

    The part is a generator: what it yields comes back from ``turn``, what ``turn`` is
    given it receives. The worker dies with the process that started it.
    """

    living: ClassVar[list[Worker]] = []

    def __init__(self, part: Callable[..., Play], *arguments: Any) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            die_with_parent()
            ours.close()
            _play(part(*arguments), theirs)
        theirs.close()
        Worker.living.append(self)
        self._lines = ours.makefile("rw")
        self.first = self._answer()

    def turn(self, word: Any = None) -> Any:
        """Let the worker play its next turn; return what it yields."""
        self._lines.write(json.dumps(word) + "\n")
        self._lines.flush()
        return self._answer()

    def kill(self) -> None:
        """End the worker at once, and reap it."""
        Worker.living.remove(self)
        end(self.pid)

    def reap(self) -> int:
        """Wait until the worker has ended; return its wait status."""
        Worker.living.remove(self)
        return os.waitpid(self.pid, 0)[1]

    def _answer(self) -> Any:
        line = self._lines.readline()
        if not line:
            raise RuntimeError("a worker ended before its turn")
        answer = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer["value"]


def _play(play: Play, line: socket.socket) -> None:
    """Play turns until the other side hangs up. Never returns into the parent's code."""
    lines = line.makefile("rw")
    try:
        word: Any = None
        while True:
            lines.write(json.dumps({"value": play.send(word)}) + "\n")
            lines.flush()
            said = lines.readline()
            if not said:
                break
            word = json.loads(said)
    except StopIteration:
        os._exit(0)
    except BaseException as error:
        lines.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")
        lines.flush()
    os._exit(0)
