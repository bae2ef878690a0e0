"""`vram why --deep`: processes that can be reached say what of theirs is live and what is only cached."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import PROGRAM, Run
from tests.guard.scoping import RAW, ROOT, environment
from tests.patience import PATIENCE_S
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

HOLDER = (
    RAW
    + """
import ctypes
pool = raw.out(ctypes.c_uint64, "cuDeviceGetDefaultMemPool", 0)
raw.call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(GIB)))
live, cached = (raw.out(ctypes.c_uint64, "cuMemAllocAsync", n * MIB, 0) for n in (64, 128))
raw.call("cuMemFreeAsync", cached, 0)
raw.call("cuCtxSynchronize")
raw.alloc(32 * MIB)
if sys.argv[1] == "willing":
    vram.agent()
tell(os.getpid())
sys.stdin.readline()
"""
)


def asked(gpu: VirtualGpu, folder: Path, word: str) -> tuple[dict[str, int], list[str]]:
    """The entries of one process by kind, and the notes beside them."""
    folder.chmod(0o700)
    variables = environment(gpu) | {"XDG_RUNTIME_DIR": str(folder)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, word], stdin=-1, stdout=-1, text=True, env=variables, cwd=ROOT
    )
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    if word == "stopped":
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    done = subprocess.run(
        [*PROGRAM, "why", "--deep", "--json", "--deadline", "60s"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    holder.send_signal(signal.SIGCONT)
    holder.communicate("\n")
    assert done.returncode == 0, done.stderr
    (seen,) = json.loads(done.stdout)["gpus"]
    assert sum(entry["nbytes"] or 0 for entry in seen["entries"]) == seen["total_bytes"]
    mine = {e["kind"]: e["nbytes"] for e in seen["entries"] if e["holder"] and e["holder"]["pid"] == pid}
    return mine, seen["notes"]


def test_an_agent_tells_what_is_live_and_what_is_cached(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    kinds, notes = asked(virtual_gpu, tmp_path, "willing")
    assert kinds == {"live": 64 * MIB, "cached": 128 * MIB, "context": (518 + 32) * MIB}
    (note,) = notes
    assert (note["code"], note.get("stopped_s")) == ("queried", None)  # an agent does not stop it
    assert note["text"].startswith("1 process queried: not stopped, other threads waited at most ")
    assert note["waited_s"] >= 0


def test_one_that_nobody_prepared_is_asked_too(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    kinds, notes = asked(virtual_gpu, tmp_path, "unprepared")
    assert kinds == {"live": 64 * MIB, "cached": 128 * MIB, "context": (518 + 32) * MIB}
    (note,) = notes
    assert note["code"] == "queried"
    assert note["stopped_s"] > 0
    assert note["waited_s"] >= 0


def test_many_are_asked_at_once(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    variables = environment(virtual_gpu) | {"XDG_RUNTIME_DIR": str(tmp_path)}
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, "willing"], stdin=-1, stdout=-1, text=True, env=variables, cwd=ROOT
        )
        for _ in range(6)
    ]
    pids = [int(holder.stdout.readline()) for holder in holders if holder.stdout is not None]
    done = subprocess.run(
        [*PROGRAM, "why", "--deep", "--json", "--deadline", "60s"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    for holder in holders:
        holder.communicate("\n")
    (seen,) = json.loads(done.stdout)["gpus"]
    cached = {e["holder"]["pid"]: e["nbytes"] for e in seen["entries"] if e["kind"] == "cached"}
    assert cached == dict.fromkeys(pids, 128 * MIB)
    (note,) = seen["notes"]
    assert note["text"].startswith("6 processes queried: ")


def test_who_cannot_be_asked_is_counted_and_the_reason_said(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    kinds, notes = asked(virtual_gpu, tmp_path, "stopped")
    assert kinds == {"process": (518 + 32 + 64 + 128) * MIB}
    (note,) = notes
    assert note["code"] == "not-divided"
    assert "1 cannot be reached" in note["text"]


def test_a_snapshot_cannot_be_asked(vram: Run, busy: str) -> None:
    answer = vram("why", "--deep", "--from", busy)
    assert answer.code == 2
    assert "--deep asks living processes" in answer.err
