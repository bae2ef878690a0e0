"""A process in state D for real: it waits for a file system whose server never answers.

    python stuck.py PROGRAM ARGUMENT...

Mounts a FUSE file system in this mount namespace, starts PROGRAM with the path of a file in it as
its last argument, and prints a line once PROGRAM's look at that file has arrived. Such a wait takes
no signal. When standard input ends, the file system is given up, and whoever waited goes on.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import tempfile

FUSE_LOOKUP, FUSE_GETATTR, FUSE_INIT = 1, 3, 26
HEADER = struct.Struct("<IIQQIIII")
LIBC = ctypes.CDLL(None, use_errno=True)


def mounted(fuse: int, at: str) -> None:
    options = f"fd={fuse},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}".encode()
    if LIBC.mount(b"vram-test", at.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def answer(fuse: int, unique: int, body: bytes) -> None:
    os.write(fuse, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)


def serve_until_looked_up(fuse: int) -> None:
    """Answer what a mount needs, up to the first lookup: that one waits for ever."""
    while True:
        request = os.read(fuse, 1 << 17)
        _, opcode, unique, *_ = HEADER.unpack_from(request)
        if opcode == FUSE_INIT:
            answer(fuse, unique, struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 0, 0, 4096, 0, 0, 0, 0, *[0] * 7))
        elif opcode == FUSE_GETATTR:
            attributes = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
            answer(fuse, unique, struct.pack("<QII", 3600, 0, 0) + attributes)
        elif opcode == FUSE_LOOKUP:
            return


def main() -> None:
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    with tempfile.TemporaryDirectory() as folder:
        mounted(fuse, folder)
        actor = subprocess.Popen([*sys.argv[1:], f"{folder}/file"])
        serve_until_looked_up(fuse)
        print(actor.pid, flush=True)
        sys.stdin.read()
        os.close(fuse)
        actor.wait()
        LIBC.umount2(folder.encode(), 2)


if __name__ == "__main__":
    main()
