"""Two ranks of torchrun whose agent has ended, adopted by a process that is called tini.

Its first line has the pids of the ranks. They end when that process does: it alone has the other end of what
they read.
"""

import ctypes
import os
import shutil
import subprocess
import sys

RANKS = 2


def adopt() -> None:
    """Become a process that adopts others and launches nothing but the agent."""
    shutil.copy(os.path.realpath("/bin/sh"), "tini")
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: exec keeps it
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_inheritable(descriptor, True)
    agent = f"{sys.executable} torchrun.py {reading} {writing}"
    os.execv("tini", ["tini", "-c", f"{agent}; sleep 1000"])


def launch(reading: int, writing: int) -> None:
    """Start the ranks as torchrun's agent does, and end when they have their memory."""
    os.close(writing)
    ready, told = os.pipe()
    pids = []
    for rank in range(RANKS):
        started = subprocess.Popen(
            ["python", "-u", "finetune.py"],
            stdin=reading,
            env={**os.environ, **variables(rank), "TOLD": str(told)},
            pass_fds=[told],
            start_new_session=True,
        )
        pids.append(started.pid)
    for _ in pids:
        os.read(ready, 1)
    print(*pids, flush=True)
    os._exit(0)


def variables(rank: int) -> dict[str, str]:
    """What the agent of torchrun 2.15 sets; tests/jobs/launchers/torch_agent.py has all of it."""
    return {
        **{name: str(rank) for name in ("RANK", "ROLE_RANK", "LOCAL_RANK")},
        **{name: str(RANKS) for name in ("WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE")},
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }


if __name__ == "__main__":
    launch(*map(int, sys.argv[1:])) if sys.argv[1:] else adopt()
