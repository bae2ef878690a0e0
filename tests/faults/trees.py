"""A program that makes families of processes on a GPU, as fast as forks are.

    python trees.py

Reads a word from each line and answers with the pids of a new family as JSON:

    live      a trainer that uses the GPU, and two workers that it forked afterwards
    orphans   the same, and the trainer is dead

Members take a moment to end when they are asked to. Nothing of theirs outlives this program.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import driver

WORKERS = 2
ENDS_AFTER_S = 0.03
MIB = 1024**2


def ends_when_asked() -> None:
    def leave(*_: object) -> None:
        time.sleep(ENDS_AFTER_S)
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)


def waits() -> None:
    while True:
        signal.pause()


def train(tell: int) -> None:
    ends_when_asked()
    driver.context()
    driver.alloc(64 * MIB)
    workers = []
    for _ in range(WORKERS):
        worker = os.fork()
        if worker == 0:
            os.close(tell)
            waits()
        workers.append(worker)
    os.write(tell, json.dumps([os.getpid(), *workers]).encode())
    os.close(tell)
    waits()


def family() -> list[int]:
    heard, tell = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        os.close(heard)
        train(tell)
    os.close(tell)
    with os.fdopen(heard) as pipe:
        return list(json.loads(pipe.read()))


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return


def main() -> None:
    made: list[int] = []
    for line in sys.stdin:
        reap()
        pids = family()
        made += [os.pidfd_open(pid) for pid in pids]
        if line.strip() == "orphans":
            signal.pidfd_send_signal(made[-len(pids)], signal.SIGKILL)
            os.waitpid(pids[0], 0)
        print(json.dumps(pids), flush=True)
    for pidfd in made:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
