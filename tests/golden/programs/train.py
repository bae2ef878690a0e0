"""Holds a buffer of 1 GiB, and 2 GiB that it has freed in the driver's pool; answers `vram trim`."""

from __future__ import annotations

import sys

import driver

import vram

driver.context()
driver.keep_everything(driver.pool())
driver.free_async(driver.alloc_async(2 << 30))
batch = vram.Buffer(1 << 30)
vram.agent()
print("ready", flush=True)
sys.stdin.readline()
