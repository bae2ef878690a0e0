"""Run by tests: what an ordinary user can do so that root's `vram free` ends somebody's healthy process.

python hostile_scenes.py SCENE

Prints the pids of those that must live, and ends everybody when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable

import driver

SIZE = 2 << 30
NOBODY = 65534


class Scene:
    """Processes that all wait for the end of this one."""

    def __init__(self) -> None:
        self._end, self._held = os.pipe()
        self.driver = driver.library()  # another user may not read it

    def start(self, part: Callable[[], None], *, uid: int = 0, waits: bool = True) -> int:
        """A process of *uid*, in a session of its own, that plays its *part*; waits until it has."""
        ready, said = os.pipe()
        pid = os.fork()
        if pid:
            os.close(said)
            if os.read(ready, 1) != b"+":
                raise SystemExit("a part could not be played")
            os.close(ready)
            return pid
        os.close(self._held)
        os.setsid()
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        part()
        os.write(said, b"+")
        if waits:
            os.read(self._end, 1)
        os._exit(0)


def _send(end: socket.socket) -> None:
    driver.context()
    descriptor = driver.export(driver.create(SIZE))
    socket.send_fds(end, [b"."], [descriptor])
    os.close(descriptor)


def in_flight(scene: Scene) -> list[int]:
    """As many bytes as root's own maker and consumer share are charged to nobody: they are in a socket."""
    ours, theirs = socket.socketpair()
    maker = scene.start(lambda: _send(ours))
    consumer = scene.start(lambda: _keep(theirs))
    unread = socket.socketpair()
    scene.start(lambda: None, uid=NOBODY)  # keeps both ends open, and reads neither
    scene.start(lambda: _send(unread[0]), uid=NOBODY, waits=False)
    return [maker, consumer]


def handed_over(scene: Scene) -> list[int]:
    """A service takes a descriptor from a stranger, who exits."""
    service, stranger = socket.socketpair()
    scene.start(lambda: _send(stranger), uid=NOBODY, waits=False)
    return [scene.start(lambda: _keep(service))]


def _keep(end: socket.socket) -> None:
    _, (descriptor,), _, _ = socket.recv_fds(end, 1, 1)
    os.set_inheritable(descriptor, False)


def executed(scene: Scene) -> list[int]:
    """The holder of a dead owner's memory executed another program: it has descriptors and no mapping."""

    def die() -> None:
        driver.context()
        driver.alloc(SIZE)
        for name in os.listdir("/proc/self/fd"):
            descriptor = int(name)
            try:
                if "/nvidia" in os.readlink(f"/proc/self/fd/{name}"):
                    os.set_inheritable(descriptor, True)
            except OSError:
                continue
        os.set_inheritable(scene._end, True)
        pid = os.fork()
        if not pid:
            os.execv("/bin/sh", ["sh", "-c", f"read line <&{scene._end}"])
        with open(holder_file, "w") as file:
            file.write(str(pid))

    holder_file = sys.argv[2]
    scene.start(die, waits=False)
    with open(holder_file) as file:
        return [int(file.read())]


SCENES = {each.__name__: each for each in (in_flight, handed_over, executed)}


def main() -> None:
    found = SCENES[sys.argv[1]](Scene())
    print(json.dumps(found), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
