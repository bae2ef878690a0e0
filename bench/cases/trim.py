"""Trim of an idle notebook, and of a program that nobody prepared: from the command to the bytes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.company import CompanyRefused
from bench.row import Row
from bench.timing import CommandFailed, program

GIB = 1024**3
ROOT = Path(__file__).resolve().parents[2]
# What the cells import: a program of the test suite, and the driver calls of the demos.
SUBJECT = f"{ROOT / 'tests' / 'reach'}:{ROOT / 'src' / 'vram' / 'virtualgpu' / 'programs'}"
ONE_SECOND = 1.0
HALF_A_SECOND = 0.5
ONE_PERCENT = 0.01
PATIENCE_S = 60


def run(turns: int) -> list[Row]:
    if find_spec("ipykernel") is None or find_spec("jupyter_client") is None:
        raise CompanyRefused("ipykernel and jupyter_client are not installed beside this Python")
    seconds: list[float] = []
    reclaimable = returned = 0
    with _private_folders(), _notebook() as (client, pid):
        for _ in range(turns):
            client.execute_interactive(f"import subject; subject.fill_pool({4 * GIB})", timeout=PATIENCE_S)
            elapsed_s, receipt = _trim(pid)
            seconds.append(elapsed_s)
            reclaimable += sum(line["reclaimable"] for line in receipt["answer"]["lines"])
            returned += receipt["charged_before"] - receipt["charged_after"]
    middle = sorted(seconds)[len(seconds) // 2]
    stays = max(0, reclaimable - returned)
    return [
        Row("vram trim, idle notebook", middle, "s", target=ONE_SECOND, note="command to bytes"),
        Row("vram trim, what stays", stays, "bytes", "reclaimable", reclaimable, ONE_PERCENT),
        _unprepared(turns),
    ]


def _unprepared(turns: int) -> Row:
    """An ordinary program at rest, without agent or kernel: by ptrace, or by sys.remote_exec since 3.14."""
    command = [sys.executable, str(ROOT / "tests" / "reach" / "subject.py"), str(4 * GIB), "reading"]
    seconds: list[float] = []
    via = ""
    with _private_folders():
        for _ in range(turns):
            program = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": SUBJECT},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            try:
                assert program.stdout is not None
                program.stdout.readline()
                elapsed_s, receipt = _trim(program.pid)
                via = receipt["via"]
                seconds.append(elapsed_s)
            finally:
                program.kill()
                program.communicate()
    middle = sorted(seconds)[len(seconds) // 2]
    return Row("vram trim, idle program", middle, "s", target=HALF_A_SECOND, note=f"command to bytes, {via}")


def _trim(pid: int) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    done = subprocess.run([program("vram") or "vram", "trim", str(pid), "--json"], stdout=subprocess.PIPE)
    elapsed_s = time.perf_counter() - began
    if done.returncode:
        raise CommandFailed(f"vram trim: exit status {done.returncode}")
    (receipt,) = json.loads(done.stdout)["trimmed"]
    return elapsed_s, receipt


@contextmanager
def _notebook() -> Iterator[tuple[Any, int]]:
    from jupyter_client.manager import KernelManager

    manager: Any = KernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(env={**os.environ, "PYTHONPATH": SUBJECT})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        yield client, manager.provisioner.process.pid
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@contextmanager
def _private_folders() -> Iterator[None]:
    """Connection files and the audit log go where nothing of the user's is."""
    names = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "JUPYTER_RUNTIME_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(dict.fromkeys(names, folder))
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
