"""Processes of our own: how they are started, and that they can always be left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.patience import PATIENCE_S
from vram.host.local.child import Child, interpreter, may_fork, spawn

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
from tests.host.test_child import _list_descriptors, _said
from vram.host.local.child import may_fork, start
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
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_fresh_interpreter_takes_no_module_from_the_working_folder(tmp_path, monkeypatch) -> None:
    """Root may stand in anybody's folder."""
    (tmp_path / "pynvml.py").write_text("import os; os.write(3, b'taken in'); os._exit(1)")
    monkeypatch.chdir(tmp_path)
    child = spawn(interpreter("vram.host.local.nvml_child", "0"))
    assert b"taken in" not in _said(child)
    assert child.wait(PATIENCE_S)
