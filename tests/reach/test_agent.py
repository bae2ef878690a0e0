"""The agent that a program starts itself: answers its own user, runs nothing but what is shipped."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import vram
from tests.needs import needs, require_python
from tests.patience import PATIENCE_S, must_end
from tests.reach.conftest import CACHED, SUBJECT, World, by_name, released, target_of
from vram.errors import NotReachable, TimedOut
from vram.payloads import agent
from vram.reach.injectors import ask_trim


def socket_of(world: World, pid: int) -> Path:
    (found,) = (world.runtime / "vram").glob(f"agent-{pid}-*.sock")
    return found


@contextmanager
def address(path: Path) -> Iterator[str]:
    """The same place in few letters: addresses of sockets end at 108 bytes, folders of tests do not."""
    folder = os.open(path.parent, os.O_RDONLY)
    yield f"/proc/self/fd/{folder}/{path.name}"
    os.close(folder)


def test_what_the_pool_only_keeps_comes_back_and_the_program_goes_on(world: World) -> None:
    subject = world.subject("reading", "agent")
    receipt = world.trim(subject.pid)
    assert receipt["via"] == "agent"
    assert released(receipt) >= CACHED
    pools = by_name(receipt)["driver pools"]
    assert pools["reclaimable"] >= CACHED
    assert pools["held"] - pools["held_after"] >= 0.99 * pools["reclaimable"]
    assert subject.ask()["alive"] == 1


def test_a_program_is_let_in_without_being_changed(world: World) -> None:
    process = world.popen([sys.executable, "-m", "vram.agent", str(SUBJECT), str(CACHED), "reading"])
    try:
        assert process.stdout is not None
        pid = json.loads(process.stdout.readline())["ready"]
        assert pid == process.pid
        assert released(world.trim(pid)) >= CACHED
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("version", ["3.9", "3.13t", "3.15"])
def test_a_python_that_vram_itself_does_not_run_on_or_cannot_enter(world: World, version: str) -> None:
    """The agent needs the standard library and vram's files, from Python 3.9 on."""
    argv = [require_python(version), "-m", "vram.agent", str(SUBJECT), str(CACHED), "reading"]
    process = world.popen(argv)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"] == process.pid
        receipt = world.trim(process.pid)
        assert receipt["answer"]["python"].startswith(version.rstrip("t"))
        assert released(receipt) >= CACHED
    finally:
        process.kill()
        process.communicate()


def test_measuring_releases_nothing(world: World) -> None:
    subject = world.subject("reading", "agent")
    for _ in range(2):
        answer = ask_trim(target_of(subject.pid), "measure", PATIENCE_S).answer
        assert answer.reclaimable_bytes >= CACHED
        assert answer.returned_bytes == 0


def test_vram_free_knows_beforehand_what_an_agent_will_give(world: World) -> None:
    subject = world.subject("reading", "agent")
    plan = json.loads(world.vram("free", "--caches", "--json", "--dry-run").stdout)["plan"]
    (step,) = [each for each in plan["steps"] if each["target"]["process"]["pid"] == subject.pid]
    assert (step["kind"], step["via"]) == ("trim", "agent")
    assert step["predicted_bytes"] >= CACHED
    done = json.loads(world.vram("free", "--caches", "--json", "--yes").stdout)["receipt"]
    assert done["returned_bytes"] >= CACHED


def test_only_its_own_user_can_even_see_the_socket(world: World) -> None:
    subject = world.subject("reading", "agent")
    found = socket_of(world, subject.pid)
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700


def test_it_keeps_nobody_from_ending_and_leaves_no_socket(world: World) -> None:
    process = world.popen([sys.executable, "-c", "import vram; print(vram.agent())"])
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert told.decode().startswith(str(world.runtime))
    assert not Path(told.decode().strip()).exists()


BAD_REQUESTS = (
    b'{"payload": "os", "request": {"code": "import os; os._exit(1)"}}\n',
    b'{"payload": ["trim"], "request": {}}\n',
    b'{"payload": "trim", "request": []}\n',
    b"[]\n",
    b"nonsense\n",
    b"x" * 9000 + b"\n",
)


def test_what_comes_over_the_socket_is_never_run(world: World) -> None:
    subject = world.subject("reading", "agent")
    target = target_of(subject.pid)
    for number, line in enumerate(BAD_REQUESTS, 1):
        with socket.socket(socket.AF_UNIX) as connection, address(socket_of(world, subject.pid)) as place:
            connection.settimeout(PATIENCE_S)
            connection.connect(place)
            connection.sendall(line)
            with suppress(ConnectionResetError):  # it hung up before it had read everything
                assert connection.recv(1) == b"", line
        assert subject.ask()["alive"] == number, line
        answer = ask_trim(target, "measure", PATIENCE_S, via="agent").answer
        assert answer.reclaimable_bytes >= CACHED, line
    assert released(world.trim(subject.pid)) >= CACHED


def test_whoever_gave_up_gets_nothing_done(world: World) -> None:
    """The client hangs up while the process is stopped: nothing is done once it is resumed."""
    subject = world.subject("reading", "agent")
    path = socket_of(world, subject.pid)
    subject.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, subject.pid, os.WSTOPPED)
    with socket.socket(socket.AF_UNIX) as connection, address(path) as place:
        connection.connect(place)
        connection.sendall(b'{"payload": "trim", "request": {"verb": "trim"}}\n')
    subject.process.send_signal(signal.SIGCONT)
    assert ask_trim(target_of(subject.pid), "measure", PATIENCE_S).answer.reclaimable_bytes >= CACHED


@pytest.mark.fault(28)
def test_an_impostor_on_the_socket_is_not_believed(world: World) -> None:
    subject = world.subject("reading", "agent")
    path = socket_of(world, subject.pid)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as impostor, address(path) as place:
        impostor.bind(place)
        impostor.listen()
        with pytest.raises(NotReachable, match="another process"):
            ask_trim(target_of(subject.pid), "trim", PATIENCE_S, via="agent")


def test_a_dead_programs_socket_leads_nowhere(world: World) -> None:
    """A forked child has the listening socket, but neither the thread nor the name."""
    code = (
        "import os, vram, sys\n"
        "vram.agent()\n"
        "if child := os.fork(): print(child, flush=True)\n"  # one of them only: two would mix their lines
        "sys.stdin.read()"
    )
    process = world.popen([sys.executable, "-c", code])
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        with pytest.raises(NotReachable, match=r"vram\.agent"):
            ask_trim(target_of(child), "measure", PATIENCE_S, via="agent")
        assert ask_trim(target_of(process.pid), "measure", PATIENCE_S).via == "agent"
    finally:
        process.communicate()


@pytest.mark.fault(28)
class TestFolder:
    """Made by somebody else, a link, or open to others: refused, and there is no other place."""

    def start(self, world: World) -> subprocess.CompletedProcess[str]:
        code = "import vram; vram.agent()"
        return subprocess.run(
            [sys.executable, "-c", code],
            env=world.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def test_open_to_others(self, world: World) -> None:
        folder = world.runtime / "vram"
        folder.mkdir()
        folder.chmod(0o755)
        done = self.start(world)
        assert "not yours alone" in done.stderr
        assert not list(folder.iterdir())
        assert not (world.state / "vram" / "run").exists()

    def test_a_link(self, world: World, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(mode=0o700)
        (world.runtime / "vram").symlink_to(elsewhere)
        assert self.start(world).returncode != 0
        assert not list(elsewhere.iterdir())

    @needs("root", detail="only root can make a folder that is somebody else's")
    def test_somebody_elses(self, world: World) -> None:
        folder = world.runtime / "vram"
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, 65534)
        assert "not yours alone" in self.start(world).stderr

    def test_in_a_place_where_others_can_rename(self, world: World) -> None:
        world.runtime.chmod(0o777)
        assert "others can change" in self.start(world).stderr


def test_a_deep_home_is_no_obstacle(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of sockets end at 108 bytes; folders do not."""
    deep = world.runtime / ("d" * 120)
    deep.mkdir(mode=0o700)
    world.environment["XDG_RUNTIME_DIR"] = str(deep)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    subject = world.subject("reading", "agent")
    assert ask_trim(target_of(subject.pid), "measure", PATIENCE_S).via == "agent"


def test_without_a_runtime_folder_the_state_folder_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert agent.folders()[-1] == str(tmp_path / "vram" / "run")


def test_where_no_folder_can_be_made_the_error_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(agent, "folders", lambda: [str(tmp_path / "file" / "vram")])
    with pytest.raises(NotADirectoryError) as raised:
        vram.agent()
    assert "XDG_RUNTIME_DIR" in raised.value.__notes__[0]


# An agent of the program's own making: it answers its callers in turn with the lines that it was given.
IMPOSTOR = """
import os, socket, sys, time
import driver
from vram.payloads import agent

driver.context()
folder = agent.open_folder(agent.folders()[0], make=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(agent.address(folder, agent.socket_name(os.getpid(), agent.started_at(os.getpid()))))
listener.listen(8)
print("ready", flush=True)
done = b'{"status": "done", '
for line in sys.argv[1:]:
    connection, _ = listener.accept()
    send = connection.sendall
    try:
        connection.recv(1 << 16)
        exec(line)
    except OSError:
        pass
    connection.close()
"""

ANSWERS = {
    "nothing": "pass",
    "half": "send(b'{')",
    "no object": "send(b'[]\\n')",
    "no JSON": "send(b'\\x00\\xff{{{\\n')",
    "deep": "send(done + b'\"lines\": ' + b'[' * 500000 + b'\\n')",
    "a huge number": "send(done + b'\"took_s\": ' + b'9' * 100000 + b'}\\n')",
    "a wrong shape": 'send(done + b\'"lines": [{"name": 7}]}\\n\')',
    "a negative count": "send(done + b'\"collected\": -1}\\n')",
    "a long text": "send(done + b'\"python\": \"' + b'x' * (8 << 20) + b'\"}\\n')",
    "many notes": "send(done + b'\"notes\": [' + b'\"\",' * 2000000 + b'\"\"]}\\n')",
    "a long failure": 'send(b\'{"status": "x", "notes": ["\' + b\'x\' * (4 << 20) + b\'"]}\\n\')',
    "without end": "while True: send(b' ' * (1 << 20))",
    "a little now and then": "while True: send(b' '); time.sleep(0.05)",
    "silence": "time.sleep(1000)",
}


@contextmanager
def impostor(world: World, *lines: str) -> Iterator[int]:
    process = world.popen([sys.executable, "-c", IMPOSTOR, *lines])
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_whatever_an_agent_says_is_a_refusal_within_the_deadline(world: World) -> None:
    """Only the deadline ends the last three."""
    with impostor(world, *ANSWERS.values()) as pid:
        target = target_of(pid)
        for answer in ANSWERS:
            with must_end(), pytest.raises((NotReachable, TimedOut)) as refused:
                ask_trim(target, "measure", 0.5, via="agent")
            assert len(str(refused.value)) < 1000, answer


def test_why_deep_says_that_it_was_not_told(world: World) -> None:
    with impostor(world, *[ANSWERS["a little now and then"], ANSWERS["deep"]] * 3) as pid:
        for _ in range(2):
            done = world.vram("why", "--deep", "--deadline", "5s")
            assert str(pid) in done.stdout
            assert "Traceback" not in done.stderr
            assert "not split into live and cached" in " ".join(done.stdout.split())
