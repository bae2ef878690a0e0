"""Holds $GIB GiB, 1 by default, and waits. Any process of its user may trace it."""

import ctypes
import os
import signal

import driver
import protocol

driver.context()
driver.alloc(int(os.environ.get("GIB", "1")) * protocol.GIB)
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER, PR_SET_PTRACER_ANY
print(os.getpid(), flush=True)
signal.pause()
