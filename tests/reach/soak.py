"""Thousands of runs, some of them killed at a random moment; counts whatever goes wrong.

    VRAM_SOAK=10000 python -m tests.reach.soak [VERSION...] >docs/evidence/DATE-runs.jsonl

shares so many runs, a tenth as many kills and a tenth as many runs of ten at a time among the versions
and states. Prints the machine, one JSON line for each case, and the sum.
"""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.interpreters import interpreter
from tests.patience import PATIENCE_S, until, until_readable
from vram.cpython_layouts import MINORS
from vram.errors import Refused
from vram.host.local import LocalHost
from vram.reach import injection, remote_exec
from vram.reach.injectors import Injector
from vram.reach.machines import this_machine
from vram.reach.payload import PayloadRequest, RawAnswer, require_done
from vram.reach.target_process import TargetProcess, examine
from vram.reclaim.identity import identify

PROGRAM = Path(__file__).with_name("target_program.py")
SYSTEM_PYTHON = "/usr/bin/python3"  # one whose library every user may read
VERSIONS = tuple(f"3.{minor}" for minor in MINORS)
WORKING = ("busy", "importing", "collecting", "in-c", "deep", "forking", "ringing")
RESTING = ("read", "select", "poll", "asyncio", "sleep", "child")
LOCKED = ("event", "timed", "short", "queue", "join")
STATES = (*WORKING, *RESTING, *LOCKED)
MEASURE = PayloadRequest("trim", {"verb": "measure", "tracebacks": False})


def interpreters() -> dict[str, str]:
    """CPython by version, and the system's own."""
    found = {version: path for version in VERSIONS if (path := interpreter(version))}
    if os.path.exists(SYSTEM_PYTHON):
        found["system"] = SYSTEM_PYTHON
    return found


class TargetProgram:
    """A program that is attached to, and asked now and then whether all is well."""

    def __init__(self, python: str, state: str, threads: int = 1, **environment: str) -> None:
        self.process = subprocess.Popen(
            [python, str(PROGRAM), state, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **{name: value for name, value in os.environ.items() if "PYTHON" not in name},
                **environment,
            },
        )
        self.pid = self.process.pid
        self.asked = 0
        self.hear()
        if state == "holding":  # it says so before it waits: until then it still makes pending calls
            until(self._is_reading)

    def _is_reading(self) -> bool:
        """Whether the main thread is in read(0, …)."""
        number = this_machine().syscalls["read"]
        return Path(f"/proc/{self.pid}/syscall").read_text().startswith(f"{number} 0x0 ")

    def python(self) -> TargetProcess:
        return examine(identify(LocalHost(), self.pid))

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        until_readable(self.process.stdout, lambda: f"pid {self.pid} is stopped, or hangs")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"pid {self.pid} has ended: {self.process.wait()}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def ask(self) -> dict[str, Any]:
        """Show that it goes on as if nobody had been there."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        self.asked += 1
        heard = self.hear()
        assert heard["alive"] == self.asked, heard
        return heard

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def injectors_for(version: str) -> tuple[Injector, ...]:
    return (remote_exec, injection) if version == "3.14" else (injection,)


def run_once(
    process: TargetProcess, deadline_s: float = PATIENCE_S, injector: Injector = injection
) -> RawAnswer:
    raw = injector.run(process, MEASURE, deadline_s)
    require_done(process.pid, raw.body)
    return raw


def run_often(
    program: TargetProgram, runs: int, asking_every: int = 10, injector: Injector = injection
) -> list[float]:
    """For how long it was stopped each time."""
    process = program.python()
    stopped = []
    for number in range(runs):
        stopped.append(run_once(process, injector=injector).stopped_s or 0.0)
        if number % asking_every == 0:
            program.ask()
    program.ask()
    return stopped


# A run stops the process early on, within a third of its time; the rest is waiting for the answer.
UNTIL_IT_RUNS_AGAIN = 0.4


def kill_during_runs(
    program: TargetProgram, kills: int, chance: random.Random, injector: Injector = injection
) -> int:
    """Runs are killed at random moments, up to a little after the process is resumed.

    Returns how many runs they had finished.
    """
    process = program.python()
    took = []
    for _ in range(5):
        began = time.monotonic()
        run_once(process, injector=injector)
        took.append(time.monotonic() - began)
    longest_s = UNTIL_IT_RUNS_AGAIN * sorted(took)[2]
    finished = len(took)
    for _ in range(kills):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            while True:
                try:
                    run_once(process, injector=injector)
                    os.write(write, b"v")
                except Refused as error:
                    os.write(write, f"refused: {error}".encode())
        os.close(write)
        with os.fdopen(read, "rb", buffering=0) as pipe:
            try:
                first = pipe.read(1)  # it is in the middle of things
                time.sleep(chance.uniform(0, longest_s))
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            heard = first + pipe.readall()
        assert b"r" not in heard, heard
        finished += len(heard)
        program.ask()
    return finished


def run_together(program: TargetProgram, runs: int, chance: random.Random) -> int:
    """Ten at a time, most of which give up while others wait: only what was asked for may run, and once.

    Returns how many were answered.
    """
    process = program.python()
    answered = 0

    def run(begin_s: float, deadline_s: float) -> bool:
        time.sleep(begin_s)
        try:
            run_once(process, deadline_s)
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(10) as pool:
        for _ in range(0, runs, 10):
            deadlines = [chance.choice((0.05, 0.2, 0.8, PATIENCE_S)) for _ in range(10)]
            begun = [pool.submit(run, chance.uniform(0, 0.3), deadline_s) for deadline_s in deadlines]
            time.sleep(chance.uniform(0, 0.6))
            program.ask()
            answered += sum(run.result() for run in begun)
            program.ask()
    return answered


def soak(
    version: str, injector: Injector, state: str, threads: int, runs: int, kills: int, seed: int
) -> dict[str, Any]:
    """One version in one state. What went wrong is in the result, and the next one is tried."""
    case = {"python": version, "via": injector.NAME, "state": state, "threads": threads}
    result: dict[str, Any] = {**case, "runs": 0, "kills": 0}
    program = TargetProgram(interpreters()[version], state, threads)
    try:
        stopped = sorted(run_often(program, runs, injector=injector))
        result["runs"] = len(stopped)
        result["stopped_ms"] = [round(stopped[at] * 1000, 3) for at in (len(stopped) // 2, -1)]
        result["finished_before_a_kill"] = kill_during_runs(program, kills, random.Random(seed), injector)
        result["kills"] = kills
        if injector is injection:
            result["answered_together"] = run_together(program, kills, random.Random(seed))
        status = program.process.poll()
        assert status is None, f"it has ended: {status}"
    except (AssertionError, Refused) as error:
        result["wrong"] = f"{type(error).__name__}: {error}"
    finally:
        program.close()
    return result


def main() -> None:
    runs = int(os.environ.get("VRAM_SOAK", "1000"))
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="vram-soak-")
    versions = sys.argv[1:] or list(interpreters())
    cases = [
        (version, injector, state, threads)
        for version in versions
        for injector in injectors_for(version)
        for state in STATES
        for threads in (1, 100)
    ]
    machine = {
        "machine": platform.machine(),
        "kernel": platform.release().partition("-")[0],
        "libc": platform.libc_ver()[1],
    }
    print(json.dumps({"taken": time.strftime("%Y-%m-%d"), **machine}), flush=True)
    each, kills = -(-runs // len(cases)), -(-runs // 10 // len(cases))
    total = {"runs": 0, "kills": 0, "wrong": 0}
    for seed, (version, injector, state, threads) in enumerate(cases):
        result = soak(version, injector, state, threads, each, kills, seed)
        print(json.dumps(result), flush=True)
        total["runs"] += result["runs"] + result.get("finished_before_a_kill", 0)
        total["kills"] += result["kills"]
        total["wrong"] += "wrong" in result
        shutil.rmtree(os.path.join(os.environ["XDG_RUNTIME_DIR"], "vram"), ignore_errors=True)
    print(json.dumps({"sum": total}), flush=True)
    sys.exit(bool(total["wrong"]))


if __name__ == "__main__":
    main()
