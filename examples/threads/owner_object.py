"""Memory that a thread's own object owns is gone with the thread; also when it ends by an exception.

    vram virtual -- python examples/threads/owner_object.py

The class that people write for this frees in ``__del__``, and meets three traps: a finalizer in
another thread finds no context, one after a context reset frees somebody else's memory, and
one at the end of the interpreter finds half of Python gone. ``vram.Buffer`` knows them.
"""

from __future__ import annotations

import threading

import vram
from vram.guard.memory import device_memory

MIB = 1024**2


def in_use() -> int:
    memory = device_memory(0)
    assert memory is not None
    return memory.total - memory.free


def work(all_hold: threading.Barrier, *, fails: bool) -> None:
    buffer = vram.Buffer("4MiB")
    buffer.write(b"some work")
    all_hold.wait()
    all_hold.wait()
    if fails:
        raise ValueError("a thread may end like this, too")


def main() -> None:
    vram.Buffer("4MiB").close()  # the context comes with the first one
    threading.excepthook = lambda words: print(f"a thread ended by {words.exc_value!r}")
    start, all_hold = in_use(), threading.Barrier(6)
    threads = [threading.Thread(target=work, args=(all_hold,), kwargs={"fails": n == 2}) for n in range(5)]
    for thread in threads:
        thread.start()
    all_hold.wait()
    print(f"five threads hold {(in_use() - start) // MIB} MiB")
    all_hold.wait()
    for thread in threads:
        thread.join()
    print(f"they have ended: {(in_use() - start) // MIB} MiB stay in use")


main()
