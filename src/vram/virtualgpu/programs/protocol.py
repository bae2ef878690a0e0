"""How a demo program talks: one JSON line per stage on stdout, one line on stdin to go on.

End of file on stdin ends the program: it cleans up and exits. Processes that it starts never
outlive it, except where that is the point; those watch the same stdin for its end.

Hundreds of such programs start in a run of the tests: what only some need is imported where it is used.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from socket import socket
    from typing import Any, ClassVar

    Turns = Generator[Any, Any, None]

MIB = 1024**2
GIB = 1024**3
PR_SET_PDEATHSIG = 1


def ready(stage: str, *, pids: dict[str, int] | None = None, nbytes: int = 0, **facts: Any) -> None:
    """Report that *stage* is reached, and which processes take part in it."""
    line = {"ready": True, "stage": stage, "pids": pids or {"self": os.getpid()}, "nbytes": nbytes, **facts}
    print(json.dumps(line), flush=True)


def fork() -> int:
    """As os.fork. Since 3.12 Python warns where there are threads, and the driver has some everywhere."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def wait() -> str:
    """Wait for the line that says to go on, and return it; end of file ends the program."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    return line.strip()


def stage(name: str, **facts: Any) -> None:
    """Report that stage *name* is reached, and wait for the line that says to go on."""
    ready(name, **facts)
    wait()


def size_argument(default: int) -> int:
    """Return the first argument as bytes (4096, 64MiB, 4GiB), else *default*."""
    word = sys.argv[1] if len(sys.argv) > 1 else str(default)
    for unit, scale in (("MiB", MIB), ("GiB", GIB)):
        if word.endswith(unit):
            return int(word.removesuffix(unit)) * scale
    return int(word)


def main(*situations: Callable[[], None]) -> None:
    """Run a situation; where there are several, the first argument names one. A failure is a line too."""
    try:
        (situations[0] if len(situations) == 1 else _choose(situations))()
    except Exception as error:
        print(json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"}), flush=True)
        raise SystemExit(1) from error
    finally:
        # The process that waits for this one may measure at once: no worker may still be exiting.
        for worker in tuple(ForkedWorker.living):
            worker.kill()


def _choose(situations: tuple[Callable[[], None], ...]) -> Callable[[], None]:
    known = {situation.__name__: situation for situation in situations}
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in known:
        raise ValueError(f"the first argument is one of {', '.join(known)}, not {name!r}")
    return known[name]


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that forked it ends."""
    import signal

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def kill_child(pid: int) -> None:
    """End a child of this process at once, and reap it."""
    import signal

    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def sleep_until_closed(descriptor: int = 0) -> None:
    """Sleep until the other end of *descriptor* is closed, without reading from it."""
    import select

    poll = select.poll()
    poll.register(descriptor, 0)
    poll.poll()


class ForkedWorker:
    """A forked process that works in turns.

    Its work is a generator: what it yields comes back from ``turn``, what ``turn`` is
    given it receives. The worker dies with the process that started it.
    """

    living: ClassVar[list[ForkedWorker]] = []

    def __init__(self, work: Callable[..., Turns], *arguments: Any) -> None:
        from socket import socketpair

        ours, theirs = socketpair()
        self.pid = fork()
        if self.pid == 0:
            die_with_parent()
            ours.close()
            _take_turns(work(*arguments), theirs)
        theirs.close()
        ForkedWorker.living.append(self)
        self._lines = ours.makefile("rw")
        self.first = self._answer()

    def turn(self, value: Any = None) -> Any:
        """Let the worker take its next turn; return what it yields."""
        self._lines.write(json.dumps(value) + "\n")
        self._lines.flush()
        return self._answer()

    def kill(self) -> None:
        """End the worker at once, and reap it."""
        ForkedWorker.living.remove(self)
        kill_child(self.pid)

    def reap(self) -> int:
        """Wait until the worker has ended; return its wait status."""
        ForkedWorker.living.remove(self)
        return os.waitpid(self.pid, 0)[1]

    def _answer(self) -> Any:
        line = self._lines.readline()
        if not line:
            raise RuntimeError("a worker ended before its turn")
        answer = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer["value"]


def _take_turns(turns: Turns, connection: socket) -> None:
    """Take turns until the other side closes the connection. Never returns into the parent's code."""
    lines = connection.makefile("rw")
    try:
        value: Any = None
        while True:
            lines.write(json.dumps({"value": turns.send(value)}) + "\n")
            lines.flush()
            line = lines.readline()
            if not line:
                break
            value = json.loads(line)
    except StopIteration:
        os._exit(0)
    except BaseException as error:
        lines.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")
        lines.flush()
    os._exit(0)
