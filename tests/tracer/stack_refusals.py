"""A Python of 3.13 or newer whose published table of offsets is damaged: `python stack_refusals.py HARNESS`.

Prints a JSON list: for each damage, in a process of its own, what was answered (1 supported, 2 not) and how
many frames a walk found.
"""

import ctypes
import json
import os
import struct
import sys

TABLE_NBYTES = 568 if sys.version_info < (3, 14) else 648  # all that is read of it


def answer(at, contents):
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        # The library is loaded first: Python does not run far with a damaged table.
        harness = ctypes.PyDLL(sys.argv[1])
        table = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        ctypes.memmove(table + at, contents, len(contents))
        os.write(writing, bytes((harness.harness_find(), harness.harness_count(100))))
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    found = os.read(reading, 2)
    os.close(reading)
    return list(found)


def main():
    damages = [
        (at, struct.pack("<Q", value)) for at in range(0, TABLE_NBYTES, 8) for value in (2**64 - 1, 70_000)
    ]
    cookie, version, free_threaded = (0, b"y"), (8, struct.pack("<Q", 0x030F00F0)), (16, b"\1")
    answers = {
        "none": [answer(0, b"")],
        "header": [answer(at, contents) for at, contents in (cookie, version, free_threaded, (0, bytes(24)))],
        "offsets": [answer(at, contents) for at, contents in damages],
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
