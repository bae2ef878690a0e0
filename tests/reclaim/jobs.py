"""Programs of one shared machine: started by its tests, each told by its first word what to be.

    jobs.py trainer MIB WORKERS   uses a GPU, forks workers that keep its files, says who they are
    jobs.py server MIB WORKERS    the same, and answers every line
    jobs.py prefork MIB WORKERS   forks first; its workers then make contexts of their own, the first answers
    jobs.py export MIB            hands an allocation to a process that never uses CUDA

All of them end when their standard input does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

import driver
import protocol

MIB = 1024**2


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def train(nbytes: int, workers: int) -> None:
    """As a data loader does: the children are forked after CUDA was initialised."""
    driver.context()
    driver.alloc(nbytes)
    forked = []
    for _ in range(workers):
        child = os.fork()
        if child == 0:
            protocol.sleep_until_closed()
            os._exit(0)
        forked.append(child)
    say(pid=os.getpid(), workers=forked)


def prefork(nbytes: int, workers: int) -> None:
    """As a web server does: the parent never uses CUDA."""
    forked = []
    for at in range(workers):
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            driver.context()
            driver.alloc(nbytes)
            os.write(tell, b".")
            if at == 0:
                answer()
            protocol.sleep_until_closed()
            os._exit(0)
        os.read(told, 1)
        forked.append(child)
    say(pid=os.getpid(), workers=forked)
    signal.pause()


def serve(nbytes: int, workers: int) -> None:
    train(nbytes, workers)
    answer()


def answer() -> None:
    """One line for each line: what the memory holds."""
    pointer = driver.alloc(MIB)
    driver.fill(pointer, 0x5A, MIB)
    for _ in sys.stdin:
        say(alive=driver.read(pointer, 4).hex())


def hand_over(nbytes: int) -> None:
    ours, theirs = socket.socketpair()
    holder = os.fork()
    if holder == 0:
        _, (received, *_), _, _ = socket.recv_fds(theirs, 1, 1)
        ours.close()
        theirs.send(b".")
        protocol.sleep_until_closed()
        os._exit(int(received < 0))
    theirs.close()
    driver.context()
    descriptor = driver.export(driver.create(nbytes))
    socket.send_fds(ours, [b"."], [descriptor])
    ours.recv(1)
    os.close(descriptor)
    say(pid=os.getpid(), workers=[holder])


if __name__ == "__main__":
    role, nbytes = sys.argv[1], int(sys.argv[2]) * MIB
    {
        "trainer": lambda: train(nbytes, int(sys.argv[3])),
        "server": lambda: serve(nbytes, int(sys.argv[3])),
        "prefork": lambda: prefork(nbytes, int(sys.argv[3])),
        "export": lambda: hand_over(nbytes),
    }[role]()
    protocol.sleep_until_closed()
