"""Allocates 4 GiB, forks a child, and dies: the child holds its memory without knowing."""

from __future__ import annotations

import os
import sys

import driver

driver.context()
driver.alloc(4 << 30)
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
sys.stdin.readline()
