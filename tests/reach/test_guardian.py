"""The process between vram and a debugger: it acts on nobody but who was meant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from vram.host.local.child import interpreter
from vram.host.local.procfs import started_at
from vram.reach.injection import GONE


def told(tmp_path: Path, pid: int, since: int | None) -> list[dict[str, str]]:
    """What the guardian says; its debugger is a program that would leave a trace of being started."""
    trace = tmp_path / "started"
    debugger = tmp_path / "gdb"
    debugger.write_text(f"#!/bin/sh\ntouch {trace}\n")
    debugger.chmod(0o700)
    orders = {
        "pid": pid,
        "started_at": since,
        "minor": sys.version_info.minor,
        "code": "",
        "folder": str(tmp_path / "visit"),
        "debugger": str(debugger),
        "until": float("inf"),
    }
    done = subprocess.run(
        interpreter("vram.reach.guardian"),
        input=json.dumps(orders).encode() + b"\n",
        stdout=subprocess.PIPE,
        timeout=60,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert trace.exists() == (len(events) > 1)
    return events


def test_a_reused_pid_is_left_alone(tmp_path: Path) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    later = (started_at(process.pid) or 0) + 1
    assert told(tmp_path, process.pid, later) == [{"event": "left", "message": GONE}]
    process.communicate()


def test_nobody_is_there_any_more(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    since = started_at(process.pid)
    process.wait()
    assert told(tmp_path, process.pid, since) == [{"event": "left", "message": GONE}]


def test_a_debugger_that_ends_at_once_is_told(tmp_path: Path) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    first, last = told(tmp_path, process.pid, started_at(process.pid))
    assert (first["event"], last["event"]) == ("unsafe", "left")
    assert "ended" in first["message"]
    process.communicate()
