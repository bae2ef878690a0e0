"""A program that knows nothing of vram, with arrays of stand-in frameworks; for any Python from 3.9 on.

Told "visit" it runs the text in the file named by its first argument, as one who comes through the door
would, in a thread of its own, and prints what it answers. Told "census", it prints what there is in
this process. Told "spin", it works until it is told more.
"""

# What a visit uses of the standard library, and would otherwise be imported by the first one.
import _thread
import ast  # noqa: F401
import contextlib  # noqa: F401
import ctypes  # noqa: F401
import gc
import json
import os
import select
import sys
import threading
import time
import typing  # noqa: F401
from collections import Counter

import stand_ins

if len(sys.argv) > 2:  # a GPU, with some memory that no array has
    import driver

    driver.context()
    driver.alloc(int(sys.argv[2]))

torch, cupy = stand_ins.torch(), stand_ins.cupy()


class Trainer:
    def __init__(self):
        layers = {
            str(number): stand_ins.Module(weight=stand_ins.Parameter(1024, 1024, requires_grad=True))
            for number in range(4)
        }
        self.model = stand_ins.Module(layers=stand_ins.Module(**layers))

    def parameters(self):
        return [each._parameters["weight"] for each in self.model._modules["layers"]._modules.values()]


CALLS = []


class Rude:
    """Whoever runs a line of it is heard of."""

    def __init__(self, array):
        self.__dict__["array"] = array

    def __getattr__(self, name):
        CALLS.append(name)
        raise AttributeError(name)

    def __eq__(self, other):
        CALLS.append("__eq__")
        return True

    def __hash__(self):
        CALLS.append("__hash__")
        return 1

    def __len__(self):
        CALLS.append("__len__")
        return 0

    def __repr__(self):
        CALLS.append("__repr__")
        return ""

    def __del__(self):
        pass


trainer = Trainer()
for parameter in trainer.parameters():
    stand_ins.backward(parameter)
del parameter
optimizer = stand_ins.Optimizer(trainer.parameters())
history = [stand_ins.TensorBase(256, 1024) for _ in range(10)]
cache = {"x\x1b[31m": stand_ins._ndarray_base((512, 512))}
view = stand_ins._ndarray_base((2, 2), of=cache["x\x1b[31m"])
rude = Rude(stand_ins._ndarray_base((100, 100)))
in_a_cycle = [stand_ins.TensorBase(77)]
in_a_cycle.append(in_a_cycle)
gc.disable()
del in_a_cycle


def work(batch, ready, go_on):
    ready.set()
    go_on.wait()
    return batch


def generate(saved):
    yield 1
    yield saved


suspended = generate(stand_ins._ndarray_base((33, 33)))
next(suspended)


def started():
    ready, go_on = threading.Event(), threading.Event()
    batch = stand_ins.TensorBase(64, 1024, 1024)
    thread = threading.Thread(target=work, args=(batch, ready, go_on), name="loader", daemon=True)
    thread.start()
    ready.wait()
    return thread


loader = started()


def visit(path, request):
    with open(path, encoding="utf-8") as file:
        text = file.read().replace("'REQUEST'", repr(request))
    heard = []
    done = _thread.allocate_lock()
    done.acquire()

    def run():
        try:
            heard.append(eval(text, {"__name__": "vram_visit"}))
        finally:
            done.release()

    before = tasks()
    _thread.start_new_thread(run, ())
    done.acquire()
    while tasks() > before:
        time.sleep(0.001)
    return heard.pop()


def tasks():
    return len(os.listdir("/proc/self/task"))


def census():
    collected = gc.collect()
    kinds = Counter(type(each).__module__ + "." + type(each).__qualname__ for each in gc.get_objects())
    frame = sys._current_frames()[loader.ident]
    while frame.f_code.co_name != "work":
        frame = frame.f_back
    batch = frame.f_locals["batch"]
    held = [batch, *history, *trainer.parameters(), *cache.values(), rude.__dict__["array"]]
    counts = [sys.getrefcount(each) for each in held]
    del frame, batch, held
    gc.collect()
    return {
        "kinds": kinds,
        "modules": sorted(sys.modules),
        "main": sorted(name for name in globals()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "tasks": tasks(),
        "references": counts,
        "calls": CALLS[:],
        "collected": collected,
    }


def spin():
    """Work in Python until the next word comes."""
    total = 0
    while not select.select([0], [], [], 0)[0]:
        total += sum(number * number for number in range(1000))
    return total


def main():
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        word = line.split()[0]
        if word == "visit":
            request = {"pid": os.getpid(), "until": time.monotonic() + 60, **json.loads(line[len(word) :])}
            print(json.dumps(visit(sys.argv[1], request)), flush=True)
        elif word == "spin":
            print(json.dumps({"spinning": True}), flush=True)
            spin()
        elif word == "census":
            print(json.dumps(census()), flush=True)


main()
