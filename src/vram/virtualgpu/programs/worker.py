"""The lab's worker: carries out one operation per line, and answers with a line.

Its first line names the operations that it has. A line to it is a list, the operation and its
arguments; the answer carries a ``value``, or says what ``failed``. It never outlives the process
that started it, except for the children that it forks: these watch the same stdin for its end.
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
from typing import Any, NoReturn, TextIO

import driver
import protocol
import worker_operations

Operations = dict[str, Callable[..., Any]]

answers_of: dict[int, TextIO] = {}
connection_to: dict[int, socket.socket] = {}
kept_descriptors: list[int] = []
python_names: dict[str, Any] = {"driver": driver}


# ---- forked children ----


def fork() -> int:
    """Fork a child that sleeps on whatever becomes of us; return its pid."""
    ours, theirs = socket.socketpair()
    pid = protocol.fork()
    if pid == 0:
        try:
            ours.close()
            answers.close()
            _be_the_child(theirs)
        finally:
            os._exit(0)
    theirs.close()
    answers_of[pid], connection_to[pid] = ours.makefile("rw"), ours
    return pid


def _be_the_child(connection: socket.socket) -> None:
    """Carry out operations while the parent lives, sleep after it, exit at the end of stdin."""
    poll = select.poll()
    poll.register(0, 0)
    poll.register(connection, select.POLLIN)
    while not any(descriptor == 0 for descriptor, _ in poll.poll()):
        line, descriptors = _receive(connection)
        if not line:
            poll.unregister(connection)
            continue
        connection.sendall(json.dumps(_answer(json.loads(line), OF_A_CHILD)).encode() + b"\n")
        kept_descriptors.extend(descriptors)


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The parent's next line and the descriptors that came with it; an empty one once it is gone."""
    try:
        line, descriptors, _, _ = socket.recv_fds(connection, 4096, 1)
    except ConnectionResetError:  # killed before it had read our last answer
        return b"", []
    return line, descriptors


def call_child(pid: int, operation: str, *arguments: Any) -> Any:
    """Have a forked child carry out an operation of ``OF_A_CHILD``."""
    connection_to[pid].sendall(json.dumps([operation, *arguments]).encode())
    return _value_from(pid)


def send_descriptor(pid: int, descriptor: int) -> None:
    """Pass a descriptor to a forked child, and close ours."""
    socket.send_fds(connection_to[pid], [b'["nothing"]'], [descriptor])
    _value_from(pid)
    os.close(descriptor)


def _value_from(pid: int) -> Any:
    answer = json.loads(answers_of[pid].readline())
    if "failed" in answer:
        raise RuntimeError(answer["failed"])
    return answer["value"]


def nothing() -> None:
    """Only answer."""


# ---- other programs, and the end ----


def spawn() -> int:
    """Start another program as subprocess does, by fork and exec; it ends with our stdin."""
    code = "import select; poll = select.poll(); poll.register(0, 0); poll.poll()"
    return subprocess.Popen([sys.executable, "-S", "-c", code]).pid


def abort() -> None:
    """Die as a program does that follows a wild pointer. No core file is written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def leave() -> NoReturn:
    """Exit as programs do, freeing nothing first."""
    raise SystemExit(0)


def run_python(code: str) -> Any:
    """Run lines as an interpreter would; return what they assign to ``answer``."""
    python_names["answer"] = None
    exec(compile(code, "<lab>", "exec"), python_names)
    return python_names["answer"]


# ---- the loop ----


def _by_name(*functions: Callable[..., Any]) -> Operations:
    return {function.__name__: function for function in functions}


ALLOCATE = _by_name(*worker_operations.ALLOCATE)
FREE = _by_name(*worker_operations.FREE)
OPERATIONS = {
    **ALLOCATE,
    **FREE,
    **_by_name(*worker_operations.OTHERS),
    **_by_name(fork, call_child, send_descriptor, spawn, abort, leave, run_python),
}
OF_A_CHILD = _by_name(nothing, driver.close_device_files, driver.alloc_code)


def _answer(line: list[Any], operations: Operations) -> dict[str, Any]:
    operation, *arguments = line
    try:
        return {"value": operations[operation](*arguments)}
    except driver.CudaError as error:
        return {"failed": str(error), "code": error.code}
    except ImportError as error:
        return {"failed": str(error), "missing": error.name}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


# What libraries print must not come between our lines.
answers = os.fdopen(os.dup(1), "w")


def _write(answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def main() -> None:
    protocol.die_with_parent()
    os.dup2(2, 1)
    # Libraries that are imported later must not find these programs under their short names.
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    _write({"operations": [*OPERATIONS], "allocate": [*ALLOCATE], "free": [*FREE], "child": [*OF_A_CHILD]})
    for line in sys.stdin:
        _write(_answer(json.loads(line), OPERATIONS))


if __name__ == "__main__":
    main()
