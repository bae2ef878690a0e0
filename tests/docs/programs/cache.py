"""Frees 1 GiB into a pool that keeps it, holds 1 GiB more, and can be asked by its agent."""

import os
import signal

import driver
import protocol

import vram

driver.context()
driver.keep_everything(driver.pool())
driver.free_async(driver.alloc_async(protocol.GIB))
driver.alloc(protocol.GIB)
vram.agent()
print(os.getpid(), flush=True)
signal.pause()
