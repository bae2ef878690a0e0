"""Where memory may be held that no open file shows: real processes that do each of these things."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.host.test_open_files import as_nobody
from tests.needs import needs, skip_without
from vram.host.local.elsewhere import look_elsewhere
from vram.model.files import ElsewhereCode

PASS = """
import os, socket
near, far = socket.socketpair()
kept = os.open(PATH, os.O_RDONLY)
socket.send_fds(near, [b"x"], [kept])
os.close(kept)
"""
RECEIVED = PASS + "socket.recv_fds(far, 1, 1)\n"
PASS_TO_A_SERVER = """
import os, socket, tempfile
server = socket.socket(socket.AF_UNIX); server.bind(NAME); server.listen()
client = socket.socket(socket.AF_UNIX); client.connect(NAME)
socket.send_fds(client, [b"x"], [os.open(PATH, os.O_RDONLY)])
client.close()
"""
RING = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 2, ctypes.create_string_buffer(120))
if ring < 0: print("none", flush=True); raise SystemExit
fds = (ctypes.c_int * 1)(os.open(PATH, os.O_RDONLY))
if REGISTER: assert libc.syscall(427, ring, 2, fds, 1) == 0
os.close(fds[0])
"""
OWN_FILES = """
import ctypes, os, threading
libc, begun = ctypes.CDLL(None), threading.Event()
def work():
    assert libc.unshare(0x400) == 0
    os.open(PATH, os.O_RDONLY)
    begun.set()
    threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
THREADS = """
import os, threading
kept = os.open(PATH, os.O_RDONLY)
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

Look = Callable[..., set[ElsewhereCode]]


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "dev" / "nvidiactl.7"
    path.parent.mkdir()
    path.touch()
    return path


@pytest.fixture
def look(tmp_path: Path, device: Path) -> Iterator[Look]:
    """Start a process with this code, and look at it alone, in a /proc that shows no other."""
    with ExitStack() as stack:

        def look_at(code: str, *, deadline_s: float = 60.0, virtual: bool = True) -> set[ElsewhereCode]:
            named = f"PATH, NAME = {str(device)!r}, {str(tmp_path / 'name')!r}\n"
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", f"{named}{code}\nprint('ready', flush=True); input()"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                skip_without("kernel", "this kernel makes no io_uring for us")
            root = only(tmp_path / "proc", process.pid)
            deadline, devices = time.monotonic() + deadline_s, (os.fsencode(device.parent),)
            return set(look_elsewhere(root, devices, (), deadline, virtual=virtual))

        yield look_at


def only(root: Path, *pids: int) -> str:
    """A folder like /proc that shows these processes and ourselves."""
    root.mkdir(exist_ok=True)
    for name in ("self", *map(str, pids)):
        (root / name).symlink_to(f"/proc/{name}")
    return str(root)


@pytest.mark.parametrize("code", ["", THREADS, RECEIVED], ids=["nothing", "threads", "received"])
def test_an_ordinary_process_holds_nothing_elsewhere(look: Look, code: str) -> None:
    """Whatever it has open itself: that is what the scan of open files reads."""
    assert look(code) == set()


@pytest.mark.parametrize("code", [PASS, PASS_TO_A_SERVER], ids=["to a peer", "before it is accepted"])
def test_a_descriptor_that_nobody_has_received_yet(look: Look, code: str) -> None:
    assert look(code) == {"in-flight"}


@pytest.mark.parametrize(("register", "found"), [(True, {"io-uring"}), (False, set())])
def test_files_that_are_registered_with_an_io_uring(look: Look, register: bool, found: set[str]) -> None:
    assert look(f"REGISTER = {register}\n{RING}") == found


@needs("root")
def test_a_thread_with_a_table_of_files_of_its_own(look: Look) -> None:
    assert look(OWN_FILES) == {"own-files"}


def test_a_deadline_that_is_over_proves_nothing(look: Look) -> None:
    assert look("", deadline_s=0.0) == {"cut-off"}


def test_a_process_with_very_many_descriptors_costs_no_more_than_the_deadline(look: Look) -> None:
    """It would otherwise hold up every reading of root's: any user may open a million."""
    assert look("import socket\nkept = [socket.socket() for _ in range(900)]\n", deadline_s=0.002) == {
        "cut-off"
    }


@needs("root")
def test_processes_that_may_not_be_read_prove_nothing() -> None:
    """A folder that cannot be listed is no empty folder."""
    found = as_nobody(lambda: look_elsewhere("/proc", (), (), time.monotonic() + 60.0, virtual=True))
    assert "cut-off" in found


def test_the_console_and_other_drivers_are_no_part_of_a_virtual_gpu(tmp_path: Path) -> None:
    root = only(tmp_path)
    (tmp_path / "fb").write_text("0 nvidia-drmdrmfb\n")
    deadline = time.monotonic() + 60.0
    assert look_elsewhere(root, (), (), deadline, virtual=False) == ("console",)
    assert look_elsewhere(root, (), (), deadline, virtual=True) == ()


def test_a_process_that_is_exiting_may_not_have_released_everything(tmp_path: Path) -> None:
    """Its files are gone from /proc before the driver has closed them."""
    stat = Path("/proc/self/stat").read_text()
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    fields[6], fields[17] = str(0x4), "1"
    process = tmp_path / "77"
    process.mkdir()
    only(tmp_path)
    (process / "stat").write_text(f"{head}) {' '.join(fields)}")
    assert look_elsewhere(str(tmp_path), (), (), time.monotonic() + 60.0, virtual=True) == ("exiting",)
    fields[0] = "Z"
    (process / "stat").write_text(f"{head}) {' '.join(fields)}")
    assert look_elsewhere(str(tmp_path), (), (), time.monotonic() + 60.0, virtual=True) == ()


def test_our_own_helpers_are_ignored(tmp_path: Path, device: Path) -> None:
    pid = os.getpid()
    root = only(tmp_path / "proc", pid)
    assert look_elsewhere(root, (), {pid}, time.monotonic() + 60.0, virtual=True) == ()
