"""By what a process is wanted, read from outside: its open files, and the waits that none of them shows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.needs import needs
from tests.patience import must_end, until, until_readable
from vram.children import LocalPidHandle
from vram.errors import CannotPark, NotPermitted
from vram.host.local.waits import LocalWaits
from vram.model.sleeping import WaitFacts, WakeFile
from vram.sleeping.moves import require_may_sleep

BEGIN = "import os, socket, sys, threading, time\n"


@contextmanager
def running(program: str, **options: object) -> Iterator[tuple[subprocess.Popen[str], LocalPidHandle]]:
    """A program that prints a line when it is ready, and waits for its input to end."""
    words = [sys.executable, "-c", f"{BEGIN}{program}\nprint('ready', flush=True)\nsys.stdin.read()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **{**pipes, **options}) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "ready\n"
            with LocalPidHandle(process.pid, os.pidfd_open(process.pid)) as handle:
                yield process, handle
        finally:
            process.kill()


def files(program: str, kind: str) -> list[WakeFile]:
    with running(program) as (_, handle):
        return [file for file in LocalWaits().read(handle).files or () if file.kind == kind]


def test_a_socket_that_listens_has_its_address() -> None:
    (file,) = files("server = socket.create_server(('127.0.0.1', 0))", "listening")
    assert (file.address, file.unread) == (f"127.0.0.1:{file.port}", 0)


def test_a_unix_socket_has_its_path(tmp_path: Path) -> None:
    path = str(tmp_path / "server")
    program = f"server = socket.socket(socket.AF_UNIX); server.bind({path!r}); server.listen()"
    assert [file.address for file in files(program, "listening")] == [path]


def test_its_own_input_is_a_pipe_and_its_output_is_not() -> None:
    assert [file.fd for file in files("", "pipe")] == [0]


def test_a_pipe_to_itself_and_an_eventfd_are_none() -> None:
    assert [file.fd for file in files("os.pipe(); os.eventfd(1)", "pipe")] == [0]
    assert files("os.eventfd(1)", "event") == []


def test_a_datagram_socket_that_is_bound() -> None:
    bound = "server = socket.socket(type=socket.SOCK_DGRAM); server.bind(('127.0.0.1', 0))"
    assert len(files(bound, "datagrams")) == 1
    assert files("server = socket.socket(type=socket.SOCK_DGRAM)", "datagrams") == []


def test_what_waits_is_counted() -> None:
    """Connections that are not accepted, bytes that are not read."""
    program = """
server = socket.create_server(("127.0.0.1", 0))
clients = [socket.create_connection(server.getsockname()) for _ in range(3)]
ours, theirs = socket.socketpair()
theirs.sendall(b"12345")
"""
    with running(program) as (_, handle):
        found = LocalWaits().read(handle).files or ()
    assert [file.unread for file in found if file.kind == "listening"] == [3]
    assert max(file.unread for file in found if file.kind == "connection") == 5


def test_the_end_of_a_connection_is_nothing_unread() -> None:
    program = "ours, theirs = socket.socketpair(); theirs.close()"
    assert [file.unread for file in files(program, "connection")] == [0]


def test_waits_that_no_file_shows() -> None:
    program = """
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
threading.Thread(target=threading.Event().wait, args=(1000,), daemon=True).start()
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    with running(program) as (_, handle):
        until(lambda: LocalWaits().read(handle).hidden == {"time": 2}, lambda: LocalWaits().read(handle))


def test_a_wait_in_shared_memory() -> None:
    """As processes of PyTorch's or vLLM's wait for each other."""
    program = """
import mmap, multiprocessing
lock = multiprocessing.Lock()
lock.acquire()
threading.Thread(target=lock.acquire, daemon=True).start()
"""
    with running(program) as (_, handle):
        until(lambda: LocalWaits().read(handle).hidden.get("shared memory") == 1)


def test_a_read_leaves_no_copy_open() -> None:
    """What the program closes is closed for its peer at once."""
    program = """
ours, theirs = socket.socketpair()
def later():
    os.read(3, 1)
os.dup2(ours.fileno(), 50)
"""
    with running(program) as (_, handle):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            LocalWaits().read(handle)
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_watch_tells_of_what_arrives_and_of_nothing_before() -> None:
    program = """
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
"""
    words = [sys.executable, "-c", f"{BEGIN}{program}\nsys.stdin.read()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        with LocalPidHandle(process.pid, os.pidfd_open(process.pid)) as handle:
            process.send_signal(signal.SIGSTOP)
            watch = LocalWaits().watch(handle)
            assert watch.wanted() is None
            with socket.create_connection(address):
                until_readable(watch)
                found = watch.wanted()
                assert found is not None
                assert (found.kind, found.port) == ("listening", address[1])
                assert watch.wanted() is None
            other = LocalWaits().watch(handle, [1])
            assert (len(other), other.wanted(all_files=True)) == (0, None)
            ignored = LocalWaits().watch(handle, ignored={found.fd: found.unread})
            assert ignored.wanted(all_files=True) is None
            for each in (watch, other, ignored):
                each.close()
        process.kill()


def test_a_watchdog_of_systemd() -> None:
    with running("", env={**os.environ, "WATCHDOG_USEC": "30000000"}) as (_, handle):
        found = LocalWaits().read(handle)
    assert found.watchdog_s == 30.0
    with pytest.raises(CannotPark, match="WatchdogSec"):
        require_may_sleep([found])
    require_may_sleep([found], anyway=True)


def test_the_watchdog_of_another_process() -> None:
    with running("", env={**os.environ, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}) as (_, handle):
        assert LocalWaits().read(handle).watchdog_s is None


def test_files_that_may_not_be_copied() -> None:
    denied = WaitFacts(pid=7, files=None, denied="no permission to copy its open files")
    with pytest.raises(NotPermitted, match="could not see when pid 7 is wanted"):
        require_may_sleep([denied])


@needs("root")
def test_another_user_may_not() -> None:
    """Judged by the kernel, as for ptrace."""
    with running("") as (_, handle):
        child = os.fork()
        if not child:
            os.setresuid(65534, 65534, 65534)
            denied = LocalWaits().read(handle).denied
            os._exit(0 if denied == "no permission to copy its open files" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_named_pipe_and_no_other_file(tmp_path: Path) -> None:
    path = str(tmp_path / "requests")
    os.mkfifo(path)
    program = f"requests = os.open({path!r}, os.O_RDWR); other = open('/etc/passwd')"
    assert [file.address for file in files(program, "pipe")] == ["", path]


def test_a_socket_that_lingers_holds_no_reader_up() -> None:
    """The last copy of a socket with unsent bytes: its close would wait for as long as its owner has set."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = f"""
ours = socket.create_connection({server.getsockname()!r})
ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, __import__("struct").pack("2i", 1, 600))
ours.setblocking(False)
try:
    while ours.send(b"x" * 65536):
        pass
except BlockingIOError:
    pass
"""
        with running(program) as (process, handle), server.accept()[0]:
            process.send_signal(signal.SIGSTOP)
            watch = LocalWaits().watch(handle)
            process.kill()
            process.wait()
            with must_end():
                watch.close()
