"""A program to attach to, in a state that the test chooses. It notices when anything of it is changed.

    target_program.py STATE THREADS

Runs on Python 3.9 and later, standard library only. Every line on its standard input is
answered by the main thread with what that thread was waiting for, or working on: a wait that
ended too early, a wrong sum, a lost item end the program with a status of their own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import queue
import select
import signal
import sys
import threading
import time
import zlib

WRONG = 3
DIGEST = zlib.crc32(b"".join(str(each).encode() for each in range(400)))
tokens: queue.Queue[int] = queue.Queue()
asked = threading.Event()
pipe_in, pipe_out = os.pipe()


def say(**fields: object) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def require(right: bool) -> None:
    if not right:
        os._exit(WRONG)


def work() -> None:
    """Some hundred objects, a sum that is known."""
    made = {str(each): [each] * 3 for each in range(400)}
    require(sum(each for each, _, _ in made.values()) == 79800)
    require(zlib.crc32(b"".join(key.encode() for key in made)) == DIGEST)


def working(step) -> None:
    number = 0
    while True:
        step()
        if asked.is_set():
            asked.clear()
            number += 1
            say(alive=number, names=sorted(vars(sys.modules["__main__"])), threads=threading.active_count())


def import_anew() -> None:
    for name in ("colorsys", "html.entities", "calendar"):
        sys.modules.pop(name, None)
        require(importlib.import_module(name).__name__ == name)


def collect() -> None:
    knots = [[] for _ in range(3000)]
    for knot in knots:
        knot.append(knot)
    del knots, knot
    gc.collect()


def sort_in_c() -> None:
    require(sorted(range(20000, 0, -1))[0] == 1)


def fork() -> None:
    """A child has its parent's memory, and whatever was left in it."""
    child = os.fork()
    if not child:
        os._exit(7)
    require(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7)


def ring(number: int, frame: object) -> None:
    """A handler in Python, as programs have them; it takes its time."""
    work()


def recurse(depth: int = 400) -> int:
    return 0 if not depth else 1 + recurse(depth - 1)


def deep() -> None:
    require(recurse() == 400)


def waiting(wait) -> None:
    """What *wait* returns must be the very token that was handed over, and not a moment before."""
    number = 0
    while True:
        wait()
        number += 1
        require(tokens.get_nowait() == number)
        say(alive=number, names=sorted(vars(sys.modules["__main__"])), threads=threading.active_count())


def read() -> None:
    require(os.read(pipe_in, 1) == b"x")


def poll_select() -> None:
    require(select.select([pipe_in], [], [])[0] == [pipe_in])
    read()


def poll_poll() -> None:
    poll = select.poll()
    poll.register(pipe_in, select.POLLIN)
    require(poll.poll() == [(pipe_in, select.POLLIN)])
    read()


def loop_epoll() -> None:
    import asyncio

    async def listen() -> None:
        ready = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe_in, ready.set)
        await ready.wait()
        asyncio.get_running_loop().remove_reader(pipe_in)

    asyncio.run(listen())
    read()


def sleep() -> None:
    """Sleeps last as long as they should, however often they are interrupted."""
    while not select.select([pipe_in], [], [], 0)[0]:
        began = time.monotonic()
        time.sleep(0.2)
        require(time.monotonic() - began >= 0.2)
    read()


def wait_event() -> None:
    require(asked.wait() is True)
    asked.clear()


def wait_timed() -> None:
    require(asked.wait(1e6) is True)
    asked.clear()


def wait_short() -> None:
    """A timed wait takes its time, and no less."""
    while True:
        began = time.monotonic()
        if asked.wait(0.2):
            break
        require(time.monotonic() - began >= 0.199)
    asked.clear()


def wait_queue() -> None:
    queued.get()


def wait_join() -> None:
    thread = threading.Thread(target=asked.wait)
    thread.start()
    thread.join()
    asked.clear()
    require(not thread.is_alive())


def wait_child() -> None:
    """A child that ends when it is asked to."""
    import subprocess

    child = subprocess.Popen(["/bin/sh", "-c", "read word"], stdin=pipe_in)
    require(child.wait() == 0)


def hold_lock() -> None:
    """In a plain system call, with the interpreter's lock held: no other thread of Python's can run."""
    import ctypes

    byte = ctypes.create_string_buffer(1)
    say(ready=os.getpid())
    require(ctypes.PyDLL(None).read(0, byte, 1) == 1)
    say(alive=1)
    for number, _ in enumerate(sys.stdin, 2):
        say(alive=number)
    os._exit(0)


queued: queue.Queue[None] = queue.Queue()

WORK = {
    "busy": work,
    "importing": import_anew,
    "collecting": collect,
    "in-c": sort_in_c,
    "deep": deep,
    "forking": fork,
    "ringing": work,
}
WAITS = {
    "read": read,
    "select": poll_select,
    "poll": poll_poll,
    "asyncio": loop_epoll,
    "sleep": sleep,
    "event": wait_event,
    "timed": wait_timed,
    "short": wait_short,
    "queue": wait_queue,
    "join": wait_join,
    "child": wait_child,
}


def listen(is_working: bool) -> None:
    for number, _ in enumerate(sys.stdin, 1):
        if not is_working:
            tokens.put(number)
            queued.put(None)
            os.write(pipe_out, b"\n" if sys.argv[1] == "child" else b"x")
        asked.set()
    os._exit(0)


def busy_beside() -> None:
    while True:
        work()
        time.sleep(0.02)


def main() -> None:
    state, count = sys.argv[1], int(sys.argv[2])
    for number in range(count - 1):
        target = busy_beside if number % 25 == 0 else threading.Event().wait
        threading.Thread(target=target, daemon=True).start()
    if state == "crowd":  # everybody wants the lock while the main thread sleeps
        for _ in range(count):
            threading.Thread(target=lambda: working(work), daemon=True).start()
    if state == "holding":
        hold_lock()
    threading.Thread(target=listen, args=(state in WORK,), daemon=True).start()
    if state == "ringing":
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    say(ready=os.getpid())
    if state in WORK:
        working(WORK[state])
    waiting(WAITS.get(state, sleep))


if __name__ == "__main__":
    main()
