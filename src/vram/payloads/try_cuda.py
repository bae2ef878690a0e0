"""Loads and initialises libcuda, and tells how that went; a process of its own, no context is made.

Every call is announced before it is made, on descriptor 3: where one hangs, its name is known.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import time

from vram.payloads.driver_library import load

PIPE = 3
LIBRARY = "libcuda.so.1"
PARKING = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")


def say(**fields: object) -> None:
    os.write(PIPE, json.dumps(fields).encode() + b"\n")


def main() -> None:
    die_with_parent()
    began = time.monotonic()
    say(calling="dlopen")
    try:
        cuda = load(LIBRARY)
    except OSError as error:
        say(error=str(error), calling=None)
        return
    path = mapped(b"/libcuda.so")
    say(path=path, library_version=version_in(path), lacks=lacking(cuda))
    say(calling="cuDriverGetVersion")
    say(cuda_version=cuda_version(cuda))
    say(calling="cuInit")
    code = int(cuda.cuInit(0))
    say(init_code=code)
    if code == 0:
        say(calling="cuDeviceGetCount")
        say(gpus=number(cuda.cuDeviceGetCount))
    say(calling=None, took_s=round(time.monotonic() - began, 3))


def mapped(name: bytes) -> str | None:
    """The file behind a library that is loaded: the loader follows links, the kernel names their end."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            if name in line:
                return os.fsdecode(line.split(None, 5)[-1].rstrip(b"\n"))
    return None


def version_in(path: str | None) -> str | None:
    found = re.search(r"\.so\.(\d{3,}(?:\.\d+)+)$", path or "")
    return found.group(1) if found else None


def cuda_version(cuda: ctypes.CDLL) -> str | None:
    version = number(cuda.cuDriverGetVersion)
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def number(call: ctypes._NamedFuncPointer) -> int | None:
    value = ctypes.c_int(-1)
    return value.value if call(ctypes.byref(value)) == 0 else None


def lacking(cuda: ctypes.CDLL) -> list[str]:
    return [name for name in (f"cuCheckpointProcess{verb}" for verb in PARKING) if not hasattr(cuda, name)]


def die_with_parent() -> None:
    set_parent_death_signal, sigkill = 1, 9
    ctypes.CDLL(None).prctl(set_parent_death_signal, sigkill)
