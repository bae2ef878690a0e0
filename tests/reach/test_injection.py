"""Straight into every supported CPython: each state in which it can be found, and who is left alone.

A few hundred runs. VRAM_SOAK says how many more `python -m tests.reach.soak` makes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.needs import needs, require, require_python, skip_without
from tests.patience import PATIENCE_S, until
from tests.reach import soak
from tests.reach.conftest import CACHED, World, released, target_of
from tests.reach.soak import (
    LOCKED,
    RESTING,
    STATES,
    TargetProgram,
    kill_during_runs,
    run_often,
    run_once,
    run_together,
)
from vram.errors import AttachDenied, NoSuchProcess, NotReachable, Refused, TimedOut
from vram.reach import attachment, cpython, injection, ptrace, remote_exec
from vram.reach.injectors import ask_trim
from vram.reach.target_process import TargetProcess, examine

RUNS = 2


def python_of(version: str) -> str:
    """The interpreter of *version*, or the system's own; without it the test is skipped."""
    if version != "system":
        return require_python(version)
    require("system-python")
    return soak.SYSTEM_PYTHON


@pytest.fixture(autouse=True)
def private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder / "vram"


@pytest.fixture(scope="module", autouse=True)
def permitted() -> None:
    """Where nobody may attach, nothing of this can be shown."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        ptrace.TargetMemory(process.pid).close()
        until(lambda: _can_be_stopped(process.pid))
    except ptrace.TraceDenied as error:
        skip_without("ptrace", f"no process may be attached to here: {error}")
    finally:
        process.communicate()


def _can_be_stopped(pid: int) -> bool:
    """False where only the machine is too busy just now."""
    try:
        ptrace.while_stopped(pid, lambda threads: None)
    except ptrace.TraceDenied:
        raise
    except ptrace.UnsafeToAttach as error:
        if not error.passing:
            raise
        return False
    return True


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., TargetProgram]]:
    made: list[TargetProgram] = []

    def start(
        state: str, threads: int = 1, python: str = sys.executable, **environment: str
    ) -> TargetProgram:
        made.append(TargetProgram(python, state, threads, **environment))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.fault(20)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("version", [*soak.VERSIONS, "system"])
def test_it_answers_and_goes_on(start: Callable[..., TargetProgram], version: str, state: str) -> None:
    program = start(state, python=python_of(version))
    before = program.ask()
    run_often(program, RUNS, asking_every=RUNS)
    after = program.ask()
    assert (after["names"], after["threads"]) == (before["names"], before["threads"])


@pytest.mark.fault(10, 20)
@pytest.mark.parametrize("version", ["3.9", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("state", ["busy", "read", "event", "importing"])
def test_a_run_killed_at_any_moment_does_no_harm(
    start: Callable[..., TargetProgram], version: str, state: str
) -> None:
    program = start(state, python=python_of(version))
    kill_during_runs(program, 3, random.Random(state + version))
    run_often(program, 1)


@pytest.mark.fault(20)
@pytest.mark.parametrize("state", ["busy", "read", "event"])
def test_a_hundred_threads(start: Callable[..., TargetProgram], state: str) -> None:
    run_often(start(state, threads=100), RUNS)


def test_a_main_thread_that_sleeps_while_many_others_want_the_lock(
    start: Callable[..., TargetProgram],
) -> None:
    """It takes the lock in its turn, as after any sleep."""
    program = start("crowd", threads=20)
    run_once(program.python())
    program.ask()


def test_a_service_that_waits_in_zeromq() -> None:
    """The library was made for signals, and pyzmq asks again: the message arrives all the same."""
    require("zmq")
    import zmq

    # It waits for ZeroMQ's own thread to send the answer: Python's end would not.
    code = (
        "import zmq; context = zmq.Context(); socket = context.socket(zmq.REP)\n"
        "print(socket.bind_to_random_port('tcp://127.0.0.1'), flush=True)\n"
        "socket.send(socket.recv()); context.destroy()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    context = zmq.Context()
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for _ in range(RUNS):
            run_once(examine(target_of(process.pid)))
        with context.socket(zmq.REQ) as client:
            client.connect(f"tcp://127.0.0.1:{port}")
            client.send(b"well")
            assert client.poll(PATIENCE_S * 1000), f"no answer; the service: {process.poll()}"
            assert client.recv() == b"well"
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
        context.destroy(linger=0)


@pytest.mark.fault(20)
def test_every_object_from_malloc(start: Callable[..., TargetProgram]) -> None:
    run_often(start("busy", PYTHONMALLOC="malloc"), 10)


def test_nothing_is_left_behind(start: Callable[..., TargetProgram], private_folder: Path) -> None:
    """No thread, no open file, no text in its memory, no file of ours."""
    program = start("read")
    place = Path(f"/proc/{program.pid}")
    before = [sorted(path.name for path in (place / part).iterdir()) for part in ("task", "fd")]
    process = program.python()
    for _ in range(RUNS):
        run_once(process)
    until(lambda: _texts(process) == 0)
    until(
        lambda: [sorted(path.name for path in (place / part).iterdir()) for part in ("task", "fd")] == before
    )
    assert not list(private_folder.iterdir())
    assert "TracerPid:\t0" in (place / "status").read_text()


def _tails(process: TargetProcess) -> list[bytes]:
    with attachment.open_target(process, injection.Injection) as injected:
        return [injected._memory.read(begins, ends - begins) for begins, ends in injected._tails]


def test_runs_at_the_same_time_queue(start: Callable[..., TargetProgram]) -> None:
    program = start("read")
    process = program.python()
    with ThreadPoolExecutor(6) as pool:
        for run in [pool.submit(run_once, process) for _ in range(6)]:
            run.result()
    program.ask()


@pytest.mark.fault(20)
@pytest.mark.parametrize("version", soak.VERSIONS)
def test_runs_that_give_up_while_others_wait_do_no_harm(
    start: Callable[..., TargetProgram], version: str
) -> None:
    program = start("holding", python=python_of(version))
    assert run_together(program, 20, random.Random(version)) > 0


def test_more_runs_than_there_are_places_wait_for_one(start: Callable[..., TargetProgram]) -> None:
    """Its main thread holds Python's lock: until it releases it, no run can end and give its place back."""
    program = start("holding")
    process = program.python()
    with ThreadPoolExecutor(12) as pool:
        runs = [pool.submit(run_once, process) for _ in range(12)]
        until(lambda: _finds_no_free_place(process))
        program.ask()
        for run in runs:
            run.result()
    program.ask()


def _finds_no_free_place(process: TargetProcess) -> bool:
    try:
        run_once(process, deadline_s=0.2)
    except NotReachable as error:
        return "no free slot" in str(error)
    except (TimedOut, AttachDenied):
        return False  # it got a place, or never its turn
    raise AssertionError("it ran although the main thread does not return to Python")


@pytest.mark.fault(20)
class TestCalledOff:
    """The main thread waits in a system call with Python's lock: it never comes to a safe point."""

    def test_nothing_is_done_and_nothing_stays(self, start: Callable[..., TargetProgram]) -> None:
        program = start("holding")
        process = program.python()
        tails = _tails(process)
        for _ in range(3):
            with pytest.raises(TimedOut, match="nothing was done"):
                run_once(process, deadline_s=0.3)
        assert _tails(process) == tails
        program.ask()

    def test_several_at_once_leave_nothing_either(self, start: Callable[..., TargetProgram]) -> None:
        """Only one at a time can stop the process: whoever finds it stopped by another waits for its turn."""
        program = start("holding")
        process = program.python()
        for _ in range(3):
            with ThreadPoolExecutor(4) as pool:
                runs = [pool.submit(run_once, process, 0.3) for _ in range(4)]
            for run in runs:
                with pytest.raises((TimedOut, NotReachable, AttachDenied)):
                    run.result()
            assert _texts(process) == 0
        program.ask()

    @pytest.mark.parametrize("version", soak.VERSIONS)
    def test_a_call_with_others_after_it_runs_nobodys_lines(
        self, start: Callable[..., TargetProgram], version: str
    ) -> None:
        """It stays in the ring, while its place may be given to other lines, which it must not run."""
        with ThreadPoolExecutor(3) as pool:

            def two_pending(deadline_s: float) -> tuple[TargetProgram, TargetProcess, list[int], Any, Any]:
                program = start("holding", python=python_of(version))
                process = program.python()
                first = pool.submit(run_once, process, deadline_s)
                until(lambda: first.done() or len(_pending(process)) == 1)
                places = _pending(process)
                second = pool.submit(run_once, process)
                until(lambda: first.done() or len(_pending(process)) == 2)
                return program, process, places, first, second

            for deadline_s in (2.0, 10.0, 50.0):  # on a busy machine the next one may begin too late
                program, process, places, first, second = two_pending(deadline_s)
                if not first.done():
                    break
                program.ask()
                second.result()
            (place,) = places
            assert isinstance(first.exception(), TimedOut)
            later = [second, pool.submit(run_once, process)]
            until(lambda: _texts(process) == 2 and len(_pending(process)) == 3)
            calls = _pending(process)
            program.ask()
            bodies = [json.loads(run.result().body) for run in later]
        assert calls[0] != place, "what is written there next would run twice, or begin in its middle"
        assert len(set(calls)) == 3
        assert [body["status"] for body in bodies] == ["done", "done"]
        program.ask()
        until(lambda: _texts(process) == 0)

    def test_several_notes_lie_side_by_side(self, start: Callable[..., TargetProgram]) -> None:
        """Each has its own place, and each runs, in the end, once its main thread has returned."""
        program = start("holding")
        process = program.python()
        with ThreadPoolExecutor(3) as pool:
            runs = [pool.submit(run_once, process) for _ in range(3)]
            until(lambda: sum(any(text) for text in _tails(process)) >= 1 and _texts(process) == 3)
            program.ask()
            for run in runs:
                run.result()

    def test_killed_runs_leave_texts_that_do_nothing(
        self, start: Callable[..., TargetProgram], private_folder: Path
    ) -> None:
        program = start("holding")
        process = program.python()
        child = os.fork()
        if not child:
            run_once(process)
            os._exit(0)
        until(lambda: _texts(process) == 1 and len(_pending(process)) == 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        program.ask()
        until(lambda: _texts(process) == 0)  # it ran, found nobody, and cleared up after itself
        program.ask()


def _pending(process: TargetProcess) -> list[int]:
    """Where the calls in its ring find their lines."""
    with attachment.open_target(process, injection.Injection) as injected:
        python, ring = injected.python, injected.python._ring
        python.require_usable()
        python.find_main_thread()
        at, after = python._require_consistent()
        found = []
        while at != after:
            found.append(injected._memory.uint64(python._pending + ring.calls + at * ring.call_nbytes + 8))
            at = (at + 1) % ring.capacity
        return found


def _texts(process: TargetProcess) -> int:
    return sum(text.count(b"start_new_thread") for text in _tails(process))


def _is_known_to_have_ended(injected: injection.Injection) -> bool:
    """False where only the machine is too busy to stop it; raises where anything was injected."""
    try:
        injected._while_stopped(injected._inject_while_stopped)
    except ptrace.TargetEnded:
        return True
    except ptrace.UnsafeToAttach as error:
        if not error.passing:
            raise
        return False
    raise AssertionError("lines were injected into another program")


@pytest.mark.fault(20)
class TestLeftAlone:
    """Refused in a sentence, before anything was touched."""

    def refused(self, program: TargetProgram, **changes: object) -> str:
        process = replace(program.python(), **changes)
        reason = injection.unavailable_reason(process)
        assert reason is not None
        with pytest.raises(NotReachable, match="was not touched"):
            run_once(process)
        program.ask()
        return reason

    @pytest.mark.parametrize(
        ("version", "told", "instead"),
        [
            ("3.8", "its Python is 3.8, which vram does not support", "3.9 to 3.14 are supported"),
            ("3.15", "its Python is 3.15, which vram does not support", "others can call vram.agent()"),
            ("3.13t", "it is a free-threaded build of Python", "have it call vram.agent()"),
        ],
    )
    def test_another_python(self, version: str, told: str, instead: str) -> None:
        code = "print(1, flush=True); print(input())"
        process = subprocess.Popen([require_python(version), "-c", code], stdin=-1, stdout=-1)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = examine(target_of(process.pid))
            for injector in (injection, remote_exec):
                reason = injector.unavailable_reason(found)
                assert reason is not None
                if injector is injection:
                    assert told in reason
                    assert instead in reason
            with pytest.raises(NotReachable, match="was not touched"):
                run_once(found)
        finally:
            assert process.communicate(b"well\n", timeout=PATIENCE_S)[0] == b"well\n"

    @needs("older-python", there=sys.version_info[1] in cpython.LAYOUTS, detail="3.13 publishes its layout")
    def test_a_layout_that_is_not_plausible(
        self, start: Callable[..., TargetProgram], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every field moved a little: each time something does not fit, and nothing is written."""
        program = start("busy")
        minor = sys.version_info[1]
        sound = cpython.LAYOUTS[minor]
        for field in ("runtime", "main", "threads", "thread_id", "main_thread", "initialized"):
            changed = {**cpython.LAYOUTS, minor: replace(sound, **{field: getattr(sound, field) + 8})}
            monkeypatch.setattr(cpython, "LAYOUTS", changed)
            # "Starting or ending" is what some of them look like: that is waited for until the deadline.
            with pytest.raises(NotReachable):
                run_once(program.python(), deadline_s=0.5)
        monkeypatch.setattr(cpython, "LAYOUTS", {**cpython.LAYOUTS, minor: sound})
        program.ask()
        run_once(program.python())

    def test_a_list_of_pending_calls_that_is_not_plausible(
        self, start: Callable[..., TargetProgram], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = start("busy")
        minor = sys.version_info[1]
        wrong = replace(
            cpython.PENDING_CALLS_LAYOUTS[minor], lock=cpython.PENDING_CALLS_LAYOUTS[minor].calls + 8
        )
        monkeypatch.setattr(cpython, "PENDING_CALLS_LAYOUTS", {**cpython.PENDING_CALLS_LAYOUTS, minor: wrong})
        with pytest.raises(NotReachable, match="was not touched"):
            run_once(program.python(), deadline_s=5.0)
        program.ask()

    def test_no_room_in_any_library(
        self, start: Callable[..., TargetProgram], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = start("busy")
        monkeypatch.setattr(injection, "_tails", lambda *_: iter(()))
        with pytest.raises(NotReachable, match="no room"):
            run_once(program.python())
        program.ask()

    def test_sub_interpreters(self, tmp_path: Path) -> None:
        code = (
            "try: import _xxsubinterpreters as i\nexcept ImportError: import _interpreters as i\n"
            "kept = i.create(); print(1, flush=True); input()"
        )
        self.left_alone([sys.executable, "-c", code], "sub-interpreters")

    def test_a_python_that_is_ending(self) -> None:
        code = (
            "import os\n"
            "class Last:\n"
            "    def __del__(self, write=os.write, read=os.read): write(1, b'1\\n'); read(0, 1)\n"
            "last = Last()"
        )
        self.left_alone([sys.executable, "-c", code], "starting or exiting")

    def left_alone(self, argv: list[str], reason: str) -> None:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert reason in (injection.unavailable_reason(examine(target_of(process.pid))) or "")
            with pytest.raises(NotReachable, match=reason):
                run_once(examine(target_of(process.pid)), deadline_s=0.5)
        finally:
            process.communicate(b"\n", timeout=PATIENCE_S)
        assert process.returncode == 0

    def test_one_that_is_traced_already(self, start: Callable[..., TargetProgram]) -> None:
        """Seized by a tracer that lets it run, as strace and profilers do."""
        program = start("read")
        code = (
            "import ctypes, sys; seize = 0x4206\n"
            "assert ctypes.CDLL(None).ptrace(seize, int(sys.argv[1]), None, None) == 0\n"
            "print(1, flush=True); sys.stdin.read()"
        )
        tracer = subprocess.Popen(
            [sys.executable, "-c", code, str(program.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == b"1\n"
        with pytest.raises(AttachDenied, match=f"traced by pid {tracer.pid}"):
            ask_trim(target_of(program.pid), "measure", 5.0, via="ptrace")
        with pytest.raises(AttachDenied, match=f"traced by pid {tracer.pid}"):
            run_once(program.python(), deadline_s=0.5)
        tracer.communicate()
        program.ask()
        run_once(program.python())

    def test_one_that_is_stopped(self, start: Callable[..., TargetProgram]) -> None:
        program = start("read")
        process = program.python()
        program.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED)
        with pytest.raises(NotReachable, match="is stopped"):
            program.python()
        with pytest.raises(NotReachable, match="it is stopped"):
            run_once(process, deadline_s=5.0)
        until(lambda: Path(f"/proc/{program.pid}/stat").read_text().split(")")[1].split()[0] == "T")
        program.process.send_signal(signal.SIGCONT)
        program.ask()

    def test_one_that_has_ended(self, start: Callable[..., TargetProgram]) -> None:
        program = start("read")
        process = program.python()
        program.close()
        with pytest.raises(NoSuchProcess):
            run_once(process)

    def test_another_process_with_its_pid(self, start: Callable[..., TargetProgram]) -> None:
        program = start("read")
        target = program.python().target
        other = replace(target, process=replace(target.process, started_at=1))
        with pytest.raises(NoSuchProcess):
            run_once(replace(program.python(), target=other))
        program.ask()

    def test_one_that_began_another_program_meanwhile(self, tmp_path: Path) -> None:
        """What was learnt of the old program is not applied to the new one, though pid and name stay."""
        code = "import os, sys; print(1, flush=True); input(); os.execv(sys.executable, sys.argv[1:])"
        argv = [sys.executable, "-c", "print(2, flush=True); print(input())"]
        process = subprocess.Popen(
            [sys.executable, "-uc", code, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            with attachment.open_target(examine(target_of(process.pid)), injection.Injection) as injected:
                process.stdin.write(b"\n")
                process.stdin.flush()
                assert process.stdout.readline() == b"2\n"
                until(lambda: _is_known_to_have_ended(injected))
        finally:
            told, _ = process.communicate(b"well\n", timeout=PATIENCE_S)
        assert (told, process.returncode) == (b"well\n", 0)

    def test_one_that_begins_other_programs_all_the_time(self, tmp_path: Path) -> None:
        count = tmp_path / "count"
        code = (
            "import os, sys\n"
            "n = int(sys.argv[1]) + 1\n"
            f"open({str(count)!r}, 'a').write('.')\n"
            "os.execv(sys.executable, [sys.executable, '-S', '-c', sys.argv[2], str(n), sys.argv[2]])"
        )
        process = subprocess.Popen([sys.executable, "-S", "-c", code, "0", code])
        try:
            until(count.exists)
            for _ in range(20):
                with suppress(Refused):
                    run_once(examine(target_of(process.pid)), deadline_s=0.2)
            size = count.stat().st_size
            until(lambda: count.stat().st_size > size + 3)
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()


@needs("root", detail="only root runs others")
def test_root_attaches_to_another_users(tmp_path: Path) -> None:
    python = python_of("system")
    code = "import os; os.setgid(65534); os.setuid(65534); print(1, flush=True); print(input())"
    process = subprocess.Popen([python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        python = examine(target_of(process.pid))
        assert not python.is_ours
        run_once(python)
        assert not list(Path("/run").glob(f"vram-visit-{process.pid}-*"))
    finally:
        told, _ = process.communicate(b"well\n", timeout=PATIENCE_S)
    assert told == b"well\n"


@pytest.mark.parametrize("rest", ["reading", "computing"])
def test_trim_releases_and_says_for_how_long_it_was_stopped(world: World, rest: str) -> None:
    require("older-python", detail="this Python is reached by sys.remote_exec")
    subject = world.subject(rest)
    receipt = world.trim(subject.pid)
    assert receipt["via"] == "ptrace"
    assert released(receipt) >= CACHED
    assert 0 < receipt["stopped_s"] < PATIENCE_S
    assert subject.ask() == {"alive": 1, "modules": []}
    assert subject.tracer == 0
    assert "stopped for" in world.vram("trim", subject.pid).stdout


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        *((each, "signal-frame") for each in RESTING if each != "sleep"),
        *((each, "interrupted-wait") for each in LOCKED if each != "short"),
        ("holding", "pending-call"),
    ],
)
def test_states_are_told_apart(start: Callable[..., TargetProgram], state: str, expected: str) -> None:
    """Which route a run takes once the program is in its state."""
    process = start(state).python()

    def chosen() -> str:
        with attachment.open_target(process, injection.Injection) as injected:
            injected._prepare()

            def choose(threads: ptrace.StoppedThreads) -> str:
                return injected._routes.choose(threads, *injected._main_thread(threads))

            try:
                return ptrace.while_stopped(process.pid, choose)[0]
            except ptrace.UnsafeToAttach as error:
                if not error.passing:
                    raise
                return str(error)

    until(lambda: chosen() == expected)
