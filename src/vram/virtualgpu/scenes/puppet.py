"""Does what it is told: a line of JSON in, a line out. It knows verbs, and nothing of why.

A line is a list: the verb, then what it is given. The answer carries a ``value``, or says what
``failed``. It never outlives whoever pulls its strings, except for the heirs that it forks: these
watch the same stdin for its end.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TextIO

import busy
import driver
import hands
import sharing
import stage
from checkpoint import checkpoint_code
from fork_child_closes import device_descriptors

heirs: dict[int, TextIO] = {}
lines_to: dict[int, socket.socket] = {}
kept: list[int] = []
names: dict[str, Any] = {"driver": driver}


# ---- processes ----


def fork() -> int:
    """Fork an heir that sleeps on whatever becomes of us; return its pid."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            answers.close()
            inherit(theirs)
        finally:
            os._exit(0)
    theirs.close()
    heirs[pid], lines_to[pid] = ours.makefile("rw"), ours
    return pid


def inherit(line: socket.socket) -> None:
    """Play the heir: obey while our maker lives, sleep after, leave when the strings are cut."""
    poll = select.poll()
    poll.register(0, 0)
    poll.register(line, select.POLLIN)
    while not any(descriptor == 0 for descriptor, _ in poll.poll()):
        word, descriptors = next_word(line)
        if not word:
            poll.unregister(line)
            continue
        line.sendall(json.dumps(answer_to(json.loads(word), HEIR_VERBS)).encode() + b"\n")
        kept.extend(descriptors)


def next_word(line: socket.socket) -> tuple[bytes, list[int]]:
    """What our maker says, and descriptors with it; nothing once it is gone."""
    try:
        word, descriptors, _, _ = socket.recv_fds(line, 4096, 1)
    except ConnectionResetError:  # killed before it had read our last answer
        return b"", []
    return word, descriptors


def tell_heir(pid: int, *words: Any) -> Any:
    lines_to[pid].sendall(json.dumps(words).encode())
    return heard(heirs[pid])


def hand_over(pid: int, descriptor: int) -> None:
    """Give an heir a descriptor of its own, and close ours."""
    socket.send_fds(lines_to[pid], [b'["nothing"]'], [descriptor])
    heard(heirs[pid])
    os.close(descriptor)


def heard(line: TextIO) -> Any:
    answer = json.loads(line.readline())
    if "failed" in answer:
        raise RuntimeError(answer["failed"])
    return answer["value"]


def nothing() -> None:
    """Only show that we listen."""


def close_device_files() -> int:
    descriptors = device_descriptors()
    for descriptor in descriptors:
        os.close(descriptor)
    return len(descriptors)


def spawn() -> int:
    """Start a program of another kind, as subprocess does: fork and exec. It ends with our stdin."""
    code = "import select; poll = select.poll(); poll.register(0, 0); poll.poll()"
    return subprocess.Popen([sys.executable, "-S", "-c", code]).pid


def crash() -> None:
    """Die as a program does that follows a wild pointer."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def leave() -> None:
    raise SystemExit(0)


# ---- Python ----


def python(code: str) -> Any:
    """Run lines as an interpreter would; ``answer`` is what they found out."""
    names["answer"] = None
    exec(compile(code, "<lab>", "exec"), names)
    return names["answer"]


VERBS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(fork, tell_heir, hand_over, spawn, crash, leave, python),
        *(driver.init, driver.reset, driver.free_and_total),
        *(driver.alloc, driver.alloc_managed, driver.free, driver.fill, driver.alloc_async),
        *(sharing.ipc_handle, sharing.ipc_open, sharing.ipc_close, sharing.create, sharing.release),
        *(sharing.export, sharing.dmabuf, sharing.reserve, sharing.map_code, sharing.unmap),
        *hands.VERBS,
        *busy.VERBS,
        checkpoint_code,
    )
}
HEIR_VERBS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (nothing, close_device_files, hands.alloc_code)
}


def answer_to(words: list[Any], verbs: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    verb, *arguments = words
    try:
        return {"value": verbs[verb](*arguments)}
    except driver.CudaError as error:
        return {"failed": str(error), "code": error.code}
    except ImportError as error:
        return {"failed": str(error), "missing": error.name}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


# What libraries print must not come between our lines.
answers = os.fdopen(os.dup(1), "w")


def main() -> None:
    stage.die_with_parent()
    os.dup2(2, 1)
    # Libraries that are imported later must not meet the scenes under their short names.
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    for line in sys.stdin:
        answers.write(json.dumps(answer_to(json.loads(line), VERBS)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
