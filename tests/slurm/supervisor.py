"""Starts the daemons of a Slurm cluster, and ends every process that came of them.

    python supervisor.py FOLDER MOUNTS      MOUNTS: SOURCE=TARGET,SOURCE=TARGET ...

Jobs leave processes behind on purpose: as their subreaper this one inherits them all, wherever they
fled to. When its standard input ends, also because the test was killed, it ends them and the daemons.
The mounts lie in a mount namespace of its own: there other users find an interpreter and the sources.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str) -> None:
    Path(target).mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", source, target], check=True)


def descendants() -> list[int]:
    """Everybody below this process, by what /proc says."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            stat = Path("/proc", name, "stat").read_text()
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found, waiting = [], children.get(os.getpid(), [])[:]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def end_all() -> None:
    """Kill until nobody is left: who is forked meanwhile is a descendant too."""
    while left := descendants():
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    folder = Path(sys.argv[1])
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", "/mnt"], check=True)
    for pair in filter(None, sys.argv[2].split(",")):
        mount(*pair.split("="))
    signal.signal(signal.SIGCHLD, reap)
    try:
        for argv in json.loads((folder / "daemons.json").read_text()):
            log = (folder / f"{Path(argv[0]).name}.out").open("ab")
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        print("started", flush=True)
        sys.stdin.buffer.read()
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_all()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
