"""A program whose full collection takes a fifth of a second, and a thread that notes what it waits for."""

import ctypes
import gc
import json
import os
import sys
import threading
import time

import driver

collections = []
longest_s = [0.0]


def collected(phase, info):
    if phase == "start" and info["generation"] == 2:
        collections.append(1)
        ctypes.PyDLL(None).usleep(200_000)  # with the interpreter's lock, as a collection has it


def beat():
    before = time.perf_counter()
    while True:
        time.sleep(0.001)
        now = time.perf_counter()
        longest_s[0] = max(longest_s[0], now - before)
        before = now


driver.context()
driver.alloc(int(sys.argv[1]))
# Nothing but a trim collects.
gc.disable()
gc.callbacks.append(collected)
threading.Thread(target=beat, daemon=True).start()
print(json.dumps({"pid": os.getpid()}), flush=True)
for _ in sys.stdin:
    print(json.dumps({"collections": len(collections), "longest_s": longest_s[0]}), flush=True)
