"""Run by tests: what an ordinary user can do so that root's `vram free` ends somebody's healthy process.

python hostile_scenes.py SCENE

Prints the pids of those that must live, and ends everybody when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Callable

import driver

SIZE = 2 << 30
SOMEBODY, NOBODY = 65533, 65534
FLOODING, FLOOD = 6, 4096  # more than 16,384 descriptors together
STARTING = 24


class Scene:
    """Processes that all wait for the end of this one."""

    def __init__(self) -> None:
        self.end, self._held = os.pipe()
        self.driver = driver.library()  # another user may not read it

    def start(self, part: Callable[[], int | None], *, uid: int = 0, waits: bool = True) -> int:
        """A process of *uid*, in a session of its own, that plays its *part*; waits until it has.

        The pid of the one that matters: what *part* returns, or its own.
        """
        ready, said = os.pipe()
        pid = os.fork()
        if pid:
            os.close(said)
            answer = os.read(ready, 16)
            if not answer:
                raise SystemExit("a part could not be played")
            os.close(ready)
            return int(answer) or pid
        os.close(self._held)
        os.setsid()
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.write(said, b"%d" % (part() or 0))
        if waits:
            self.wait()
        os._exit(0)

    def wait(self) -> None:
        os.read(self.end, 1)


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
    return [scene.start(lambda: _leave_executed(scene), waits=False)]


def _leave_executed(scene: Scene) -> int:
    driver.context()
    driver.alloc(SIZE)
    for descriptor in _device_files():
        os.set_inheritable(descriptor, True)
    os.set_inheritable(scene.end, True)
    pid = os.fork()
    if not pid:
        os.execv("/bin/sh", ["sh", "-c", f"read line <&{scene.end}"])
    return pid


def _device_files() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if "/nvidia" in os.readlink(f"/proc/self/fd/{name}"):
                found.append(int(name))
        except OSError:
            continue
    return found


def daemon(scene: Scene) -> list[int]:
    """The helper of a living CUDA process was forked twice, as daemons are; somebody else left a dead owner
    of whom nothing is proven."""
    helper = scene.start(lambda: _fork_a_daemon(scene), uid=SOMEBODY)
    scene.start(lambda: _leave_executed(scene), uid=NOBODY, waits=False)
    return [helper]


def flooded_daemon(scene: Scene) -> list[int]:
    """And somebody else has more descriptors of the GPU open than are compared of one user's."""
    for _ in range(FLOODING):
        scene.start(_flood, uid=NOBODY)
    return daemon(scene)


def starting_daemons(scene: Scene) -> list[int]:
    """Many daemons begin to make contexts: each has files and no charge for a while."""
    scene.start(lambda: _leave_executed(scene), uid=NOBODY, waits=False)
    return [scene.start(lambda: _fork_twice(driver.context, scene), uid=SOMEBODY) for _ in range(STARTING)]


def _fork_a_daemon(scene: Scene) -> int:
    driver.context()
    driver.alloc(SIZE)
    return _fork_twice(lambda: None, scene)


def _fork_twice(part: Callable[[], object], scene: Scene) -> int:
    """As daemons are made; the pid is told before it plays its *part*."""
    ready, said = os.pipe()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return int(os.read(ready, 16))
    os.setsid()
    grandchild = os.fork()
    if grandchild:
        os._exit(0)
    os.write(said, b"%d" % os.getpid())
    part()
    scene.wait()
    os._exit(0)


def _flood() -> None:
    driver.init()
    resource.setrlimit(resource.RLIMIT_NOFILE, (FLOOD, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    on_gpu = next(
        each for each in _device_files() if os.readlink(f"/proc/self/fd/{each}").endswith("nvidia0")
    )
    for _ in range(FLOOD - 64):
        os.dup(on_gpu)


SCENES = {
    each.__name__: each
    for each in (in_flight, handed_over, executed, daemon, flooded_daemon, starting_daemons)
}


def main() -> None:
    found = SCENES[sys.argv[1]](Scene())
    print(json.dumps(found), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
