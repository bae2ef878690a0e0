"""Visits by debugger to a program that is always inside malloc: none may harm it.

Long, so it runs only when it is named. VRAM_TRIES says how many (1,000).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

from bench.cases.trim import ROOT, SUBJECT, _private_folders
from bench.company import CompanyRefused
from bench.row import Row
from bench.timing import CommandFailed, program

TRIES = int(os.environ.get("VRAM_TRIES", "1000"))
MIB = 1024**2


def run(turns: int) -> list[Row]:
    if shutil.which("gdb") is None:
        raise CompanyRefused("gdb is not installed")
    command = [sys.executable, str(ROOT / "tests" / "reach" / "subject.py"), str(64 * MIB), "computing"]
    environment = {**os.environ, "PYTHONPATH": SUBJECT, "PYTHONMALLOC": "malloc"}
    with (
        _private_folders(),
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as subject,
    ):
        try:
            _answer(subject)
            seconds = sorted(_visited(subject) for _ in range(TRIES))
        finally:
            subject.kill()
    note = f"{TRIES} visits, 0 harmed"
    return [Row("vram trim --via debugger, inside malloc", seconds[len(seconds) // 2], "s", note=note)]


def _visited(subject: subprocess.Popen[bytes]) -> float:
    """Seconds of one visit; raises where it failed, or where the program does not go on."""
    began = time.perf_counter()
    words = ["trim", str(subject.pid), "--via", "debugger", "--json"]
    done = subprocess.run([program("vram") or "vram", *words], stdout=subprocess.PIPE)
    elapsed_s = time.perf_counter() - began
    if done.returncode:
        raise CommandFailed(f"vram trim --via debugger: exit status {done.returncode}")
    assert subject.stdin is not None
    subject.stdin.write(b"\n")
    subject.stdin.flush()
    _answer(subject)
    return elapsed_s


def _answer(subject: subprocess.Popen[bytes]) -> None:
    assert subject.stdout is not None
    line = subject.stdout.readline()
    if not line:
        raise CommandFailed(f"the program was harmed: exit status {subject.wait()}")
    json.loads(line)
