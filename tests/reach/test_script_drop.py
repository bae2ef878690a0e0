"""The folder of one run: its code starts only with permission; what a target can do to whoever listens."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.needs import needs
from tests.patience import PATIENCE_S, must_end, until_readable
from tests.reach.conftest import SOURCES, World, target_of
from vram.errors import NoSuchProcess, NotReachable, TargetDied, TimedOut
from vram.reach import payload, script_drop
from vram.reach.payload import PayloadRequest, require_done
from vram.reach.script_drop import ScriptDrop
from vram.reach.target_process import examine, pidfd_of

MEASURE = PayloadRequest("trim", {"verb": "measure", "tracebacks": False})
BE_NOBODY = "import os; os.setgid(65534); os.setuid(65534)"
ONLY_ROOT = needs("root", detail="only root attaches to others")

# Does what it is told, line by line, in its main thread.
OBEDIENT = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    exec(eval(line), {})
    print("did", flush=True)
"""

# Answers with something else, once it has received "go".
RUDE = """
import os, socket
folder = os.open({path!r}, os.O_PATH)
connection = socket.socket(socket.AF_UNIX)
connection.connect(f"/proc/self/fd/{{folder}}/answers")
connection.recv(3)
{then}
"""


class Obedient:
    def __init__(self, world: World, first: str = "") -> None:
        self.process = world.popen([sys.executable, "-c", f"{first}\n{OBEDIENT}"])
        self.pid = self.process.pid
        self.hear()

    def hear(self) -> str:
        assert self.process.stdout is not None
        until_readable(self.process.stdout, lambda: "it does not answer")
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


@pytest.fixture
def nobodys(world: World) -> Iterator[Obedient]:
    """Another user's program, with everything imported that it might need."""
    made = Obedient(world, f"import array, json, socket, time\n{BE_NOBODY}")
    yield made
    made.process.kill()
    made.process.communicate()


@contextmanager
def opened_drop(program: Obedient, deadline_s: float = PATIENCE_S) -> Iterator[tuple[ScriptDrop, int]]:
    process = examine(target_of(program.pid))
    pidfd = os.pidfd_open(process.pid)
    try:
        with ScriptDrop(MEASURE, process, time.monotonic() + deadline_s) as drop:
            yield drop, pidfd
    finally:
        os.close(pidfd)


def expire(drop: ScriptDrop, pidfd: int, after_s: float = 0.5) -> None:
    """Let the deadline pass soon after the target has connected, however long that took."""
    assert drop.wait(pidfd, drop._until)
    drop._until = time.monotonic() + after_s


def left(world: World) -> list[Path]:
    return list((world.runtime / "vram").iterdir())


def test_it_answers_when_it_has_the_word(world: World, program: Obedient) -> None:
    with opened_drop(program) as (drop, pidfd):
        program.do(drop.starter())
        body = drop.answer(pidfd)
    require_done(program.pid, body)
    assert json.loads(body)["python"].startswith("3.")
    assert not left(world)


def test_called_off_it_never_runs(world: World, program: Obedient) -> None:
    with opened_drop(program, 0.0) as (drop, pidfd):
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
connect = delivery.connect
def connected(*arguments):
    connection = connect(*arguments)
    print("connected", flush=True)
    return connection
delivery.connect = connected
try:
    delivery.deliver(lambda request, _: open({str(ran)!r}, "w").close() or {{}}, request)
except OSError:
    pass
"""
    with opened_drop(program) as (drop, pidfd):
        program.begin(text.replace("sys.argv[1]", repr(drop.path)))
        assert program.hear() == "connected"
    assert program.hear() == "did"
    assert not ran.exists()
    # The same with the word: so it would have been seen.
    with opened_drop(program) as (drop, pidfd):
        program.begin(text.replace("sys.argv[1]", repr(drop.path)))
        drop.answer(pidfd)
    assert ran.exists()


def test_somebody_elses_connection_is_not_taken_for_the_targets(world: World, program: Obedient) -> None:
    with opened_drop(program) as (drop, pidfd), socket.socket(socket.AF_UNIX) as stranger:
        folder = os.open(drop.path, os.O_PATH)
        stranger.connect(f"/proc/self/fd/{folder}/answers")
        os.close(folder)
        program.do(drop.starter())
        require_done(program.pid, drop.answer(pidfd))
        assert stranger.recv(3) == b""


@pytest.mark.parametrize("body", [b"\n", b"[]\n", b"nonsense\n", b"[" * 100_000 + b"\n", b'{"status": 7}\n'])
def test_a_malformed_answer_is_a_refusal(body: bytes) -> None:
    with pytest.raises(NotReachable, match="unreadable answer"):
        require_done(1, body)


def test_a_target_that_hangs_up_is_a_refusal(world: World, program: Obedient) -> None:
    with opened_drop(program) as (drop, pidfd):
        program.begin(RUDE.format(path=drop.path, then="connection.send(b'{'); connection.close()"))
        with pytest.raises(NotReachable, match="stopped in the middle"):
            drop.answer(pidfd)


def test_a_target_that_ends_meanwhile_is_a_failure(world: World, program: Obedient) -> None:
    with opened_drop(program) as (drop, pidfd):
        program.begin(RUDE.format(path=drop.path, then="os._exit(0)"))
        with pytest.raises(TargetDied):
            drop.answer(pidfd)


def test_an_endless_answer_ends_at_the_limit(
    world: World, program: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vram.reach.script_drop.MAX_ANSWER_LENGTH", 1 << 20)
    assert payload.MAX_ANSWER_LENGTH > 1 << 20
    with opened_drop(program) as (drop, pidfd):
        program.begin(RUDE.format(path=drop.path, then="while True: connection.send(b'x' * 65536)"))
        with pytest.raises(NotReachable, match="answered with more than"):
            drop.answer(pidfd)


def test_an_answer_that_trickles_does_not_outlast_the_deadline(world: World, program: Obedient) -> None:
    """Each byte comes in time; the deadline is for all of them."""
    with opened_drop(program) as (drop, pidfd):
        program.begin(RUDE.format(path=drop.path, then="while True: connection.send(b'x')"))
        expire(drop, pidfd)
        with must_end(), pytest.raises(TimedOut, match="started but did not finish"):
            drop.answer(pidfd)


def test_a_large_answer_arrives_whole(world: World, program: Obedient) -> None:
    with opened_drop(program) as (drop, pidfd):
        then = "connection.sendall(b'{' + b' ' * (8 << 20) + b'}\\n')"
        program.begin(RUDE.format(path=drop.path, then=then))
        assert len(drop.answer(pidfd)) == (8 << 20) + 3


@ONLY_ROOT
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


def test_what_killed_runs_left_is_swept(world: World, program: Obedient) -> None:
    """While the program lives on; whoever still listens is not disturbed."""
    process = examine(target_of(program.pid))
    child = os.fork()
    if not child:
        ScriptDrop(MEASURE, process, time.monotonic() + PATIENCE_S)
        os._exit(0)
    os.waitpid(child, 0)
    (abandoned,) = left(world)
    os.utime(abandoned, (0, 0))
    with opened_drop(program) as (drop, _):
        os.utime(drop.path, (0, 0))
        with opened_drop(program):
            assert abandoned not in left(world)
            assert Path(drop.path) in left(world)


# Everything that a target might do in a folder that was given to it; tells what the kernel let it do.
ENEMY = """
import json, os
path, victim = {path!r}, {victim!r}
def swap():
    os.rename(path, path + "-away")
    os.mkdir(path)
tries = {{
    "link": lambda: os.symlink(victim, path + "/link"),
    "unlink": lambda: os.unlink(path + "/script.py"),
    "link instead of the script": lambda: os.symlink(victim, path + "/script.py"),
    "rename": lambda: os.rename(path + "/payload.py", path + "/other"),
    "hard link": lambda: os.link(victim, path + "/hard"),
    "FIFO": lambda: os.mkfifo(path + "/fifo"),
    "folder": lambda: os.mkdir(path + "/folder"),
    "swap": swap,
    "beside": lambda: os.mkdir(path + "-beside"),
    "write": lambda: open(path + "/script.py", "w"),
    "truncate": lambda: os.truncate(path + "/payload.py", 0),
    "mode": lambda: os.chmod(path, 0o777),
    "socket": lambda: os.unlink(path + "/answers"),
    "names": lambda: os.listdir(os.path.dirname(path)),
}}
let = []
for name, attempt in tries.items():
    try:
        attempt()
        let.append(name)
    except OSError:
        pass
print(json.dumps(let), flush=True)
"""


@ONLY_ROOT
def test_a_target_changes_nothing_in_the_folder_and_no_file_of_roots(
    world: World, nobodys: Obedient, tmp_path: Path
) -> None:
    """Called off, the script is emptied by its descriptor: whatever has its name now stays as it is."""
    victim = tmp_path / "victim"
    victim.write_text("root's")
    victim.chmod(0o600)
    with opened_drop(nobodys) as (drop, _):
        drop.script()
        nobodys.begin(ENEMY.format(path=drop.path, victim=str(victim)))
        assert json.loads(nobodys.hear()) == []
        # Even if it could: as root itself does it here.
        os.unlink(f"{drop.path}/script.py")
        os.symlink(victim, f"{drop.path}/script.py")
    assert victim.read_text() == "root's"
    shutil.rmtree(drop.path, ignore_errors=True)


def test_many_nested_folders_break_no_run(world: World, program: Obedient) -> None:
    """Nothing that others made is walked: neither when the run ends nor at the next one."""
    # Deeper than Python's recursion may go: whoever walked it would fail.
    nest = "import os\nos.chdir({path!r})\nfor _ in range(1100):\n os.mkdir('d'); os.chdir('d')"
    with opened_drop(program) as (drop, _):
        program.do(nest.format(path=drop.path))
    program.do("import os; os.chdir('/')")
    os.utime(drop.path, (0, 0))
    with opened_drop(program) as (drop, pidfd):
        program.do(drop.starter())
        require_done(program.pid, drop.answer(pidfd))
    (remains,) = left(world)
    subprocess.run(["rm", "-rf", str(remains)], check=True, timeout=PATIENCE_S)


FLOODS = {
    "ten gigabytes": "block = b'x' * (1 << 20)\nfor _ in range(10240): connection.sendall(block)",
    "no newline": "connection.sendall(b'{' + b' ' * 1000); time.sleep(1000)",
    "a byte a second": "while True: connection.send(b' '); time.sleep(1)",
    "silence": "time.sleep(1000)",
    "deep": "connection.sendall(b'[' * (1 << 20) + b'\\n')",
    "huge number": "connection.sendall(b'{\"status\": ' + b'9' * (1 << 20) + b'}\\n')",
    "many": 'connection.sendall(b\'{"status": "done", "notes": [\' + b\'"",\' * (1 << 20) + b\'""]}\\n\')',
    "two answers": 'connection.sendall(b\'{"status": "done"}\\n\' * 2)',
    "not text": 'connection.sendall(b\'{"status": "\\xff"}\\n\')',
}


@ONLY_ROOT
@pytest.mark.parametrize("flood", FLOODS)
def test_whatever_it_sends_the_deadline_and_the_memory_have_limits(
    world: World, nobodys: Obedient, flood: str
) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with opened_drop(nobodys) as (drop, pidfd):
        nobodys.begin("import time\n" + RUDE.format(path=drop.path, then=FLOODS[flood]))
        expire(drop, pidfd)
        with must_end(), pytest.raises((TimedOut, NotReachable)):
            require_done(nobodys.pid, drop.answer(pidfd))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < (100 << 20) / 1024


CROWD = """
import os, socket
for _ in range(4):
    if not os.fork():
        folder = os.open({path!r}, os.O_PATH)
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(f"/proc/self/fd/{{folder}}/answers")
            except OSError:
                os._exit(0)
            if {keeps!r}:
                globals().setdefault("kept", []).append(connection)
"""


@ONLY_ROOT
@pytest.mark.parametrize("keeps", [False, True])
def test_a_crowd_of_callers_does_not_outlast_the_deadline(
    world: World, nobodys: Obedient, keeps: bool
) -> None:
    """Forked children of the target connect all the time: none of them is the process that was meant."""
    with opened_drop(nobodys) as (drop, pidfd):
        nobodys.do(CROWD.format(path=drop.path, keeps=keeps))
        drop._until = time.monotonic() + 0.5
        with must_end(), pytest.raises(TimedOut, match="nothing was done"):
            drop.answer(pidfd)


@ONLY_ROOT
def test_descriptors_that_are_sent_along_are_not_taken(world: World, nobodys: Obedient) -> None:
    then = (
        "import array\n"
        "files = array.array('i', [os.open('/dev/null', os.O_RDONLY)] * 100)\n"
        "rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]\n"
        "for part in (b'{\"status\":', b'\"done\"}', b'\\n'): connection.sendmsg([part], rights)"
    )
    with opened_drop(nobodys) as (drop, pidfd):
        before = len(os.listdir("/proc/self/fd"))
        nobodys.begin(RUDE.format(path=drop.path, then=then))
        require_done(nobodys.pid, drop.answer(pidfd))
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_process_with_the_same_pid_is_not_taken_for_it(world: World, program: Obedient) -> None:
    found = examine(target_of(program.pid))
    earlier = replace(found.target.process, started_at=(found.target.process.started_at or 0) - 1)
    with (
        pytest.raises(NoSuchProcess),
        pidfd_of(replace(found, target=replace(found.target, process=earlier))),
    ):
        pass


class TestRenamedAway:
    """A folder below one that somebody else owns can be renamed, and another one put in its place."""

    @pytest.fixture
    def others(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where XDG_RUNTIME_DIR is a folder of ours in somebody else's, as root's HOME may be."""
        for each in (tmp_path, *tmp_path.parents):
            if each.stat().st_uid == os.geteuid() and not each.stat().st_mode & 0o005:
                each.chmod(0o755)
        home = tmp_path / "home"
        (home / "runtime").mkdir(parents=True)
        os.chown(home, 65534, 65534)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "runtime"))
        return home

    @ONLY_ROOT
    def test_root_takes_its_own(self, world: World, program: Obedient, others: Path) -> None:
        with opened_drop(program) as (drop, pidfd):
            assert drop.path.startswith("/run/vram-visits/")
            program.do(drop.starter())
            require_done(program.pid, drop.answer(pidfd))
        assert not os.path.exists(drop.path)

    @ONLY_ROOT
    def test_a_user_is_refused(self, others: Path) -> None:
        os.chown(others / "runtime", 65533, 65533)
        child = os.fork()
        if not child:
            os.setresuid(65533, 65533, 65533)
            try:
                script_drop._own_base(str(others / "runtime" / "vram"))
            except OSError as error:
                os._exit(0 if str(others) in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
