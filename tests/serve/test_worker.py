"""Workers that lie, flood, hang or die: what they say is bounded, and the service is never held up by one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, must_end
from vram.reclaim import state
from vram.serve.socket.become import RunAs
from vram.serve.socket.worker import MAX_ANSWER, WorkerAnswer, WorkerRequest
from vram.serve.socket.worker_process import WorkerProcess, clean_environment, own_rights

REQUEST = WorkerRequest(job="plan")


def run(code: str | None, deadline_s: float = PATIENCE_S, run_as: RunAs | None = None, **options: Any) -> Any:
    """Every answer of a worker; *code* is what runs in its place."""
    command = None if code is None else (sys.executable, "-c", f"import os, signal, sys, time\n{code}")

    async def heard() -> list[WorkerAnswer]:
        request = options.pop("request", REQUEST)
        worker = WorkerProcess(request, run_as or own_rights(), deadline_s, command=command, **options)
        answers = [answer async for answer in worker.answers()]
        worker.end(late=False)
        await worker.has_ended.wait()
        return answers

    return asyncio.run(heard())


LAST = 'os.write(1, b\'{"is_last": true, "status": "done"}\\n\')'


def test_lines_come_in_order_and_end_with_the_last():
    found = run(f'os.write(1, b\'{{"outcome": {{"a": 1}}}}\\n\')\n{LAST}\nos.write(1, b"more\\n")')
    assert [bytes(each.outcome) if each.outcome else None for each in found] == [b'{"a": 1}', None]
    assert found[-1].status == "done"


@pytest.mark.parametrize(
    "code",
    [
        "os.write(1, b'not json\\n')",
        "os.write(1, b'[]\\n')",
        'os.write(1, b\'{"status": "perfect"}\\n\')',
        "os.write(1, b'\\xff\\xfe\\n')",
        "os.write(1, b'[' * 100000 + b'\\n')",
        "os.write(1, b'{\"freed_bytes\": 99999999999999999999999}\\n')",
        "os.write(1, b'{\"is_last\": true')",
        "sys.exit(7)",
        "os.kill(os.getpid(), 9)",
        f"while True: os.write(1, b'x' * {MAX_ANSWER // 8})",
        "os.close(1); time.sleep(0.1)",
    ],
)
def test_what_a_worker_must_not_say_is_one_error(code: str):
    (answer,) = run(code)
    assert answer.is_last
    assert answer.error is not None
    assert answer.error.name == "WorkerLost"


def test_a_worker_that_hangs_is_ended_at_its_deadline():
    with must_end():
        (answer,) = run("time.sleep(1000)", deadline_s=0.2)
    assert answer.error.name == "TimedOut"


@pytest.mark.parametrize(
    "code", ["signal.signal(15, signal.SIG_IGN)", "os.kill(os.getpid(), signal.SIGSTOP)"]
)
def test_a_worker_that_ignores_the_end_is_killed(code: str):
    with must_end():
        (answer,) = run(f"{code}\ntime.sleep(1000)", deadline_s=0.5, grace_s=0.3)
    assert answer.error.name == "TimedOut"


def test_a_child_that_keeps_the_pipe_holds_nobody_up(tmp_path: Path):
    """It lives on until the worker's answer is here."""
    lives = tmp_path / "lives"
    lives.touch()
    code = f"{LAST}\nif os.fork() == 0:\n  while os.path.exists({str(lives)!r}): time.sleep(0.05)"
    try:
        with must_end():
            assert run(code)[-1].status == "done"
    finally:
        lives.unlink()


def test_it_inherits_its_request_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "x")
    monkeypatch.setenv("LD_PRELOAD", "")
    kept = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(kept, True)
    code = """
import json
fds = sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1]
said = json.dumps([fds, sorted(os.environ), os.getcwd(), sys.stdin.read()])
os.write(1, json.dumps({"is_last": True, "message": said}).encode() + b"\\n")
"""
    descriptors, names, folder, request = json.loads(run(code)[-1].message)
    os.close(kept)
    assert descriptors == [0, 1, 2]
    assert set(names) - {"LC_CTYPE"} <= set(clean_environment())
    assert {"SECRET_OF_THE_TEST", "LD_PRELOAD", "HOME"}.isdisjoint(names)
    assert folder == "/"
    assert json.loads(request)["job"] == "plan"


def test_the_lock_lasts_as_long_as_the_worker(tmp_path: Path):
    import fcntl

    path = tmp_path / "lock"
    ours = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(ours, fcntl.LOCK_EX)

    async def heard() -> None:
        command = (sys.executable, "-c", f"import os, time\n{LAST}\ntime.sleep(1000)")
        worker = WorkerProcess(REQUEST, own_rights(), PATIENCE_S, ours, command=command)
        assert (await worker.last()).status == "done"
        os.close(ours)  # as if the service had died
        other = os.open(path, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        worker.end()
        await worker.has_ended.wait()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)

    asyncio.run(heard())


def test_the_real_worker_refuses_a_bad_request_with_a_sentence(tmp_path: Path):
    request = WorkerRequest(job="notify", state=str(tmp_path / "state"))
    (answer,) = run(None, request=request)
    assert (answer.error.name, answer.error.message) == ("UsageError", "there is nothing to tell")


def test_a_state_folder_that_was_chosen_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "usual"))
    try:
        state.use_folder(str(tmp_path / "chosen"))
        os.close(state.open_folder())
        assert (tmp_path / "chosen").is_dir()
        assert not (tmp_path / "usual").exists()
    finally:
        state.use_folder(None)
    assert state.folder_path() == str(tmp_path / "usual" / "vram")
