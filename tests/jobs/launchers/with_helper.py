"""A rank that starts a helper which is to outlive it, and then holds memory itself.

    with_helper.py SOCKET NAME WAY

The helper inherits all that the launcher told the rank. It is called as the rank is, with "helper" before it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import worker

PYTHON = sys.executable
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")


def main() -> None:
    address, name, way = sys.argv[1:]
    words = [PROGRAM, address, f"helper-{name}"]
    if way == "nohup":
        subprocess.Popen(["nohup", PYTHON, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    elif way == "setsid":
        subprocess.Popen(["setsid", PYTHON, *words])
    elif way == "shell":
        subprocess.run(["sh", "-c", '"$@" &', "sh", PYTHON, *words], check=True)
    elif way == "session":
        subprocess.Popen([PYTHON, *words], start_new_session=True)
    elif way == "session-unbuffered":
        subprocess.Popen([PYTHON, "-u", *words], start_new_session=True)
    else:
        raise SystemExit(f"no such way: {way}")
    worker.hold(address, name)


if __name__ == "__main__":
    main()
