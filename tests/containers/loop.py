"""Allocates in a loop, from a line of its own, until its input ends; lines are answered as by subject.py."""

import json
import os
import sys
import threading

import driver


def leak():
    return driver.alloc(1 << 20)


def listen():
    for number, _ in enumerate(sys.stdin, 1):
        print(json.dumps({"alive": number, "kept": len(kept)}), flush=True)
    os._exit(0)


kept = []
driver.context()
threading.Thread(target=listen, daemon=True).start()
print(json.dumps({"ready": os.getpid()}), flush=True)
pause = threading.Event()
while True:
    driver.free(driver.alloc(4 << 20))
    if len(kept) < 20000:
        kept.append(leak())
    pause.wait(0.005)
