"""A program that starts parts of the system on a virtual GPU, and lets root's vram ask for everything.

    python protected_world.py          (as root, in a mount namespace of its own)

Every part is this interpreter under the path of a real service, holds GPU memory, and notes every signal
that reaches it; one has also forked a child and died. Beside them is an ordinary leftover, so that there is
something to do. Prints one JSON line: what each command answered, and what became of everybody.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

PARTS = ("Xorg", "nvidia-persistenced", "nvidia-cuda-mps-control", "dcgm-exporter", "kubelet", "sshd")
JOBS = Path(__file__).parents[1] / "reclaim" / "jobs.py"
NOTES_SIGNALS = """
import driver, json, signal, sys
heard = []
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, lambda number, frame: heard.append(number))
driver.context()
driver.alloc(256 << 20)
print(flush=True)
for line in sys.stdin:
    print(json.dumps(heard), flush=True)
"""


class Started:
    def __init__(self, executable: str, *words: str) -> None:
        home = {"PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"}
        self.process = subprocess.Popen(
            [executable, *words],
            env={**os.environ, **home},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=os.setpgrp,  # a service has one of its own: whose child is whose can be told by it
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()
        self.pid = self.process.pid

    def heard(self) -> list[int] | None:
        """The signals that reached it; None where it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return list(json.loads(self.process.stdout.readline() or "[9]"))

    def die(self) -> None:
        """Killed; its only worker lives on, for as long as our end of its standard input is open."""
        (worker,) = json.loads(self.first)["workers"]
        self.worker = os.pidfd_open(worker)
        self.process.kill()
        self.process.wait()

    def worker_lives(self) -> bool:
        return not select.select([self.worker], [], [], 0)[0]


def installed(name: str) -> str:
    path = f"/opt/{name}"
    shutil.copy(os.path.realpath(sys.executable), path)
    return path


def vram(*words: str) -> dict[str, object]:
    argv = [sys.executable, "-m", "vram", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    return {"words": words, "code": done.returncode, "said": done.stdout + done.stderr}


def main() -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", "/opt"], check=True)
    parts = {name: Started(installed(name), "-c", NOTES_SIGNALS) for name in PARTS}
    orphaned = Started(installed("containerd-shim"), str(JOBS), "trainer", "256", "1")
    leftover = Started(sys.executable, str(JOBS), "trainer", "1024", "1")
    orphaned.die()
    leftover.die()
    pids = [str(each.pid) for each in parts.values()]
    everything = [
        vram("free", "--yes", "--up-to", "kill"),
        vram("free", "--more", "139GiB", "--yes", "--up-to", "kill"),
    ]
    named = [
        vram("kill", *pids, "--yes"),
        vram("kill", "1", *pids, "--tree", "--yes"),
        vram("free", *(f"--pid={pid}" for pid in pids), "--up-to", "kill", "--yes"),
        *(vram("kill", pid, "--yes", "--grace", "0.1s") for pid in pids[:3]),
        vram("park", "--anyway", *pids),
        vram("trim", *pids),
        vram("borrow", "139GiB", "--pid", pids[0], "--", "true"),
    ]
    told = {
        "everything": everything,
        "named": named,
        "heard": {name: each.heard() for name, each in parts.items()},
        "executables": [os.readlink(f"/proc/{each.pid}/exe") for each in parts.values()],
        "protected_orphan_alive": orphaned.worker_lives(),
        "leftover_alive": leftover.worker_lives(),
    }
    for each in parts.values():
        each.process.kill()
        each.process.wait()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
