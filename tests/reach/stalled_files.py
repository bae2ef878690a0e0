"""A FUSE file system whose one file never gives its contents, mounted at argv[1] until its input ends.

With "names" as argv[2] no name in it is answered for either. Written for root in a test; "ready" on standard
output says that it is mounted.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR = (
    1,
    2,
    3,
    14,
    15,
    18,
    25,
    26,
    27,
    29,
)
BATCH_FORGET = 42
ENOSYS = 38
NBYTES = 65536
NO_SUID, NO_DEV = 2, 4


def attributes(node: int) -> bytes:
    mode, nbytes = (0o40755, 0) if node == 1 else (0o100644, NBYTES)
    figures = (node, nbytes, nbytes // 512, 0, 0, 0)
    return struct.pack("<6Q10I", *figures, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int) -> bytes | None:
    """The body of an answer; None where none is given."""
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHI7I", 7, 31, NBYTES, 0, 12, 10, NBYTES, 1, 0, 0, 0, *[0] * 7)
    if opcode == LOOKUP:
        return struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + attributes(2)
    if opcode == GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<QII", 1, 0, 0)
    return b"" if opcode in (RELEASE, RELEASEDIR, FLUSH) else None


def serve(device: int, stalled: tuple[int, ...]) -> None:
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError:
            return
        _, opcode, number, node = struct.unpack_from("<IIQQ", request)
        if opcode in (*stalled, FORGET, BATCH_FORGET):
            continue
        body = answer(opcode, node)
        error = -ENOSYS if body is None else 0
        os.write(device, struct.pack("<IiQ", 16 + len(body or b""), error, number) + (body or b""))


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    place = sys.argv[1].encode()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"stalled", place, b"fuse", NO_SUID | NO_DEV, options):
        raise OSError(ctypes.get_errno(), "cannot be mounted")
    try:
        stalled = (READ, LOOKUP) if sys.argv[2:] == ["names"] else (READ,)
        threading.Thread(target=serve, args=(device, stalled), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        libc.umount2(place, 2)


if __name__ == "__main__":
    main()
