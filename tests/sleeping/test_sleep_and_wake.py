"""A program that sleeps has nothing on the GPU; what asks for it wakes it, and it answers as ever."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs
from tests.parking.conftest import BUSY, CHECKPOINTED, RUNNING, Machine, runs_on
from tests.patience import PATIENCE_S, has_ended, until, until_readable
from tests.sleeping import programs
from tests.sleeping.conftest import Bedroom, get, is_paused

SLEEPS = int(os.environ.get("VRAM_SLEEPS", "10"))


def test_a_request_wakes_it(bedroom: Bedroom) -> None:
    program, port = bedroom.server()
    assert get(port, "/first") == "before /first"
    used = bedroom.machine.used()
    said = bedroom.sleep(program.pid)
    assert f"a connection to 127.0.0.1:{port}" in said
    assert bedroom.machine.used() < used
    assert is_paused(program)
    assert get(port, "/second") == "before /second"
    bedroom.until(program, None)  # asked to sleep once, it is left alone now


def test_bytes_on_an_open_connection_wake_it(bedroom: Bedroom, tmp_path: Path) -> None:
    path = str(tmp_path / "server")
    program = bedroom.machine.program(programs.UNIX, SOCKET=path)
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rwb") as lines:
        client.connect(path)
        for number in range(SLEEPS):
            bedroom.sleep(program.pid)
            lines.write(b"%d\n" % number)
            lines.flush()
            assert lines.readline() == b"before %d\n" % number


def test_a_client_that_leaves_does_not(bedroom: Bedroom) -> None:
    """What ends is no request: the program learns of it when it is awake."""
    program, port = bedroom.server()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        until_readable(client)
        bedroom.sleep("--idle", "1d", program.pid)
        bedroom.sleep(program.pid)
    with socket.create_connection(("127.0.0.1", port)) as other:
        # The one that left came first: the program is woken by the other.
        other.sendall(b"GET /other HTTP/1.1\r\nHost: here\r\n\r\n")
        until_readable(other)
    (listed,) = bedroom.listed()
    assert (listed["wakes"], listed["reason"]["file"]["kind"]) == (1, "listening")


def test_a_line_in_its_pipe_wakes_it(bedroom: Bedroom) -> None:
    program = bedroom.machine.program(programs.PIPE)
    for number in range(3):
        bedroom.sleep(program.pid)
        program.go(str(number))
        assert program.told() == f"before {number}"


def test_a_datagram_wakes_it(bedroom: Bedroom) -> None:
    program = bedroom.machine.program(programs.DATAGRAMS)
    port = program.told()
    bedroom.sleep(program.pid)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(PATIENCE_S)
        client.sendto(b"x", ("127.0.0.1", port))
        assert client.recv(100) == b"before x"


def test_a_signal_wakes_it(bedroom: Bedroom) -> None:
    program = bedroom.machine.program(programs.SIGNALLED)
    bedroom.sleep(program.pid)
    program.process.send_signal(signal.SIGUSR1)
    assert program.told() == "before"


def test_the_command_wakes_it(bedroom: Bedroom) -> None:
    program, _ = bedroom.server()
    bedroom.sleep(program.pid)
    assert "is awake" in bedroom.wake(program.pid)
    assert bedroom.machine.state(program.pid) == RUNNING
    assert not is_paused(program)


def test_unpark_wakes_it_too(bedroom: Bedroom) -> None:
    program, _ = bedroom.server()
    bedroom.sleep(program.pid)
    assert "asleep" in bedroom.machine.vram("park").stdout
    done = bedroom.machine.vram("unpark", program.pid)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is running again" in done.stdout
    assert bedroom.machine.state(program.pid) == RUNNING


def test_only_the_named_port_wakes_it(bedroom: Bedroom) -> None:
    program, port = bedroom.server()
    bedroom.sleep("--port", 1, program.pid)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert bedroom.states() == {program.pid: "asleep"}
        bedroom.wake(program.pid)
        until_readable(client)


def test_it_sleeps_whenever_it_is_idle(bedroom: Bedroom) -> None:
    program, port = bedroom.server()
    bedroom.sleep("--idle", "200ms", program.pid)
    for number in range(3):
        bedroom.until(program, "asleep")
        assert get(port, f"/{number}") == f"before /{number}"
    (listed,) = bedroom.listed()
    assert listed["wakes"] == 3
    assert len(listed["last_wake_s"]) == 3
    bedroom.wake("--forget", program.pid)
    bedroom.until(program, None)
    assert get(port) == "before /"


def test_one_that_works_does_not_sleep(bedroom: Bedroom) -> None:
    program = bedroom.machine.program(programs.WORKS)
    done = bedroom.machine.vram("sleep", program.pid)
    assert done.returncode != 0
    assert "works" in done.stderr
    assert bedroom.machine.state(program.pid) == RUNNING
    bedroom.sleep("--anyway", program.pid)
    assert bedroom.machine.state(program.pid) == CHECKPOINTED
    bedroom.wake(program.pid)


@pytest.mark.fault(39)
def test_one_that_is_continued_by_hand_is_woken_unharmed(bedroom: Bedroom) -> None:
    """Without its memory an ordinary call would kill it: it has some that call without a pause."""
    program = bedroom.machine.program(BUSY)

    def is_running() -> bool:
        return bedroom.machine.state(program.pid) == RUNNING

    for _ in range(SLEEPS):
        bedroom.sleep("--anyway", program.pid)
        # Also while it is being woken.
        until(lambda: program.process.send_signal(signal.SIGCONT) or is_running(), bedroom.listed)
        assert runs_on(program)


@pytest.mark.fault(39)
def test_one_that_is_killed_asleep_ends_at_once(bedroom: Bedroom) -> None:
    """Its parent learns of it, and its port is free again."""
    program, port = bedroom.server()
    bedroom.sleep(program.pid)
    pidfd = os.pidfd_open(program.pid)
    program.process.kill()
    program.process.wait(PATIENCE_S)
    assert has_ended(pidfd)
    os.close(pidfd)

    def listens() -> bool:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("127.0.0.1", port))
            except OSError:
                return False
            server.listen()
            return True

    until(listens)


def test_sigterm_ends_it_by_its_own_handler(bedroom: Bedroom) -> None:
    program = bedroom.machine.program(programs.PIPE)
    bedroom.sleep(program.pid)
    program.process.terminate()
    assert program.process.wait(PATIENCE_S) == -signal.SIGTERM


def test_what_it_left_unread_before_is_no_request(bedroom: Bedroom) -> None:
    """A byte that the program ignores does not keep it awake; one more is a request."""
    ignores = """
        import socket
        cuda.start()
        cuda.alloc(64 * MIB)
        ours, theirs = socket.socketpair()
        theirs.sendall(b"ignored")
        cuda.tell("ready")
        for line in sys.stdin:
            theirs.sendall(b"more")
            cuda.tell("awake")
    """
    program = bedroom.machine.program(ignores)
    bedroom.sleep(program.pid)
    assert bedroom.states() == {program.pid: "asleep"}
    program.go()
    assert program.told() == "awake"


@needs("jupyter_client", "ipykernel")
def test_a_notebook_kernel_sleeps_and_answers(bedroom: Bedroom, tmp_path: Path) -> None:
    """Over ZeroMQ, as Jupyter asks: a cell that comes while it sleeps is run."""
    from jupyter_client import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    environment = bedroom.machine.environment(PYTHONPATH=str(Path(__file__).parents[1] / "virtualgpu"))
    manager.start_kernel(
        env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE_S)
        client.execute_interactive(
            "import libcuda as cuda; cuda.start(); place = cuda.alloc(1 << 26); cuda.write(place, b'kept')",
            timeout=PATIENCE_S,
        )
        pid = manager.provisioner.pid
        for _ in range(3):
            until(lambda: bedroom.machine.vram("sleep", pid).returncode == 0, max_pause_s=0.2)
            seen: list[str] = []
            client.execute_interactive(
                "print(cuda.read(place, 4).decode())",
                timeout=PATIENCE_S,
                output_hook=lambda message, seen=seen: seen.append(message["content"].get("text", "")),
            )
            assert "kept" in "".join(seen)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_json_and_the_list(bedroom: Bedroom) -> None:
    program, port = bedroom.server()
    (done,) = json.loads(bedroom.sleep("--json", program.pid))["sleeping"]
    assert (done["state"], done["shares"][0]["gpu"]) == ("asleep", 0)
    assert f"{program.pid}" in bedroom.sleep()
    assert get(port) == "before /"


def test_nothing_sleeps(machine: Machine) -> None:
    done = machine.vram("sleep")
    assert (done.returncode, done.stdout) == (0, "Nothing sleeps.\n")
    assert machine.vram("wake", "--all").stdout == "Nothing sleeps.\n"
    assert not list((machine.state_home).glob("vram/waker-*"))
