"""Allocates, forks two children and ends: they live on, and hold its memory."""

import os
import time

import driver
import protocol

driver.context()
driver.alloc(2 * protocol.GIB)
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(60)
    children.append(child)
print(os.getpid(), *children, flush=True)
os._exit(0)
