"""The program has ended, and its memory is not free: its worker has inherited its open files.

    vram virtual -- python examples/after-exit/fork_before.py

The trainer starts its worker by fork, after it has used the GPU, and is killed. The worker never
called CUDA. The driver's list names the dead trainer; `vram why` names the worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import vram

TRAINER = Path(__file__).with_name("trainer.py")


def trained_and_killed(start_method: str) -> None:
    trainer = subprocess.Popen([sys.executable, TRAINER, start_method], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    worker = os.pidfd_open(int(trainer.stdout.readline()))
    try:
        trainer.kill()
        trainer.wait()
        print("the trainer is gone:", *held_by_others())
    finally:
        signal.pidfd_send_signal(worker, signal.SIGKILL)
        os.close(worker)


def held_by_others() -> list[str]:
    """A line for each dead process whose memory is held, with its holder and the finding that explains it."""
    answer = vram.account()
    codes = {pid: finding.code for finding in answer.findings for pid in finding.pids}
    held = [
        f"{(hold.nbytes or 0) >> 20} MiB are left on the GPU, held by pid {hold.pid} ({codes.get(hold.pid)})"
        for hold in answer.ghosts
    ]
    return held or ["nothing is left on the GPU"]


if __name__ == "__main__":
    trained_and_killed("fork")
