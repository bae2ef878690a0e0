"""Runs a command below a process that adopts whoever loses its parent there, as `tini -s` does.

    adopter.py PROGRAM COMMAND [ARGUMENT ...]

PROGRAM is a copy of a shell, under the name of one that adopts. It ends when its standard input does.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    program, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # exec keeps it
    os.execv(program, [os.path.basename(program), "-c", '"$@" & cat', "sh", *command])


if __name__ == "__main__":
    main()
