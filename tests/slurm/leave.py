"""A program that a job runs, and that leaves something on the GPU when it ends.

    leave.py KIND MIB [COUNT]     prints one JSON line: {"pids": [...], "job": ID, "gpus": GPUS}, then exits

KIND: daemon    escaped (double fork, setsid), with a context of its own
      stubborn  the same, and it ignores SIGTERM
      stopped   the same, and it stopped itself
      family    escaped, with COUNT forked children that have its files open while it lives
      forked    COUNT children that hold the memory of their dead parent
      respawns  escaped, without a context: its child has one, and is started again whenever it ends
      restarts  the same, and no worker is its descendant
      pair      two that start each other and workers again, and that leave a copy when they are sent SIGTERM
      exported  a holder of an exported handle whose allocator has died; dmabuf: of a dma-buf
      executed  a child that holds the memory of its dead parent, and has executed another program
      handed    a process that never used CUDA, and was handed the descriptors of one that has died
      late      a daemon that uses the GPU only once it is sent SIGUSR1
      works     no leftover: allocates, prints, and stays

Nothing of it ends by itself: the epilog does that, or the end of the cluster.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys

import driver

MIB = 1024**2


def escape(tell: int, nbytes: int, kind: str, count: int) -> None:
    """In a child: leave session and parent behind, as daemons do; then use the GPU."""
    os.setsid()
    if os.fork():
        os._exit(0)
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind == "late":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.write(tell, b"%d\n" % os.getpid())
        os.close(tell)
        signal.sigwait([signal.SIGUSR1])
        driver.context()
        driver.alloc(nbytes)
    elif kind == "respawns":
        respawn(tell, nbytes)
    elif kind == "restarts":
        restart(tell, nbytes)
    elif kind == "pair":
        pair(tell, nbytes)
    elif kind == "family":
        driver.context()
        driver.alloc(nbytes)
        for _ in range(count):
            if os.fork() == 0:
                break
        os.write(tell, b"%d\n" % os.getpid())
        os.close(tell)
    else:
        use(tell, nbytes)
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        signal.pause()


def respawn(tell: int, nbytes: int) -> None:
    """Say who we are once the first worker uses the GPU; then start one after the other."""
    ready, worker_says = os.pipe()
    told = False
    while True:
        worker = os.fork()
        if worker == 0:
            use(worker_says, nbytes)
            if not told:
                os.close(tell)
            while True:
                signal.pause()
        if not told:
            os.read(ready, 1)
            os.write(tell, b"%d\n" % os.getpid())
            os.close(tell)
            told = True
        os.waitpid(worker, 0)


def restart(tell: int, nbytes: int) -> None:
    """As respawn(), with workers that are nobody's children: each is known to live by its end of a pipe."""
    told = False
    while True:
        lives, worker_lives = os.pipe()
        ready, worker_says = os.pipe()
        starter = os.fork()
        if starter == 0:
            if os.fork():
                os._exit(0)
            os.setsid()
            if not told:
                os.close(tell)
            use(worker_says, nbytes)
            while True:
                signal.pause()
        os.close(worker_lives)
        os.close(worker_says)
        os.waitpid(starter, 0)
        os.read(ready, 1)
        if not told:
            os.write(tell, b"%d\n" % os.getpid())
            os.close(tell)
            told = True
        os.read(lives, 1)
        os.close(lives)
        os.close(ready)


def pair(tell: int, nbytes: int) -> None:
    """Start workers one after the other, and somebody who goes on with that once we have ended.

    Each knows by a pipe that the other lives. Who is sent SIGTERM leaves a copy of itself.
    """
    signal.signal(signal.SIGTERM, lambda *about: os._exit(0) if os.fork() else None)
    while True:
        other_ended, other_lives = os.pipe()
        we_ended, we_live = os.pipe()
        if os.fork() == 0:
            os.close(other_ended)
            os.close(we_live)
            if tell >= 0:
                os.close(tell)
            tell = -1
            os.read(we_ended, 1)
            os.close(other_lives)
            os.close(we_ended)
            continue
        os.close(other_lives)
        os.close(we_ended)
        ended: list[int] = []
        while other_ended not in ended:
            worker = work(tell, we_live, nbytes)
            tell = -1
            ended, _, _ = select.select([other_ended, worker], [], [])
            os.close(worker)
        os.close(other_ended)
        os.close(we_live)


def work(tell: int, we_live: int, nbytes: int) -> int:
    """Start a worker, and return what can be read once it has ended; *tell* who we are when it works."""
    ended, lives = os.pipe()
    ready, says = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(we_live)
        if tell >= 0:
            os.close(tell)
        use(says, nbytes)
        while True:
            signal.pause()
    os.close(lives)
    os.close(says)
    os.read(ready, 1)
    os.close(ready)
    if tell >= 0:
        os.write(tell, b"%d\n" % os.getpid())
        os.close(tell)
    return ended


def use(tell: int, nbytes: int) -> None:
    driver.context()
    driver.alloc(nbytes)
    os.write(tell, b"%d\n" % os.getpid())
    os.close(tell)


def hold_of_the_dead(tell: int, nbytes: int, count: int) -> None:
    """In a child: allocate, fork holders, and die."""
    os.setsid()
    driver.context()
    driver.alloc(nbytes)
    for _ in range(count):
        if os.fork() == 0:
            for descriptor in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            os.write(tell, b"%d\n" % os.getpid())
            os.close(tell)
            while True:
                signal.pause()
    os._exit(0)


def hold_exported(tell: int, nbytes: int, kind: str) -> None:
    """In a child: a holder that never uses CUDA, and an allocator that dies once it has handed over."""
    os.setsid()
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        driver.context()
        if kind == "dmabuf":
            descriptor = driver.dmabuf(driver.alloc(nbytes), nbytes)
        else:
            descriptor = driver.export(driver.create(nbytes))
        socket.send_fds(theirs, [b"."], [descriptor])
        theirs.recv(1)
        os._exit(0)
    socket.recv_fds(ours, 1, 1)
    ours.send(b".")
    os.wait()
    say_who(tell)
    while True:
        signal.pause()


def say_who(tell: int) -> None:
    """Nothing of the job's terminal is kept open from here on."""
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    os.write(tell, b"%d\n" % os.getpid())
    os.close(tell)


def hold_executed(tell: int, nbytes: int) -> None:
    """In a child: allocate, fork a holder that executes another program with the driver's files open, die."""
    os.setsid()
    driver.context()
    driver.alloc(nbytes)
    if os.fork():
        os._exit(0)
    for descriptor in device_files():
        os.set_inheritable(descriptor, True)
    say_who(tell)
    os.execv("/bin/sleep", ["sleep", "1000000"])


def hold_handed(tell: int, nbytes: int) -> None:
    """In a child: a holder that never uses CUDA, and a process that hands over its files and dies."""
    os.setsid()
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        driver.context()
        driver.alloc(nbytes)
        socket.send_fds(theirs, [b"."], device_files())
        theirs.recv(1)
        os._exit(0)
    socket.recv_fds(ours, 1, 100)
    ours.send(b".")
    os.wait()
    say_who(tell)
    while True:
        signal.pause()


def device_files() -> list[int]:
    """The descriptors that the driver has open in this process."""
    links = {number: os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    return [int(number) for number, path in links.items() if os.path.basename(path).startswith("nvidia")]


def works(nbytes: int) -> None:
    driver.context()
    pointer = driver.alloc(nbytes)
    driver.fill(pointer, 0x5A, MIB)
    say([os.getpid()])
    signal.pause()


def say(pids: list[int]) -> None:
    variables = {"job": os.environ.get("SLURM_JOB_ID"), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    print(json.dumps({"pids": pids, **variables}), flush=True)


def main() -> None:
    kind, nbytes = sys.argv[1], int(sys.argv[2]) * MIB
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    if kind == "works":
        return works(nbytes)
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hear)
        if kind == "forked":
            hold_of_the_dead(tell, nbytes, count)
        elif kind in ("exported", "dmabuf"):
            hold_exported(tell, nbytes, kind)
        elif kind == "executed":
            hold_executed(tell, nbytes)
        elif kind == "handed":
            hold_handed(tell, nbytes)
        else:
            escape(tell, nbytes, kind, count)
    os.close(tell)
    with os.fdopen(hear, "rb") as told:  # to its end: all of them have spoken
        pids = [int(line) for line in told]
    if kind not in ("exported", "dmabuf", "handed"):
        os.waitpid(child, 0)
    say(pids)
    return None


if __name__ == "__main__":
    main()
