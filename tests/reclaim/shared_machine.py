"""A shared machine in one program: dead trainers whose workers live on, a server, a stopped job.

Runs on a virtual GPU, as whoever starts it; tells in one JSON line what ``vram free`` did to them all.

    shared_machine.py {batch|jobs} GPUS WORDS...      WORDS are those of the vram command

``batch`` starts everything in one process group, as a shell script does; ``jobs`` gives each a group of
its own, as an interactive shell does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

JOBS = Path(__file__).with_name("jobs.py")
PATIENCE_S = 60.0
TRAINER, SERVER, STOPPED, EXPORTED = 6 * 1024, 3 * 1024, 2 * 1024, 1024


class Job:
    def __init__(self, gpu: int, *words: object, group: bool) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(JOBS), *map(str, words)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=os.setpgrp if group else None,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.workers: list[int] = self.hear()["workers"]
        self.pidfds = {pid: os.pidfd_open(pid) for pid in (self.process.pid, *self.workers)}

    def hear(self) -> dict[str, Any]:
        assert select.select([self.stdout], [], [], PATIENCE_S)[0], "it does not answer"
        heard: dict[str, Any] = json.loads(self.stdout.readline())
        return heard

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self.pidfds[self.process.pid], number)

    def die(self, *, reaped: bool) -> Job:
        """Killed; its workers live on. Not reaped, it stays as a zombie."""
        self.signal(signal.SIGKILL)
        self.gone(self.process.pid, PATIENCE_S)
        if reaped:
            self.process.wait()
        return self

    def gone(self, pid: int, patience_s: float = 0.0) -> bool:
        return bool(select.select([self.pidfds[pid]], [], [], patience_s)[0])

    def answers(self) -> bool:
        self.stdin.write(b"\n")
        self.stdin.flush()
        return bool(self.hear()["alive"] == "5a5a5a5a")


def used_bytes() -> list[int]:
    """What the driver says is in use, by GPU."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
    used = [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
    pynvml.nvmlShutdown()
    return used


def main() -> None:
    style, gpus, *words = sys.argv[1:]
    group, last = style == "jobs", int(gpus) - 1
    servers = [Job(gpu, "server", SERVER, 2, group=group) for gpu in {0, last}]
    stopped = Job(last, "trainer", STOPPED, 0, group=group)
    stopped.signal(signal.SIGSTOP)
    healthy = used_bytes()
    dead = [
        Job(0, "trainer", TRAINER, 2, group=group).die(reaped=True),
        Job(last, "trainer", TRAINER + 512, 4, group=group).die(reaped=False),
        Job(0, "trainer", TRAINER + 1024, 1, group=group).die(reaped=True),
    ]
    if last:
        dead.append(Job(1, "export", EXPORTED, group=group).die(reaped=True))
    before = used_bytes()
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "vram", *words], capture_output=True, text=True, timeout=120)
    took_s = time.monotonic() - began
    after = used_bytes()
    still_stopped = Path(f"/proc/{stopped.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    told = {
        "code": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "took_s": took_s,
        "held_by_the_dead": [was - ought for was, ought in zip(before, healthy, strict=True)],
        "left_of_that": [now - ought for now, ought in zip(after, healthy, strict=True)],
        "ghosts_alive": sum(not job.gone(pid) for job in dead for pid in job.workers),
        "servers_answer": [job.answers() for job in servers],
        "server_workers_alive": sum(not job.gone(pid) for job in servers for pid in job.workers),
        "stopped_alive": still_stopped and not stopped.gone(stopped.process.pid),
    }
    for job in (*servers, stopped, *dead):
        for pid, pidfd in job.pidfds.items():
            if not job.gone(pid):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        job.process.wait()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
