"""Processes of our own: how they are started, and that they can always be left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from vram.children import (
    MAX_FRAME,
    Child,
    Inbox,
    LineInbox,
    LocalPidHandle,
    frame,
    interpreter,
    may_fork,
    spawn,
    start_program,
)

ROOT = Path(__file__).resolve().parents[2]


def _said(child: Child) -> bytes:
    os.set_blocking(child.pipe, True)
    with open(os.dup(child.pipe), "rb") as file:
        return file.read()


def _list_descriptors(pipe: int) -> None:
    open_now = []
    for number in range(64):
        try:
            os.fstat(number)
        except OSError:
            continue
        open_now.append(number)
    os.write(pipe, repr((open_now, pipe)).encode())


FORK_IN_ONE_THREAD = """
import os
from tests.host.test_children import _list_descriptors, _said
from vram.children import may_fork, start
os.dup(0)
assert may_fork()
child = start(_list_descriptors, ["unused"])
open_now, pipe = eval(_said(child))
assert open_now == [0, 1, 2, pipe], open_now
assert child.wait(30.0)
"""


def test_a_fork_holds_its_pipe_and_nothing_else() -> None:
    """In a program of its own: a pytest worker has a second thread, and may not fork."""
    command = [sys.executable, "-c", FORK_IN_ONE_THREAD]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_second_thread_forbids_a_fork() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not may_fork()
    finally:
        done.set()
        thread.join()


def test_a_program_gets_the_pipe_as_descriptor_3() -> None:
    child = spawn([sys.executable, "-c", "import os; os.write(3, b'hello')"])
    assert _said(child) == b"hello"
    assert child.wait(PATIENCE_S)


def test_what_hangs_is_ended() -> None:
    child = spawn([sys.executable, "-c", "import os, signal; os.write(3, b'.'); signal.pause()"])
    os.set_blocking(child.pipe, True)
    assert os.read(child.pipe, 1) == b"."
    assert not child.wait(0.0)
    assert child.end(PATIENCE_S)
    assert child.wait(0.0)


def test_ignored_children_can_be_left_too() -> None:
    """A program may have told the kernel to reap its children by itself."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child = spawn(["/bin/true"])
        assert child.end(PATIENCE_S)
        group = spawn(["/bin/true"], apart="group")
        assert group.end_group(PATIENCE_S)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_fresh_interpreter_takes_no_module_from_the_working_folder(tmp_path, monkeypatch) -> None:
    """Root may stand in anybody's folder."""
    (tmp_path / "pynvml.py").write_text("import os; os.write(3, b'taken in'); os._exit(1)")
    monkeypatch.chdir(tmp_path)
    child = spawn(interpreter("vram.host.local.nvml_child", "0"))
    assert b"taken in" not in _said(child)
    assert child.wait(PATIENCE_S)


def test_what_was_written_in_time_is_read_after_the_deadline() -> None:
    child = spawn([sys.executable, "-c", "import os, signal; os.write(3, b'in time\\n'); signal.pause()"])
    wait_until_readable(child)
    lines = child.lines(time.monotonic())
    assert next(lines) == b"in time"
    with pytest.raises(TimeoutError):
        next(lines)
    assert child.end(PATIENCE_S)


def wait_until_readable(child: Child) -> None:
    poll = select.poll()
    poll.register(child.pipe, select.POLLIN)
    assert poll.poll(PATIENCE_S * 1000)


def test_a_child_of_its_own_that_keeps_the_pipe_open_is_not_waited_for() -> None:
    code = "import os, signal\nif os.fork() == 0: signal.pause()\nos.write(3, b'done')"
    child = spawn([sys.executable, "-c", code], apart="group")
    assert b"".join(child.parts(time.monotonic() + PATIENCE_S)) == b"done"
    assert child.end_group(PATIENCE_S)


def test_one_that_was_reaped_is_not_signalled() -> None:
    """Its pid may be another process's by now, and so may the number of its pidfd."""
    child = spawn(["/bin/true"])
    assert child.wait(PATIENCE_S)
    assert child.exit_code == 0
    assert child.pidfd == -1
    assert child.send(signal.SIGKILL) == "gone"
    child.signal_group(signal.SIGKILL)


def test_a_handle_of_a_process_that_has_ended_signals_no_other() -> None:
    with (
        subprocess.Popen(["sleep", "100"]) as process,
        LocalPidHandle(process.pid, os.pidfd_open(process.pid)) as handle,
    ):
        assert not handle.ended()
        assert handle.send(signal.SIGKILL) == "sent"
        assert handle.ended(PATIENCE_S)
        process.wait()
        assert handle.send(signal.SIGKILL) == "gone"


def test_a_program_talks_through_its_standard_streams_alone() -> None:
    code = "import os, sys; print(sys.stdin.readline().strip(), os.getsid(0) == os.getpid()); sys.exit(3)"
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        program = start_program([sys.executable, "-c", f"import os\n{_IS_CLOSED.format(inherited)}\n{code}"])
    finally:
        os.close(inherited)
    program.write(b"asked\n")
    assert list(program.lines(time.monotonic() + PATIENCE_S)) == [b"asked True"]
    assert program.wait(PATIENCE_S)
    assert program.exit_code == 3
    program.hang_up()


_IS_CLOSED = "try:\n    os.fstat({0})\n    raise SystemExit('inherited')\nexcept OSError:\n    pass"


def test_frames_and_lines_are_put_together_from_parts() -> None:
    inbox = Inbox(bytes)
    stream = frame(b"one") + frame(b"") + frame(b"three")
    found = [body for at in range(len(stream)) for body in inbox.add(stream[at : at + 1])]
    assert found == [b"one", b"", b"three"]
    lines = LineInbox()
    text = b"one\n\nthree\nrest"
    found = [line for at in range(len(text)) for line in lines.add(text[at : at + 1])]
    assert found == [b"one", b"", b"three"]


def test_what_is_longer_than_expected_is_refused_before_it_has_come() -> None:
    with pytest.raises(ValueError, match="bytes"):
        list(Inbox().add((MAX_FRAME + 1).to_bytes(4, "little")))
    lines = LineInbox(4)
    assert lines.add(b"four\n") == [b"four"]
    with pytest.raises(ValueError, match="bytes"):
        lines.add(b"five5")
