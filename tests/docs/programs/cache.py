"""Frees as much memory as the first argument says into a pool that keeps it. It can be asked, by its agent."""

import os
import time

import driver
import protocol

import vram

nbytes = protocol.GIB
driver.context()
driver.keep_everything(driver.pool())
driver.free_async(driver.alloc_async(nbytes))
driver.alloc(nbytes)
vram.agent()
print(os.getpid(), flush=True)
while True:
    time.sleep(60)
