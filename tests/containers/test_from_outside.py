"""Programs in containers, reached from the host by root: what works there, and what each refusal says.

``VRAM_VISITS=5000 VRAM_KILLS=500`` makes the long tests longer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.containers.container import PYTHON, Container, container
from tests.needs import require
from tests.patience import PATIENCE_S, until
from tests.reach.conftest import CACHED, World, released, target_of, world
from tests.reach.native_visits import POOL_NBYTES, TRIM, build
from vram.errors import CallsGivenUp, ExitCode, NotReachable, Refused, TargetDied
from vram.reach import injection, native
from vram.reach.injectors import choose_injector
from vram.reach.payload import PayloadRequest, require_done
from vram.reach.target_process import examine

__all__ = ["world"]

VISITS = int(os.environ.get("VRAM_VISITS", "40"))
KILLS = int(os.environ.get("VRAM_KILLS", "8"))
MEASURE = PayloadRequest("trim", {"verb": "measure"})

AS_1234 = ("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups")
OF_OTHERS = (PYTHON, "/app/as_others.py")
PLACES: dict[str, dict[str, Any]] = {
    "a container": {},
    "read-only, no /tmp": {"options": "read-only no-tmp no-shm"},
    "noexec": {"options": "noexec-tmp"},
    "another user": {"before": AS_1234},
    "a user namespace": {"before": OF_OTHERS},
    "a user in a user namespace": {"before": (*OF_OTHERS, *AS_1234)},
    "filters of the runtime": {"before": (PYTHON, "/app/sandbox.py", "root:container")},
    "bubblewrap": {"runtime": "bwrap"},
    "runc": {"runtime": "runc"},
    "filters, no new privileges": {"before": (PYTHON, "/app/sandbox.py", "container")},
}

Start = Callable[..., Container]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    require("cc")
    return build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def start(world: World, tmp_path: Path, programs: dict[str, Path]) -> Iterator[Start]:
    """Starts a program in a container: words of subject.py, or "native"."""
    # Whoever a container runs as uses the virtual GPU, as all may use /dev/nvidia0.
    subprocess.run(["chmod", "-R", "a+rwX", world.environment["VRAM_VIRTUAL_GPU"]], check=True)
    with ExitStack() as stack:

        def begin(
            *words: str, argv: Sequence[str] = (), files: Mapping[str, Path] = {}, **options: Any
        ) -> Container:
            folder = tmp_path / f"container-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            shown = {"/app/native": programs["c"], **files}
            command = argv or (
                ["/app/native", str(POOL_NBYTES)]
                if words == ("native",)
                else [PYTHON, "/app/train.py", str(CACHED), *words]
            )
            return stack.enter_context(container(world.environment, folder, command, files=shown, **options))

        yield begin


# ---- every command ----


@pytest.mark.parametrize("place", PLACES)
def test_a_python_is_trimmed(world: World, start: Start, place: str) -> None:
    program = start("reading", **PLACES[place])
    receipt = world.trim(program.pid)
    assert receipt["via"] == "ptrace"
    assert released(receipt) >= CACHED
    assert program.ask() == {"alive": 1, "modules": []}
    assert program.files() == []


@pytest.mark.parametrize("place", PLACES)
def test_a_native_program_is_trimmed(world: World, start: Start, place: str) -> None:
    program = start("native", **PLACES[place])
    receipt = world.trim(program.pid)
    assert receipt["via"] == "native"
    assert released(receipt) == POOL_NBYTES
    until(lambda: not program.files(), program.files)
    heard = program.ask()
    assert not heard["wrong"], heard


@pytest.mark.parametrize("state", ["reading", "computing", "sleeping"])
def test_inside_and_why_ask_it(world: World, start: Start, state: str) -> None:
    program = start(state)
    done = world.vram("inside", program.pid)
    assert done.returncode == ExitCode.OK, done.stderr
    deep = world.vram("why", "--deep", "--json")
    (gpu,) = json.loads(deep.stdout)["gpus"]
    assert {entry["kind"]: entry["nbytes"] for entry in gpu["entries"]}["cached"] == CACHED
    assert "alive" in program.ask()


@pytest.mark.parametrize("place", ["a container", "runc", "filters, no new privileges"])
def test_it_is_parked_and_unparked(world: World, start: Start, place: str) -> None:
    program = start("reading", **PLACES[place])
    for word in ("park", "unpark"):
        done = world.vram(word, program.pid)
        assert done.returncode == ExitCode.OK, done.stderr
    assert program.ask() == {"alive": 1, "modules": []}


# ---- who refuses, and why ----


MUSL = """
#include <stdio.h>
int main(void) {
    char line[16];
    puts("{\\"alive\\": 0}");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) { puts("{\\"alive\\": 1}"); fflush(stdout); }
}
"""
# Takes memory, and becomes a program of another C library that keeps its files open.
BECOMES = """
import os, driver
driver.context()
driver.alloc(1 << 30)
for name in os.listdir("/proc/self/fd"):
    try: os.set_inheritable(int(name), True)
    except OSError: pass
os.execv("/app/musl", ["/app/musl"])
"""


def test_another_c_library_is_refused_and_counted(world: World, start: Start, tmp_path: Path) -> None:
    require("musl-gcc")
    built = tmp_path / "musl"
    subprocess.run(["musl-gcc", "-x", "c", "-", "-o", str(built)], input=MUSL.encode(), check=True)
    program = start(argv=(PYTHON, "-c", BECOMES), files={"/app/musl": built}, program="/app/musl")
    held = json.loads(world.vram("why", "--json").stdout)["gpus"][0]["entries"]
    assert program.pid in {each["holder"]["pid"] for each in held if each["holder"] and each["nbytes"]}
    for words in (("trim", program.pid), ("attach", program.pid)):
        done = world.vram(*words)
        assert (done.returncode, "musl" in done.stderr) == (ExitCode.NOT_REACHABLE, True), done.stderr
    program.ask()


@pytest.mark.parametrize("words", [("reading",), ("native",)])
def test_without_proc_nothing_is_done(start: Start, words: tuple[str, ...]) -> None:
    program = start(*words, options="no-proc")
    with pytest.raises(NotReachable, match="no /proc"):
        choose_injector(target_of(program.pid))
    assert program.files() == []
    program.ask()


@pytest.mark.parametrize("filters", ["kill-restart", "errno-connect", "kill-exec-memory"])
@pytest.mark.parametrize("state", ["reading", "sleeping"])
def test_filters_that_forbid_more_are_left_alone(start: Start, filters: str, state: str) -> None:
    """They are read in a stop, after which not even one that forbids to restart a wait kills."""
    program = start(state, f"gives-up={filters}")
    for _ in range(20):
        with pytest.raises(CallsGivenUp):
            examine(target_of(program.pid))
    assert program.ask() == {"alive": 1, "modules": []}


# ---- who is harmed: nobody ----


def visit(process: Any) -> None:
    route = injection if process.is_python else native
    raw = route.run(process, TRIM, PATIENCE_S)
    require_done(process.pid, raw.body)


STATES = [("reading",), ("computing",), ("sleeping",), ("waiting-for-a-lock",), ("native",)]


@pytest.mark.fault(20)
@pytest.mark.parametrize("words", STATES, ids=lambda words: words[0])
def test_visits_harm_nobody(start: Start, words: tuple[str, ...]) -> None:
    waits = [PYTHON, "/app/states.py", "event", "3"] if words == ("waiting-for-a-lock",) else []
    program = start(*words, argv=waits)
    process = examine(target_of(program.pid))
    for number in range(-(-VISITS // len(STATES))):
        visit(process)
        if number % 10 == 0:
            program.ask()
    chance, longest_s = random.Random(words[0]), 0.2
    for _ in range(-(-KILLS // len(STATES))):
        kill_a_visitor(process, chance.uniform(0, longest_s))
        program.ask()
    visit(process)
    assert not program.ask().get("wrong")
    until(lambda: not program.files(), program.files)


def kill_a_visitor(process: Any, after_s: float) -> None:
    """A visitor that is killed at a random moment, in the middle of its visits."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        while True:
            try:
                visit(process)
                os.write(write, b"v")
            except (Refused, TargetDied):
                os.write(write, b"r")
    os.close(write)
    try:
        with os.fdopen(read, "rb", buffering=0) as pipe:
            pipe.read(1)
            time.sleep(after_s)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
