"""Programs without Python are reached through a thread at rest: what they get back, and that none is harmed.

``VRAM_VISITS=5000 VRAM_KILLS=500`` makes the two long tests as long as the promise is.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.needs import needs, require, skip_without
from tests.patience import PATIENCE_S, until
from tests.reach.conftest import World, by_name, released, target_of
from tests.reach.native_visits import (
    KINDS,
    MEASURE,
    POOL_NBYTES,
    TRIM,
    Kind,
    NativeProgram,
    build,
    find_rustc,
    kill_visitors,
    visit,
    visit_often,
)
from vram.errors import AttachDenied, CallsGivenUp, NotReachable, Refused, TargetDied, TimedOut
from vram.payloads import ptrace
from vram.reach import native, visitor_library, waits
from vram.reach.injectors import choose_injector
from vram.reach.machines import this_machine
from vram.reach.payload import PayloadRequest
from vram.reach.ptrace import TargetMemory
from vram.reach.target_process import examine
from vram.reach.visitor_library import LibraryDrop

VISITS = int(os.environ.get("VRAM_VISITS", "45"))
KILLS = int(os.environ.get("VRAM_KILLS", "9"))
PLAIN = KINDS[0]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    require("cc")
    return build(tmp_path_factory.mktemp("native"))


class Visited:
    """Starts programs on the virtual GPU, and ends them after the test."""

    def __init__(self, world: World, programs: dict[str, Path]) -> None:
        self._world, self._programs = world, programs
        self._running: list[NativeProgram] = []

    def start(self, kind: Kind = PLAIN) -> NativeProgram:
        if kind.built not in self._programs:
            skip_without("rust", "no rustc")
        program = NativeProgram(self._programs[kind.built], kind, self._world.environment)
        self._running.append(program)
        return program

    def close(self) -> None:
        for each in self._running:
            each.close()


@pytest.fixture
def visited(world: World, programs: dict[str, Path]) -> Iterator[Visited]:
    found = Visited(world, programs)
    yield found
    found.close()


# ---- what a user gets ----


def test_its_pool_comes_back(world: World, visited: Visited) -> None:
    program = visited.start()
    receipt = world.trim(program.pid)
    assert receipt["via"] == "native"
    assert released(receipt) == POOL_NBYTES
    line = by_name(receipt)["driver pools"]
    assert (line["held"], line["used"], line["held_after"]) == (POOL_NBYTES, 0, 0)
    program.require_nothing_left()
    program.ask()


def test_why_tells_used_and_unused(world: World, visited: Visited) -> None:
    program = visited.start()
    for words in (("why", "--deep"), ("why", str(program.pid), "--deep")):
        done = world.vram(*words, "--json")
        (gpu,) = json.loads(done.stdout)["gpus"]
        kinds = {entry["kind"]: entry["nbytes"] for entry in gpu["entries"]}
        assert kinds["cached"] == POOL_NBYTES, done.stdout
    program.ask()


def test_without_cuda_it_says_so(visited: Visited) -> None:
    program = visited.start(KINDS[1])
    answer = json.loads(visit(program.target()).body)
    assert answer["notes"] == ["libcuda is not loaded in this program"]
    program.ask()


def test_a_broken_context_is_left_alone(world: World, visited: Visited) -> None:
    """After a sticky error every call fails: nothing is tried, and the answer says why."""
    program = visited.start()
    done = world.vram("virtual", "fault", "cuMemGetInfo error=700")
    assert done.returncode == 0, done.stderr
    answer = json.loads(visit(program.target()).body)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS, 700" in answer["notes"][0]
    assert not [line for line in answer["lines"] if line["held_after"] == 0 and line["held"]]


@pytest.fixture
def noexec(world: World) -> Iterator[Path]:
    """The private folders lie where no file may be executed, as below /run on some systems."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "noexec,mode=700", "tmpfs", str(world.runtime)], capture_output=True
    )
    if mounted.returncode:
        skip_without("mounts", "no tmpfs can be mounted")
    yield world.runtime
    subprocess.run(["umount", str(world.runtime)], check=True)


def test_where_no_file_may_be_executed(noexec: Path, visited: Visited) -> None:
    """The library is a file in memory then, which the program opens through vram."""
    program = visited.start()
    visit(program.target())
    program.require_nothing_left()
    program.ask()


@needs("root", detail="only root may mount")
def test_where_it_sees_other_files(world: World) -> None:
    """In a mount namespace of its own, where vram's folders are not: it opens them through vram."""
    hidden = f"mount -t tmpfs none {world.runtime} && echo . && exec cat"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", hidden]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            skip_without("namespaces", "no mount namespace can be made")
        until(lambda: os.readlink(f"/proc/{process.pid}/exe").endswith("cat"))
        until(lambda: waits.read_syscall(process.pid, process.pid))
        assert native.unavailable_reason(examine(target_of(process.pid))) is None
        visit(examine(target_of(process.pid)))
        until(lambda: "vram-visitor" not in Path(f"/proc/{process.pid}/maps").read_text())
    finally:
        process.communicate()
    assert process.returncode == 0


# ---- who is harmed: nobody ----


@pytest.mark.fault(37)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_visits_harm_nobody(kind: Kind, visited: Visited, tally: Tally) -> None:
    if kind.built == "rust" and find_rustc() is None:
        skip_without("rust", "no rustc")
    program = visited.start(kind)
    visits, kills = -(-VISITS // len(KINDS)), -(-KILLS // len(KINDS))
    visit_often(program, visits)
    kill_visitors(program, kills, random.Random(kind.name))
    program.require_nothing_left()
    assert program.ask()["rounds"] > 0
    tally.count(visits + kills)


@pytest.mark.fault(37)
def test_a_program_that_execs_all_the_time(visited: Visited, world: World, programs: dict[str, Path]) -> None:
    """It begins anew every few milliseconds, under the same pid: each visit does its work or nothing."""
    process = world.popen([str(programs["c"]), str(POOL_NBYTES), "exec", "1"])
    answered = refused = 0
    try:
        for _ in range(max(20, VISITS // 20)):
            try:
                visit(examine(target_of(process.pid)), deadline_s=0.5)
                answered += 1
            except (Refused, TargetDied):
                refused += 1
            assert process.poll() is None
        assert answered + refused
    finally:
        process.kill()
        process.communicate()


@pytest.mark.fault(37)
def test_a_program_that_exits_while_it_is_visited(visited: Visited) -> None:
    for number in range(10):
        program = visited.start()
        target = program.target()
        child = os.fork()
        if not child:
            try:
                while True:
                    visit(target, deadline_s=5.0)
            except BaseException:
                os._exit(0)
        until(program.left_behind)  # a visit is under way
        assert program.process.stdin is not None
        program.process.stdin.write(b"q\n")
        program.process.stdin.flush()
        assert program.process.wait(PATIENCE_S) == 0, number
        os.waitpid(child, 0)


# ---- called off ----


def test_called_off_it_never_runs(visited: Visited) -> None:
    """The library is loaded, and nobody tells it to go: it leaves, and the pool is as it was."""
    program = visited.start()
    process = program.target()
    memory = TargetMemory(process.pid)
    until_s = time.monotonic() + PATIENCE_S
    with LibraryDrop(TRIM, process, until_s) as drop:
        drop.cancel()
        native.NativeVisit(process, memory).load(drop.library, until_s)
        program.require_nothing_left()
    memory.close()
    (line,) = json.loads(visit(process, MEASURE).body)["lines"]
    assert line["held"] == POOL_NBYTES


def test_too_late_it_never_runs(visited: Visited) -> None:
    program = visited.start()
    process = program.target()
    memory = TargetMemory(process.pid)
    with LibraryDrop(TRIM, process, time.monotonic() - 1) as drop:
        native.NativeVisit(process, memory).load(drop.library, time.monotonic() + PATIENCE_S)
        program.require_nothing_left()
    memory.close()
    (line,) = json.loads(visit(process, MEASURE).body)["lines"]
    assert line["held"] == POOL_NBYTES


def test_the_deadline_is_kept_where_it_waits_for_the_loader(visited: Visited, tmp_path: Path) -> None:
    """Another thread has the loader's lock for long: the library comes too late then, and does nothing."""
    held = tmp_path / "held"
    held.touch()
    program = visited.start(Kind("C, keeps the loader's lock", "c", ("loader", str(held))))
    process = program.target()
    with pytest.raises(TimedOut, match="nothing was done"):
        visit(process, deadline_s=0.5)
    held.unlink()
    program.require_nothing_left()
    program.ask()
    (line,) = json.loads(visit(process, MEASURE).body)["lines"]
    assert line["held"] == POOL_NBYTES


# ---- refused, with the reason ----


def reason(pid: int) -> str:
    found = native.unavailable_reason(examine(target_of(pid)))
    assert found is not None
    return found


@pytest.mark.fault(37)
def test_seccomp_is_refused(visited: Visited) -> None:
    program = visited.start(Kind("seccomp", "c", ("seccomp",)))
    with pytest.raises(CallsGivenUp, match="seccomp"):
        choose_injector(target_of(program.pid))
    program.ask()


@needs("cc")
def test_a_static_program_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text("#include <unistd.h>\nint main(void) { char c; return (int)read(0, &c, 1); }\n")
    line = ["cc", "-static", str(source), "-o", str(tmp_path / "static")]
    if subprocess.run(line, capture_output=True, check=False).returncode:
        skip_without("compiler", "no static libc")
    process = subprocess.Popen([tmp_path / "static"], stdin=subprocess.PIPE)
    try:
        until(lambda: waits.read_syscall(process.pid, process.pid))
        assert "linked statically" in reason(process.pid)
    finally:
        process.communicate(b"\n")


def test_a_program_that_always_works_is_refused(tmp_path: Path) -> None:
    process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        assert "none of its threads waits" in reason(process.pid)
    finally:
        process.kill()
        process.wait()


def test_a_handler_is_never_kept_waiting(tmp_path: Path) -> None:
    """A thread that may handle signals relies on being woken by them: it is not used."""
    code = "import os, signal; signal.signal(15, print); os.write(1, b'.'); os.read(0, 1)"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.read(1)
        assert "none of its threads waits" in reason(process.pid)
    finally:
        process.communicate(b"\n")


def test_a_traced_program_is_refused(visited: Visited) -> None:
    program = visited.start()
    ptrace.request(ptrace.SEIZE, program.pid)
    try:
        with pytest.raises(AttachDenied, match="already being traced"):
            reason(program.pid)
    finally:
        ptrace.request(ptrace.INTERRUPT, program.pid)
        until(lambda: ptrace.look(program.pid))
        ptrace.request(ptrace.DETACH, program.pid)
    program.ask()


def test_arrays_are_pythons_alone(world: World, visited: Visited) -> None:
    program = visited.start()
    done = world.vram("inside", program.pid)
    assert "is not a Python process" in done.stderr
    done = world.vram("trim", program.pid, "--via", "ptrace")
    assert "which ptrace needs" in done.stderr
    program.ask()


def test_too_long_a_request_is_refused() -> None:
    with pytest.raises(NotReachable, match="too long"):
        visitor_library.filled("/folder", 1, 1.0, "x" * 30_000)
    with pytest.raises(NotReachable, match="line break"):
        visitor_library.lines(PayloadRequest("trim", {"verb": "a\nb"}))


# ---- which waits may be repeated ----


@pytest.mark.parametrize(
    ("name", "arguments", "lasts"),
    [
        ("poll", (0, 1, 0xFFFFFFFF, 0, 0, 0), True),
        ("poll", (0, 1, 100, 0, 0, 0), False),
        ("ppoll", (0, 1, 0, 0, 0, 0), True),
        ("ppoll", (0, 1, 0, 0x7000, 0, 0), False),  # with a mask of its own
        ("select", (1, 0, 0, 0, 0, 0), True),
        ("select", (1, 0, 0, 0, 0x7000, 0), False),
        ("pselect6", (1, 0, 0, 0, 0, 0), True),
        ("pselect6", (1, 0, 0, 0, 0x7000, 0), False),
        ("epoll_wait", (3, 0, 1, (1 << 64) - 1, 0, 0), True),
        ("epoll_wait", (3, 0, 1, 0, 0, 0), False),
        ("epoll_pwait", (3, 0, 1, 0xFFFFFFFF, 0, 8), True),
        ("epoll_pwait", (3, 0, 1, 0xFFFFFFFF, 0x7000, 8), False),
        ("read", (0, 0, 1, 0, 0, 0), True),
        ("nanosleep", (0, 0, 0, 0, 0, 0), False),
        ("futex", (0, 0, 0, 0, 0, 0), False),
    ],
)
def test_only_waits_without_a_deadline(name: str, arguments: tuple[int, ...], lasts: bool) -> None:
    machine = this_machine()
    number = machine.futex if name == "futex" else machine.syscalls.get(name)
    if number is not None:  # aarch64 has none of the older ones
        assert waits.lasts(number, arguments, TargetMemory(os.getpid())) is lasts


def test_a_deadline_of_a_socket_is_seen_by_its_result() -> None:
    numbers = this_machine().syscalls
    assert waits.may_repeat(numbers["recvfrom"], -512)
    assert not waits.may_repeat(numbers["recvfrom"], -4)
    assert waits.may_repeat(numbers["epoll_pwait"], -4)
    assert not waits.may_repeat(numbers["ppoll"], -4)


def test_what_an_interrupted_call_was_made_with() -> None:
    """Where its first argument is lost: that of an epoll can be told, unless there are several."""
    ours, other = socket.socketpair()
    numbers = this_machine().syscalls
    with ours, other, select.epoll() as only:
        assert waits.keeps_first_argument(os.getpid(), numbers["epoll_pwait"], only.fileno())
        with select.epoll():
            assert not waits.keeps_first_argument(os.getpid(), numbers["epoll_pwait"], only.fileno())
        assert waits.keeps_first_argument(os.getpid(), numbers["recvfrom"], ours.fileno())
        ours.settimeout(1)  # Python's own, by poll
        assert waits.keeps_first_argument(os.getpid(), numbers["recvfrom"], ours.fileno())
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 1, 0))
        assert not waits.keeps_first_argument(os.getpid(), numbers["recvfrom"], ours.fileno())
        assert waits.keeps_first_argument(os.getpid(), numbers["read"], 0)


# ---- other users ----


@needs("root", detail="only root may visit other users' processes")
def test_root_visits_another_user(world: World) -> None:
    """The library lies where only root can change it, and the kernel says who connects."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=65534, group=65534, cwd="/")
    try:
        until(lambda: "cat" in os.readlink(f"/proc/{process.pid}/exe"))
        until(lambda: waits.read_syscall(process.pid, process.pid))
        raw = visit(examine(target_of(process.pid)))
        assert json.loads(raw.body)["status"] == "done"
        until(lambda: "visitor" not in Path(f"/proc/{process.pid}/maps").read_text())
        assert process.poll() is None
    finally:
        process.communicate()
    assert process.returncode == 0


@needs("root", detail="only root can become another user")
def test_others_are_denied(world: World) -> None:
    program = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    code = (
        "import os, sys\n"
        "from vram.reach.target_process import examine\n"
        "from vram.errors import NotPermitted\n"
        "from vram.model.plan import Target\n"
        "from vram.model.process import ProcessRef\n"
        "from vram.payloads.procfs import started_at\n"
        "os.setgid(65534); os.setuid(65534)\n"  # the interpreter's files may be closed to others
        f"pid = {program.pid}\n"
        "target = Target(process=ProcessRef(pid, started_at(pid)), uid=0, user='root', command='cat',"
        " executable='/usr/bin/cat')\n"
        "try: examine(target)\n"
        "except NotPermitted: sys.exit(7)\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], env=world.environment, check=False)
        assert done.returncode == 7
    finally:
        program.communicate()
