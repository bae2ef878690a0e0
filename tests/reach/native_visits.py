"""Thousands of visits to native programs that check themselves, some by a visitor that is killed meanwhile.

    VRAM_VISITS=5000 VRAM_KILLS=500 python -m tests.reach.native_visits [PROGRAM...] >docs/evidence/DATE.jsonl

shares so many visits and kills among the programs. Prints the machine, one JSON line for each program, and
the sum.
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
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.patience import PATIENCE_S, until, until_readable
from vram.errors import Refused, TargetDied
from vram.host.local import LocalHost
from vram.reach import native
from vram.reach.payload import PayloadRequest, RawAnswer, require_done
from vram.reach.target_process import TargetProcess, examine
from vram.reclaim.identity import identify
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

SOURCES = Path(__file__).with_name("native_programs")
TRIM = PayloadRequest("trim", {"verb": "trim"})
MEASURE = PayloadRequest("trim", {"verb": "measure"})
POOL_NBYTES = 64 * MIB


class Kind(NamedTuple):
    """A program: which file of it is built, how, and the words that it is started with."""

    name: str
    built: str
    words: tuple[str, ...] = ()
    cuda: bool = True


KINDS = (
    Kind("C", "c"),
    Kind("C without CUDA", "c", cuda=False),
    Kind("C++, shared runtime", "c++"),
    Kind("C++, static runtime", "c++-static"),
    Kind("Rust", "rust"),
    Kind("C, 100 threads", "c", ("threads",)),
    Kind("C, forks", "c", ("forks",)),
    Kind("C, loads libraries", "c", ("loads",)),
    Kind("C, handles signals", "c", ("signals",)),
)


def build(folder: Path) -> dict[str, Path]:
    """Compile the programs; Rust only where its compiler is."""
    common, library = folder / "program.o", folder / "libprogram.a"
    flags = ["-O2", "-g", "-Wall", "-Wextra"]
    _run(["cc", *flags, "-c", SOURCES / "program.c", "-o", common])
    _run(["ar", "rcs", library, common])
    links = [common, "-pthread", "-ldl"]
    made = {name: folder / name for name in ("c", "c++", "c++-static")}
    _run(["cc", *flags, SOURCES / "main.c", *links, "-o", made["c"]])
    _run(["c++", *flags, SOURCES / "main.cpp", *links, "-o", made["c++"]])
    static = ["-static-libstdc++", "-static-libgcc"]
    _run(["c++", *flags, *static, SOURCES / "main.cpp", *links, "-o", made["c++-static"]])
    rustc = find_rustc()
    if rustc is not None:
        made["rust"] = folder / "rust"
        _run([rustc, "-O", "-L", folder, SOURCES / "main.rs", "-o", made["rust"]])
    return made


def find_rustc() -> str | None:
    """On PATH, or where rustup puts it."""
    return shutil.which("rustc") or shutil.which("rustc", path=str(Path.home() / ".cargo" / "bin"))


def _run(command: list[Any]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class NativeProgram:
    """A running program, asked now and then whether anything went wrong in it."""

    def __init__(self, program: Path, kind: Kind, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [program, str(POOL_NBYTES if kind.cuda else 0), *kind.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        self.pid = self.process.pid
        self.asked = 0
        self.hear()

    def target(self) -> TargetProcess:
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
        assert not heard["wrong"], heard
        return heard

    def left_behind(self) -> list[str]:
        """What of a visit is still in it: threads, mappings, open files."""
        threads = [_read(each / "comm").strip() for each in Path(f"/proc/{self.pid}/task").iterdir()]
        maps = _read(Path(f"/proc/{self.pid}/maps")).splitlines()
        files = [_read_link(each) for each in Path(f"/proc/{self.pid}/fd").iterdir()]
        found = [name for name in threads if name == "vram-visit"]
        found += [line for line in maps if "visitor.so" in line or "vram-visitor" in line]
        return found + [name for name in files if "visit-" in name]

    def require_nothing_left(self) -> None:
        """Its thread answers first, and leaves a moment later."""
        until(lambda: not self.left_behind(), self.left_behind)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def _read(path: Path) -> str:
    with suppress(OSError):  # that thread has ended
        return path.read_text()
    return ""


def _read_link(path: Path) -> str:
    with suppress(OSError):
        return os.readlink(path)
    return ""


def visit(
    process: TargetProcess, request: PayloadRequest = TRIM, deadline_s: float = PATIENCE_S
) -> RawAnswer:
    raw = native.run(process, request, deadline_s)
    require_done(process.pid, raw.body)
    return raw


def visit_often(program: NativeProgram, visits: int, asking_every: int = 20) -> list[float]:
    """For how long its thread was stopped each time."""
    process = program.target()
    stopped = []
    for number in range(visits):
        stopped.append(visit(process).stopped_s or 0.0)
        if number % asking_every == 0:
            program.ask()
    program.ask()
    return stopped


def kill_visitors(program: NativeProgram, kills: int, chance: random.Random) -> int:
    """Visitors are killed at random moments, all over a visit. Returns how many visits they had finished."""
    process = program.target()
    took = []
    for _ in range(5):
        began = time.monotonic()
        visit(process)
        took.append(time.monotonic() - began)
    longest_s = 1.2 * sorted(took)[2]
    finished = len(took)
    for _ in range(kills):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            while True:
                try:
                    visit(process)
                    os.write(write, b"v")
                except (Refused, TargetDied) as error:
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


def soak(program: Path, kind: Kind, environment: dict[str, str], visits: int, kills: int) -> dict[str, Any]:
    """One program. What went wrong is in the result."""
    result: dict[str, Any] = {"program": kind.name, "visits": 0, "kills": 0}
    running = NativeProgram(program, kind, environment)
    try:
        threads = len(os.listdir(f"/proc/{running.pid}/task"))
        stopped = sorted(visit_often(running, visits))
        result |= {"threads": threads, "visits": len(stopped)}
        result["stopped_ms"] = [round(stopped[at] * 1000, 3) for at in (len(stopped) // 2, -1)]
        result["finished_before_a_kill"] = kill_visitors(running, kills, random.Random(kind.name))
        result["kills"] = kills
        running.require_nothing_left()
        heard = running.ask()
        result |= {"rounds": heard["rounds"], "woken": heard["woken"]}
    except (AssertionError, Refused, TargetDied) as error:
        result["wrong"] = f"{type(error).__name__}: {error}"
    finally:
        running.close()
    return result


def main() -> None:
    visits, kills = (
        int(os.environ.get(name, few)) for name, few in (("VRAM_VISITS", 450), ("VRAM_KILLS", 45))
    )
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="vram-visits-")
    machine = {"kernel": platform.release().partition("-")[0], "libc": platform.libc_ver()[1]}
    print(
        json.dumps({"taken": time.strftime("%Y-%m-%d"), "machine": platform.machine(), **machine}), flush=True
    )
    total = {"visits": 0, "kills": 0, "wrong": 0}
    with tempfile.TemporaryDirectory() as folder, VirtualGpu.create() as gpu:
        programs = build(Path(folder))
        kinds = [kind for kind in KINDS if kind.built in programs]
        kinds = [kind for kind in kinds if not sys.argv[1:] or kind.name in sys.argv[1:]]
        for kind in kinds:
            result = soak(
                programs[kind.built],
                kind,
                gpu.environment(),
                -(-visits // len(kinds)),
                -(-kills // len(kinds)),
            )
            print(json.dumps(result), flush=True)
            total["visits"] += result["visits"] + result.get("finished_before_a_kill", 0)
            total["kills"] += result["kills"]
            total["wrong"] += "wrong" in result
    print(json.dumps({"sum": total}), flush=True)
    sys.exit(bool(total["wrong"]))


if __name__ == "__main__":
    main()
