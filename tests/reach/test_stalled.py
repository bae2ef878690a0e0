"""A process whose memory lies on a file system that never answers keeps nobody waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S, must_end, until
from tests.reach.conftest import SOURCES, target_of
from vram.errors import TimedOut
from vram.reach import deadline, injectors

SERVER = Path(__file__).with_name("stalled_files.py")
MUST_EXPIRE_S = 1.0

# It looks like a Python of another library: that is read first, and never comes.
TARGET = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
os.setgid(65534)
os.setuid(65534)
stalled = mmap.mmap(file, 65536, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
print("mapped", flush=True)
sys.stdin.read()
"""

# Tests that a shell started in the background inherit that SIGINT is ignored.
ASKER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from vram.errors import TimedOut
from vram.host.local import LocalHost
from vram.reach.injectors import ask_trim
from vram.reclaim.identity import identify
try:
    ask_trim(identify(LocalHost(), int(sys.argv[1])), "measure", float(sys.argv[2]))
except TimedOut:
    sys.exit(21)
"""


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[Path]:
    """A file whose contents never come."""
    place = tmp_path / "mounted"
    place.mkdir()
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        server.communicate()
        skip_without("fuse", "no FUSE file system can be mounted here: that takes root and /dev/fuse")
    yield place / "libpython3.11.so.1.0"
    server.communicate()


@pytest.fixture
def hostile(stalled: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another user's process: its memory lies in the file."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TARGET, str(stalled)], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"mapped\n"
        yield process
        process.kill()


@pytest.mark.fault(20)
@needs("known-processor")
class TestStalledMemory:
    def test_a_run_is_given_up_in_time(
        self, hostile: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(deadline, "_WITHDRAW_S", 0.2)
        with must_end(), pytest.raises(TimedOut, match="does not answer"):
            injectors.ask_trim(target_of(hostile.pid), "measure", MUST_EXPIRE_S, via="ptrace")
        assert hostile.poll() is None

    def test_so_is_the_choice_of_an_injector(
        self, hostile: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(deadline, "_WITHDRAW_S", 0.2)
        monkeypatch.setattr(injectors, "_CHOOSING_S", 0.5)
        with must_end(), pytest.raises(TimedOut, match="does not answer"):
            injectors.choose_injector(target_of(hostile.pid))

    def test_the_program_can_end_after_that(self, hostile: subprocess.Popen[bytes]) -> None:
        assert run(hostile.pid, MUST_EXPIRE_S).wait(PATIENCE_S) == 21

    def test_ctrl_c_ends_it(self, hostile: subprocess.Popen[bytes]) -> None:
        process = run(hostile.pid, 600.0)
        until(lambda: _is_stuck(process.pid), process.poll)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == -signal.SIGINT


def run(pid: int, deadline_s: float) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    argv = [sys.executable, "-c", ASKER, str(pid), str(deadline_s)]
    return subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)


def _is_stuck(pid: int) -> bool:
    """Whether its child waits inside the kernel for the file system, and it waits for its child."""
    return "poll" in _wait_channel(pid) and has_stuck_child(pid)


def has_stuck_child(pid: int) -> bool:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return False
    return any("request_wait" in _wait_channel(int(child)) for child in children)


def _wait_channel(pid: int) -> str:
    """Where in the kernel it waits; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""
