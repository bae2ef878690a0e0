"""A container whose owner is hostile: root goes in, and nothing of the host is touched, read or held up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.containers.container import PYTHON
from tests.containers.test_from_outside import Start, programs, start
from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S, must_end
from tests.reach.conftest import target_of, world
from vram.errors import CannotRecord
from vram.reach import sockets, target_root
from vram.reach.payload import PayloadRequest
from vram.reach.script_drop import NamedSocket, ScriptDrop
from vram.reach.target_process import examine
from vram.trace import elsewhere
from vram.trace.elsewhere import TraceElsewhere

__all__ = ["programs", "start", "world"]

pytestmark = needs("root", detail="only root goes into other containers")
MEASURE = PayloadRequest("trim", {"verb": "measure"})


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the host that no container may lead to."""
    path = tmp_path / "secret"
    path.write_text("the host's")
    return path


# ---- paths ----


@pytest.mark.fault(28)
def test_no_path_leads_out_of_its_root(start: Start, secret: Path) -> None:
    pid = start("reading").pid
    tmp = Path(f"/proc/{pid}/root/tmp")
    (tmp / "absolute").symlink_to(secret)
    (tmp / "upwards").symlink_to("../" * 20 + str(secret).lstrip("/"))
    (tmp / "magic").symlink_to("/proc/1/root")
    (tmp / "folder").symlink_to(secret.parent)
    for name in ("absolute", "upwards", f"magic{secret}", "folder/secret", "../" * 20 + f"tmp/..{secret}"):
        assert target_root.open_files(pid, [f"/tmp/{name}"], PATIENCE_S) == {}


@pytest.mark.fault(28)
def test_nothing_but_a_plain_file_is_opened(start: Start) -> None:
    pid = start("reading").pid
    tmp = Path(f"/proc/{pid}/root/tmp")
    os.mkfifo(tmp / "pipe")
    os.mknod(tmp / "device", 0o600 | 0o020000, os.makedev(1, 3))
    (tmp / "folder").mkdir()
    for name in ("pipe", "device", "folder"):
        with must_end():
            assert target_root.open_files(pid, [f"/tmp/{name}"], PATIENCE_S) == {}


@pytest.mark.fault(28)
def test_a_trace_is_not_fetched_through_a_link(start: Start, secret: Path, tmp_path: Path) -> None:
    program = start("reading")
    target = target_of(program.pid)
    trace = Path(f"/proc/{program.pid}/root/tmp/vram-trace-1.vram")
    trace.symlink_to(secret)
    with pytest.raises(CannotRecord):
        TraceElsewhere(target, "/tmp/vram-trace-1.vram")
    trace.unlink()
    trace.write_text("a trace")
    found = TraceElsewhere(target, "/tmp/vram-trace-1.vram")
    # Replaced by a link while it was held open: the file that was opened is copied, and the link stays.
    trace.rename(trace.with_name("elsewhere"))
    trace.symlink_to(secret)
    found.bring(str(tmp_path / "here.vram"))
    found.close()
    assert (tmp_path / "here.vram").read_text() == "a trace"
    assert trace.is_symlink()
    assert secret.read_text() == "the host's"


@pytest.mark.fault(28)
def test_an_endless_trace_is_not_fetched(start: Start, tmp_path: Path) -> None:
    program = start("reading")
    trace = Path(f"/proc/{program.pid}/root/tmp/vram-trace-1.vram")
    with trace.open("wb") as file:
        file.truncate(1 << 50)
    found = TraceElsewhere(target_of(program.pid), "/tmp/vram-trace-1.vram")
    with pytest.raises(CannotRecord, match="free here"):
        found.bring(str(tmp_path / "here.vram"))
    found.close()
    assert not (tmp_path / "here.vram").exists()


# ---- sockets ----


@pytest.mark.fault(28)
def test_nobody_else_there_is_answered(start: Start) -> None:
    """The name of the socket is no secret in its network: who connects is asked of the kernel."""
    program = start("reading", namespaces=("--mount", "--fork", "--kill-child", "--propagation", "private"))
    process = examine(target_of(program.pid))
    with ScriptDrop(MEASURE, process, time.monotonic() + PATIENCE_S) as drop:
        assert isinstance(drop.place, NamedSocket)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.connect(b"\0" + drop.place.name.encode())
            pidfd = os.pidfd_open(process.pid)
            assert drop.wait(pidfd, time.monotonic() + 0.2) is False
            os.close(pidfd)
            assert stranger.recv(100) == b""


@pytest.mark.fault(28)
@pytest.mark.parametrize("knows", [False, True], ids=["a stranger", "with the secret"])
def test_who_takes_the_name_afterwards_gets_nothing_run(start: Start, tmp_path: Path, knows: bool) -> None:
    """The visit is called off before its code connects; somebody listens under its name, and sends code."""
    program = start("reading", namespaces=("--mount", "--fork", "--kill-child", "--propagation", "private"))
    process = examine(target_of(program.pid))
    with ScriptDrop(MEASURE, process, time.monotonic() + PATIENCE_S) as drop:
        assert isinstance(drop.place, NamedSocket)
        starter, name, word = drop.starter(), drop.place.name, drop.place.secret
    code = f"open({str(tmp_path / 'run')!r}, 'w').close()".encode()
    # Here it runs in a process of the test's, as it does in the program: for that it says another pid.
    starter = starter.replace(f"=={process.pid_inside} ", "==__import__('posix').getpid() ")
    with sockets._listen(name) as enemy:
        victim = subprocess.Popen(
            [sys.executable, "-c", f"{starter}\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        connection, _ = enemy.accept()
        with connection, suppress(ConnectionError):
            connection.sendall((word if knows else b"0" * 32) + b"%8d" % len(code) + code)
            connection.settimeout(PATIENCE_S)
            assert connection.recv(1) == b""  # it is done
        victim.communicate(b"\n", timeout=PATIENCE_S)
    assert (tmp_path / "run").exists() == knows


# ---- file systems that never answer ----

# Holds a FUSE file system at /tmp that answers nothing but its root, and then runs the program.
STALLED = Path(__file__).parents[1] / "reach" / "stalled_files.py"


@pytest.mark.fault(20)
@pytest.mark.parametrize("words", [(), ("names",)], ids=["reads hang", "names hang"])
def test_a_trace_on_a_file_system_of_its_own_keeps_nobody_waiting(
    start: Start, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The folder is where the trace is said to be; to look at it does not return."""
    program = start("reading")
    place = Path(f"/proc/{program.pid}/root/tmp")
    os.mknod(place.parent / "dev/fuse", 0o666 | 0o020000, os.makedev(10, 229))
    server = subprocess.Popen(
        ["nsenter", f"--mount=/proc/{program.pid}/ns/mnt", PYTHON, "-c", STALLED.read_text(), "/tmp", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"LD_LIBRARY_PATH": "/opt/python/lib"},
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline() != b"ready\n":
            skip_without("fuse", "no FUSE file system can be mounted in a container")
        monkeypatch.setattr(elsewhere, "_LOOKING_S", 0.5)
        with must_end(), pytest.raises(CannotRecord, match="FUSE"):
            TraceElsewhere(target_of(program.pid), "/tmp/libpython3.11.so.1.0")
        assert place
        assert program.ask() == {"alive": 1, "modules": []}
    finally:
        server.communicate()
