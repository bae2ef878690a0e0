"""A service that passes GPU memory on between programs, and never uses the GPU itself.

    python broker.py SOCKET keeps|releases

Programs hand it descriptors of their allocations. It should close them when their maker
leaves; one that keeps them keeps the memory.
"""

from __future__ import annotations

import os
import socket
import sys


def serve(path: str, *, releases: bool) -> None:
    handles: list[int] = []
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()
        print("listening", flush=True)
        while True:
            maker, _ = door.accept()
            with maker:
                _, given, _, _ = socket.recv_fds(maker, 1, 1)
                handles += given
                maker.send(b"thanks")
                maker.recv(1)  # returns when the maker has ended, however it did
            if releases:
                os.close(handles.pop())
            print("the maker has left", flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], releases=sys.argv[2] == "releases")
