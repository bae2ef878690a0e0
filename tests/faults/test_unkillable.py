"""Row 4: a holder that waits inside the kernel gets each signal once, however often vram is asked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.record import Tally
from tests.needs import needs, require, skip_without
from tests.reclaim.conftest import Bench
from vram.virtualgpu.demos import PROGRAMS

STUCK = Path(__file__).parents[1] / "reclaim" / "stuck.py"
HOLDER = """
import driver, os, sys
driver.context()
driver.alloc(1 << 30)
print("waits", flush=True)
os.stat(sys.argv[1])
"""


def signals_sent(log: Path, pid: int) -> list[str]:
    """The signals that reached for *pid*, in the words of strace."""
    if not log.exists():
        return []
    lines = (line for line in log.read_text().splitlines() if f"<pid:{pid}>" in line)
    return [found[0] for line in lines if (found := re.search(r"SIG[A-Z]+", line))]


def _about(machine: Bench, pid: int) -> list[dict[str, Any]]:
    """What `vram why` finds about *pid*."""
    answer = json.loads(machine.vram("why", "--json").stdout)
    return [each for each in answer["findings"] if pid in each["pids"]]


@pytest.mark.fault(4)
@needs("root", detail="only root can mount a file system that never answers")
def test_each_signal_is_sent_once_and_later_runs_send_none(
    machine: Bench, tmp_path: Path, tally: Tally
) -> None:
    require("strace")
    machine.require_virtual("a file system is made that never answers")
    if not os.path.exists("/dev/fuse"):
        skip_without("fuse", "there is no /dev/fuse")
    stuck = machine.popen(
        ["unshare", "--mount", sys.executable, str(STUCK), sys.executable, "-c", HOLDER],
        cwd=PROGRAMS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert stuck.stdout is not None
    try:
        lines = {stuck.stdout.readline().strip() for _ in range(2)}
        if b"waits" not in lines:
            skip_without("fuse", "FUSE may not be mounted here")
        pid = int((lines - {b"waits"}).pop())
        watch = ["strace", "-f", "-qq", "--decode-fds=pidfd", "--trace=pidfd_send_signal,kill,tgkill", "-o"]
        asked = [
            ("kill", str(pid), "--yes", "--grace", "0.1s"),
            ("free", "--yes", "--up-to", "kill"),
            ("free", "--more", "139GiB", "--yes", "--up-to", "kill"),
        ]
        (before,) = _about(machine, pid)
        sent = []
        for at, words in enumerate(asked):
            log = tmp_path / f"calls{at}"
            done = machine.run([*watch, str(log), sys.executable, "-m", "vram", *words])
            if "ptrace" in done.stderr:
                skip_without("ptrace", f"strace may not trace here: {done.stderr.strip()}")
            sent.append(signals_sent(log, pid))
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"
        wrong = len(sent[0]) - 2 + sum(map(len, sent[1:]))
        tally.count(len(asked), wrong=wrong)
        assert sent == [["SIGTERM", "SIGKILL"], [], []]
        (after,) = _about(machine, pid)
        # Until SIGKILL comes it would take signals, and is in use as any other.
        assert (before["code"], after["code"]) == ("VR206", "VR209")
        assert "waits in the kernel, in request_wait_answer (state D)" in after["cause"]
    finally:
        stuck.communicate()
