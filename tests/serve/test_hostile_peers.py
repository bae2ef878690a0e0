"""Containers and many users against the socket: whose a connection is, and how much of it each gets."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.needs import skip_without
from tests.patience import must_end
from tests.serve.running import RunningService
from tests.serve.users import needs_root

pytestmark = needs_root
CLONE_NEWPID = 0x20000000
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
PLAN = b'{"schema": 1, "do": "plan"}\n'


# ---- the attack: the root of a container connects and exits; its pid becomes one of the machine's ----


class ContainerRoot:
    """Uid 0 in a PID namespace of its own. Its child connects, asks and exits; it waits for the answer."""

    def __init__(self, path: Path) -> None:
        told, tell = os.pipe()
        self._outer = os.fork()
        if self._outer == 0:
            if ctypes.CDLL(None).unshare(CLONE_NEWPID):
                os._exit(1)
            if os.fork():
                os.wait()
                os._exit(0)
            try:
                self._play(path, tell)
            finally:
                os._exit(0)
        os.close(tell)
        self._told = os.fdopen(told)
        line = self._told.readline()
        if not line:
            skip_without("namespaces", "no PID namespace can be made here")
        self.peer_pid = int(line)
        """As the machine counts."""

    def _play(self, path: Path, tell: int) -> None:
        made = socket.socket(socket.AF_UNIX)
        if os.fork() == 0:
            made.connect(str(path))
            made.sendall(PLAN)
            os.write(tell, os.readlink("/proc/self").encode() + b"\n")
            os._exit(0)
        os.wait()
        with made.makefile("rb") as answer:
            os.write(tell, answer.readline())

    def answer(self) -> Any:
        return json.loads(self._told.readline())

    def close(self) -> None:
        self._told.close()
        os.waitpid(self._outer, 0)


@contextmanager
def reused(pid: int) -> Iterator[bool]:
    """Whether a process of ours has *pid* now; somebody else on this machine may have got it first."""
    waiting, ends = os.pipe()
    children: list[int] = []
    while pid not in children and len(children) < 20:
        LAST_PID.write_text(str(pid - 1))
        children.append(os.fork())
        if children[-1] == 0:
            os.close(ends)
            os.read(waiting, 1)
            os._exit(0)
    try:
        yield pid in children
    finally:
        os.close(ends)
        os.close(waiting)
        for child in children:
            os.waitpid(child, 0)


def test_a_containers_root_is_not_the_machines_after_its_pid_was_reused(service: RunningService):
    """The service is stopped meanwhile: it accepts when the pid is that of a process in its namespaces."""
    is_reused = False
    with must_end():
        while not is_reused:
            service.send(signal.SIGSTOP)
            attacker = ContainerRoot(service.socket)
            with reused(attacker.peer_pid) as is_reused:
                service.send(signal.SIGCONT)
                answer = attacker.answer()
            attacker.close()
            assert answer.get("error", {}).get("name") == "NotPermitted", answer
            assert "namespace" in answer["error"]["message"]
