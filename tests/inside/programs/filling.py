"""A program that fills a tuple while it is searched; prints what became of the tuple."""

import json
import sys
import threading

import stand_ins

from vram.payloads.inside import read_arrays

stand_ins.torch()
kept = [stand_ins.TensorBase(256, 256)]
begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
became = []


def numbers():
    yield from range(100)
    begun.set()
    go_on.wait()
    yield from range(100)


def fill():
    try:
        became.append(len(tuple(numbers())))
    except SystemError as error:
        became.append(str(error))
    done.set()


def pause():
    """Once all objects are listed: the other thread goes on, as any thread may in a rest."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_unreached":
        frame = frame.f_back
    if frame is not None:
        go_on.set()
        done.wait()
    return False


threading.Thread(target=fill, daemon=True).start()
begun.wait()
found = read_arrays(60.0, 0, pause, [])
print(json.dumps([done.is_set(), became, len(found.arrays)]))
