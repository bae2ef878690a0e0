"""A program whose freed memory stays in the driver's pool, at rest in a way that the test chooses.

    subject.py NBYTES reading|computing|holding-the-lock [agent]

Prints one line when all is set. Every line on its standard input is answered with a line,
whatever was done to it meanwhile: that is how tests see that it goes on working.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
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


def main() -> None:
    nbytes, rest = int(sys.argv[1]), sys.argv[2]
    fill_pool(nbytes)
    if "agent" in sys.argv:
        import vram

        vram.agent()
    say(ready=os.getpid())
    if rest == "computing":
        compute()
    if rest == "holding-the-lock":
        hold_the_lock()
    answer_lines()


if __name__ == "__main__":
    main()
