"""A program whose freed memory stays in the driver's pool, at rest in a way that the test chooses.

    subject.py NBYTES reading|computing|holding-the-lock|sleeping [agent] [gives-up=FILTER] [dies-at=EVENT]

FILTER is one of sandbox.py; with "beside:" before it, only a second thread has it, with "later:" it is set
when the first line comes. At the audit event EVENT, or at a collection, the program ends itself.

Prints one line when all is set. Every line on its standard input is answered with a line,
whatever was done to it meanwhile: that is how tests see that it goes on working.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from typing import NoReturn

LIVE_NBYTES = 64 << 20


def fill_pool(nbytes: int) -> None:
    import driver

    driver.context()
    driver.keep_everything(driver.pool())
    driver.alloc_async(LIVE_NBYTES)
    driver.free_async(driver.alloc_async(nbytes))


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def answer_lines() -> NoReturn:
    for number, _ in enumerate(sys.stdin, 1):
        say(alive=number, modules=sorted(name for name in sys.modules if "vram" in name))
    os._exit(0)


def compute() -> NoReturn:
    """Work that notices when its memory is tampered with."""
    threading.Thread(target=answer_lines, daemon=True).start()
    while True:
        made = {str(number): [number] * 3 for number in range(200)}
        if sum(number for (number, _, _) in made.values()) != 19900:
            os._exit(3)


def hold_the_lock() -> None:
    """Wait for a byte inside C, with the interpreter's lock held."""
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
    say(alive=0, modules=[])


def give_up(word: str) -> None:
    import sandbox

    when, _, name = word.rpartition(":")
    if name.startswith("trap"):
        signal.signal(signal.SIGSYS, lambda number, frame: os._exit(8))
    if name == "strict":
        answer_strictly()
    if when == "beside":
        ready = threading.Event()
        threading.Thread(
            target=lambda: (sandbox.give_up(name, all_threads=False), ready.set(), threading.Event().wait()),
            daemon=True,
        ).start()
        ready.wait()
    elif when == "later":
        sys.stdin.readline()
        sandbox.give_up(name)
        say(given_up=name)
    else:
        sandbox.give_up(name)


def answer_strictly() -> NoReturn:
    """With read and write alone: nothing is imported or allocated any more."""
    import sandbox

    answers = [json.dumps({"alive": number, "modules": []}).encode() + b"\n" for number in range(100)]
    write, read = os.write, os.read
    sandbox.give_up("strict")
    for answer in answers:
        write(1, answer)
        read(0, 1)
    raise SystemExit


def die_at(event: str) -> None:
    if event == "collection":
        import gc

        gc.callbacks.append(lambda phase, info: os._exit(9))
    else:
        sys.addaudithook(lambda name, arguments: os._exit(9) if name == event else None)


def main() -> None:
    nbytes, rest = int(sys.argv[1]), sys.argv[2]
    fill_pool(nbytes)
    if "agent" in sys.argv:
        import vram

        vram.agent()
    words = dict(word.split("=", 1) for word in sys.argv if "=" in word)
    if "dies-at" in words:
        die_at(words["dies-at"])
    if rest == "sleeping":
        threading.Thread(target=answer_lines, daemon=True).start()
    gives_up = words.get("gives-up", "")
    is_late = gives_up.startswith("later:")
    if gives_up and not is_late:
        give_up(gives_up)
    say(ready=os.getpid())
    if is_late:
        give_up(gives_up)
    if rest == "sleeping":
        time.sleep(1e6)
    if rest == "computing":
        compute()
    if rest == "holding-the-lock":
        hold_the_lock()
    answer_lines()


if __name__ == "__main__":
    main()
