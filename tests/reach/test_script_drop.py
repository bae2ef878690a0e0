"""The folder of one visit: what it runs only with our word, and what a target can do to whoever listens."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.reach.conftest import SOURCES, World, target_of
from vram.errors import NoSuchProcess, NotReachable, TimedOut
from vram.reach import request as requests
from vram.reach.python_process import examine
from vram.reach.request import Request, require_done
from vram.reach.script_drop import ScriptDrop

MEASURE = Request("trim", {"verb": "measure", "tracebacks": False})
PATIENCE_S = 60.0
BE_NOBODY = "import os; os.setgid(65534); os.setuid(65534)"

# Does what it is told, line by line, in its main thread.
OBEDIENT = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    exec(eval(line), {})
    print("did", flush=True)
"""

# Says nothing of what it should, once it was told to go.
RUDE = """
import os, socket
folder = os.open({path!r}, os.O_PATH)
connection = socket.socket(socket.AF_UNIX)
connection.connect(f"/proc/self/fd/{{folder}}/answers")
connection.recv(3)
{then}
"""


class Obedient:
    def __init__(self, world: World) -> None:
        self.process = world.popen([sys.executable, "-c", OBEDIENT])
        self.pid = self.process.pid
        self.hear()

    def hear(self) -> str:
        assert self.process.stdout is not None
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        assert poll.poll(PATIENCE_S * 1000), "it does not answer"
        return self.process.stdout.readline().decode().strip()

    def do(self, text: str) -> None:
        self.begin(text)
        assert self.hear() == "did"

    def begin(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(repr(text).encode() + b"\n")
        self.process.stdin.flush()


@pytest.fixture
def program(world: World) -> Iterator[Obedient]:
    made = Obedient(world)
    yield made
    made.process.kill()
    made.process.communicate()


@contextmanager
def visit(program: Obedient, deadline_s: float = PATIENCE_S) -> Iterator[tuple[ScriptDrop, int]]:
    process = examine(target_of(program.pid))
    pidfd = os.pidfd_open(process.pid)
    try:
        with ScriptDrop(MEASURE, process, time.monotonic() + deadline_s) as drop:
            yield drop, pidfd
    finally:
        os.close(pidfd)


def left(world: World) -> list[Path]:
    return list((world.runtime / "vram").iterdir())


def test_it_answers_when_it_has_the_word(world: World, program: Obedient) -> None:
    with visit(program) as (drop, pidfd):
        program.do(drop.starter())
        body = drop.answer(pidfd)
    require_done(program.pid, body)
    assert json.loads(body)["python"].startswith("3.")
    assert not left(world)


def test_called_off_it_never_runs(world: World, program: Obedient) -> None:
    with visit(program, 0.0) as (drop, pidfd):
        starter = drop.starter()
        with pytest.raises(TimedOut, match="nothing was done"):
            drop.answer(pidfd)
    program.do(starter)
    program.do("import threading, sys; assert 'socket' not in sys.modules")
    assert not left(world)


def test_asked_for_the_word_after_it_was_called_off_it_does_not_run(
    world: World, program: Obedient, tmp_path: Path
) -> None:
    """The code is inside already and waits for the word: what closes the socket is what decides."""
    ran = tmp_path / "ran"
    text = f"""
import os, sys
sys.path.insert(0, {str(SOURCES)!r})
from vram.payloads import delivery
request = {{"pid": os.getpid(), "until": 1e6, "folder": sys.argv[1]}}
connect = delivery.connected
def connected(*arguments):
    connection = connect(*arguments)
    print("connected", flush=True)
    return connection
delivery.connected = connected
try:
    delivery.deliver(lambda request: open({str(ran)!r}, "w").close() or {{}}, request)
except OSError:
    pass
"""
    with visit(program) as (drop, pidfd):
        program.begin(text.replace("sys.argv[1]", repr(drop.path)))
        assert program.hear() == "connected"
    assert program.hear() == "did"
    assert not ran.exists()
    # The same with the word: so it would have been seen.
    with visit(program) as (drop, pidfd):
        program.begin(text.replace("sys.argv[1]", repr(drop.path)))
        drop.answer(pidfd)
    assert ran.exists()


def test_somebody_elses_connection_is_not_taken_for_the_targets(world: World, program: Obedient) -> None:
    with visit(program) as (drop, pidfd), socket.socket(socket.AF_UNIX) as stranger:
        folder = os.open(drop.path, os.O_PATH)
        stranger.connect(f"/proc/self/fd/{folder}/answers")
        os.close(folder)
        program.do(drop.starter())
        require_done(program.pid, drop.answer(pidfd))
        assert stranger.recv(3) == b""


@pytest.mark.parametrize("body", [b"\n", b"[]\n", b"nonsense\n", b"[" * 100_000 + b"\n", b'{"status": 7}\n'])
def test_a_malformed_answer_is_a_refusal(body: bytes) -> None:
    with pytest.raises(NotReachable, match="cannot be read"):
        require_done(1, body)


def test_a_target_that_hangs_up_is_a_refusal(world: World, program: Obedient) -> None:
    with visit(program) as (drop, pidfd):
        program.begin(RUDE.format(path=drop.path, then="connection.send(b'{'); connection.close()"))
        with pytest.raises(NotReachable, match="hung up"):
            drop.answer(pidfd)


def test_a_target_that_ends_is_no_more(world: World, program: Obedient) -> None:
    with visit(program) as (drop, pidfd):
        program.begin(RUDE.format(path=drop.path, then="os._exit(0)"))
        with pytest.raises(NoSuchProcess):
            drop.answer(pidfd)


def test_an_endless_answer_ends_at_the_limit(
    world: World, program: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vram.reach.script_drop.LONGEST_ANSWER", 1 << 20)
    assert requests.LONGEST_ANSWER > 1 << 20
    with visit(program) as (drop, pidfd):
        program.begin(RUDE.format(path=drop.path, then="while True: connection.send(b'x' * 65536)"))
        with pytest.raises(NotReachable, match="answers more than"):
            drop.answer(pidfd)


def test_an_answer_that_trickles_does_not_outlast_the_deadline(world: World, program: Obedient) -> None:
    """Each byte comes in time; the deadline is for all of them."""
    with visit(program, 1.0) as (drop, pidfd):
        program.begin(RUDE.format(path=drop.path, then="while True: connection.send(b'x')"))
        with pytest.raises(TimedOut, match="began"):
            drop.answer(pidfd)


def test_a_large_answer_arrives_whole(world: World, program: Obedient) -> None:
    with visit(program) as (drop, pidfd):
        then = "connection.sendall(b'{' + b' ' * (8 << 20) + b'}\\n')"
        program.begin(RUDE.format(path=drop.path, then=then))
        assert len(drop.answer(pidfd)) == (8 << 20) + 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root visits others")
def test_nothing_of_roots_is_the_targets(world: World) -> None:
    """Somebody else's process reads and connects; it owns nothing there and can change nothing."""
    process = world.popen([sys.executable, "-c", f"{BE_NOBODY}; print(flush=True); input()"])
    assert process.stdout is not None
    process.stdout.readline()
    try:
        about = examine(target_of(process.pid))
        assert not about.is_ours
        with ScriptDrop(MEASURE, about, time.monotonic() + PATIENCE_S) as drop:
            folder = Path(drop.path)
            drop.script()
            for path in (folder, *folder.iterdir()):
                assert path.stat().st_uid == 0
                assert path.is_socket() or not path.stat().st_mode & 0o022
            _as_nobody(f"open({str(folder / 'payload.py')!r}).read()")
            _as_nobody("open({!r}, 'w')".format(str(folder / "new")), fails="PermissionError")
            _as_nobody(f"import os; os.unlink({str(folder / 'payload.py')!r})", fails="PermissionError")
        assert [path.name for path in folder.iterdir() if path.stat().st_size] == []
    finally:
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _as_nobody(code: str, fails: str = "") -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{BE_NOBODY}; {code}"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert fails in done.stderr if fails else not done.returncode, done.stderr


def test_what_killed_visitors_left_is_swept(world: World, program: Obedient) -> None:
    """While the program lives on; whoever still listens is not disturbed."""
    process = examine(target_of(program.pid))
    child = os.fork()
    if not child:
        ScriptDrop(MEASURE, process, time.monotonic() + PATIENCE_S)
        os._exit(0)
    os.waitpid(child, 0)
    (abandoned,) = left(world)
    os.utime(abandoned, (0, 0))
    with visit(program) as (drop, _):
        os.utime(drop.path, (0, 0))
        with visit(program):
            assert abandoned not in left(world)
            assert Path(drop.path) in left(world)
