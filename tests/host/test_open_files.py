"""Who has device files open. One contract for both walks, the native and the Python one."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.host.leaderless import leaderless
from tests.needs import needs
from vram.host.local.open_files import DeviceNames, LocalOpenFiles
from vram.host.local.proc_scan import NativeScan, PythonScan, RawFile, Scan, ScanLimits
from vram.host.ports import FileHolder
from vram.payloads.procfs import started_at

pytestmark = pytest.mark.native

HOLD = "import os, sys; [os.open(path, os.O_RDWR) for path in sys.argv[1:]]; print(flush=True); input()"
CHURN = "import os\nprint(flush=True)\nwhile True:\n pid = os.fork() or os._exit(0)\n os.waitpid(pid, 0)"


@pytest.fixture(params=[NativeScan, PythonScan])
def scan(request: pytest.FixtureRequest, native_libraries: Path) -> Scan:
    return request.param()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with device files such as a virtual GPU has."""
    (tmp_path / "dev").mkdir()
    names = (
        "nvidia0",
        "nvidia0.17",
        "nvidia12.3",
        "nvidiactl",
        "nvidiactl.23",
        "nvidia-uvm",
        "dmabuf.24",
        "else",
    )
    for name in names:
        (tmp_path / "dev" / name).touch()
    (tmp_path / "dev" / "dmabuf.24").write_bytes(b"\0" * 4096)
    return tmp_path


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has all of them open, from descriptor 3 on."""
    paths = sorted((folder / "dev").iterdir())
    with started(HOLD, *map(str, paths)) as process:
        yield process
        process.kill()


def started(code: str, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    )
    process.stdout.readline()
    return process


def look(folder: Path, scan: Scan, pids: list[int] | None = None) -> dict[int, FileHolder]:
    found = LocalOpenFiles(DeviceNames(str(folder)), scan=scan).scan(60.0, pids)
    return {holding.process.pid: holding for holding in found.holders}


def test_every_kind_is_found(folder: Path, holder: subprocess.Popen[bytes], scan: Scan) -> None:
    holding = look(folder, scan)[holder.pid]
    found = {(Path(file.path).name, file.kind, file.minor) for file in holding.files}
    assert found == {
        ("nvidia0", "gpu", 0),
        ("nvidia0.17", "gpu", 0),
        ("nvidia12.3", "gpu", 12),
        ("nvidiactl", "control", None),
        ("nvidiactl.23", "control", None),
        ("nvidia-uvm", "uvm", None),
        ("dmabuf.24", "dmabuf", None),
    }
    assert holding.process.started_at is not None
    assert holding.mappings == 0


def test_dmabuf_tells_its_size_and_identity(
    folder: Path, holder: subprocess.Popen[bytes], scan: Scan
) -> None:
    (buffer,) = look(folder, scan)[holder.pid].dmabufs
    assert buffer.nbytes == 4096
    assert buffer.inode == (folder / "dev" / "dmabuf.24").stat().st_ino


def test_deleted_files_are_still_held(folder: Path, holder: subprocess.Popen[bytes], scan: Scan) -> None:
    (folder / "dev" / "nvidia0.17").unlink()
    paths = {file.path for file in look(folder, scan)[holder.pid].files if file.minor == 0}
    assert paths == {str(folder / "dev" / name) for name in ("nvidia0", "nvidia0.17")}


def test_folder_may_be_named_by_a_link(
    folder: Path, holder: subprocess.Popen[bytes], scan: Scan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    link = tmp_path_factory.mktemp("links") / "gpu"
    link.symlink_to(folder)
    assert holder.pid in look(link, scan)


def test_mappings_are_counted(folder: Path, scan: Scan) -> None:
    code = (
        "import mmap, os, sys; file = os.open(sys.argv[1], os.O_RDWR);"
        "kept = [mmap.mmap(file, 4096) for _ in range(3)]; print(flush=True); input()"
    )
    with started(code, str(folder / "dev" / "dmabuf.24")) as process:
        # Neighbouring mappings of the same pages may be joined by the kernel, never lost.
        assert 1 <= look(folder, scan)[process.pid].mappings <= 3
        process.kill()


def test_scattered_descriptors_are_found(folder: Path, scan: Scan) -> None:
    """Numbers far beyond the count of open descriptors, as servers with many clients have."""
    code = (
        "import os, sys; file = os.open(sys.argv[1], os.O_RDWR);"
        "[os.dup2(file, number) for number in (97, 300, 900)]; print(flush=True); input()"
    )
    with started(code, str(folder / "dev" / "nvidia0.17")) as process:
        assert [file.fd for file in look(folder, scan)[process.pid].files] == [3, 97, 300, 900]
        process.kill()


def test_shared_open_file_is_recognised(folder: Path, scan: Scan) -> None:
    """Two descriptors share one open file by fork and by passing; a second open does not."""
    path = folder / "dev" / "nvidia0.17"
    ours, theirs = socket.socketpair()
    receive = (
        "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]));"
        "fds = socket.recv_fds(s, 1, 1)[1]; print(flush=True); input()"
    )
    inherited, own = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    os.set_inheritable(inherited, True)
    process = subprocess.Popen(
        [sys.executable, "-c", receive, str(theirs.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[inherited, theirs.fileno()],
    )
    with process:
        socket.send_fds(ours, [b"."], [own])
        process.stdout.readline()
        found = look(folder, scan)
        mine = {file.fd: file.description for file in found[os.getpid()].files}
        its = [file.description for file in found[process.pid].files]
        assert mine[inherited] != mine[own]
        assert None not in mine.values()
        assert sorted(its) == sorted([mine[inherited], mine[own]])
        process.kill()
    for descriptor in (inherited, own):
        os.close(descriptor)


def test_a_process_whose_first_thread_has_ended_still_holds_its_files(folder: Path, scan: Scan) -> None:
    """Its own fd folder shows none: those of its living threads do."""
    control, buffer = (folder / "dev" / name for name in ("nvidiactl.23", "dmabuf.24"))

    def live_on() -> object:
        files = [os.open(path, os.O_RDWR) for path in (control, control, buffer)]
        os.dup(files[0])
        return mmap.mmap(files[2], 4096)

    with leaderless(live_on) as pid:
        holding = look(folder, scan)[pid]
        first, second, again = (file.description for file in holding.files if file.kind == "control")
        assert first == again != second
        assert None not in (first, second)
        assert {each.nbytes for each in holding.dmabufs} == {4096}
        assert holding.mappings == 1
        assert holding.process.started_at == started_at(pid)
        assert look(folder, scan, [pid]) == {pid: holding}


@needs("root", detail="needs root to become somebody else")
def test_a_users_own_processes_are_seen_without_their_first_thread(folder: Path, scan: Scan) -> None:
    """To all but root an ended thread's folder is closed; that says nothing of the living ones."""
    held = os.open(folder / "dev" / "nvidia0.17", os.O_RDWR)

    def lookas_nobody() -> list[object]:
        set_dumpable = 4  # whoever changes its user is closed to all but root, until it says otherwise
        ctypes.CDLL(None).prctl(set_dumpable, 1)
        zombie = os.fork() or os._exit(0)
        os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
        with leaderless() as pid:
            found = LocalOpenFiles(DeviceNames(str(folder)), scan=scan).scan(60.0, [pid, zombie])
            return [[each.process.pid for each in found.holders] == [pid], found.denied_processes]

    assert as_nobody(lookas_nobody) == [True, 0]
    os.close(held)


def test_only_the_pids_asked_for(folder: Path, holder: subprocess.Popen[bytes], scan: Scan) -> None:
    assert set(look(folder, scan, [holder.pid])) == {holder.pid}
    assert look(folder, scan, []) == {}
    assert look(folder, scan, [os.getpid()]) == {}


def test_our_own_readers_are_left_out(folder: Path, holder: subprocess.Popen[bytes], scan: Scan) -> None:
    names = DeviceNames(str(folder))
    found = LocalOpenFiles(names, scan=scan, ignore=lambda: {holder.pid}).scan(60.0)
    assert holder.pid not in {holding.process.pid for holding in found.holders}


MANY = (
    "import os, sys; file = os.open(sys.argv[1], os.O_RDWR);"
    "[os.dup2(file, number) for number in range(4, 4 + int(sys.argv[2]))]; print(flush=True); input()"
)


@pytest.mark.parametrize("kind", [NativeScan, PythonScan])
def test_of_a_process_with_too_many_the_first_are_read_and_that_is_told(
    folder: Path, native_libraries: Path, kind: type[NativeScan | PythonScan]
) -> None:
    """Anybody can open a device file a million times; whoever looks must not pay for all of them."""
    scan = kind(limits=ScanLimits(of_process=8))
    with (
        started(MANY, str(folder / "dev" / "nvidia0.17"), "7") as enough,
        started(MANY, str(folder / "dev" / "nvidia0.17"), "8") as many,
    ):
        found = LocalOpenFiles(DeviceNames(str(folder)), scan=scan).scan(60.0)
        held = {holding.process.pid: [file.fd for file in holding.files] for holding in found.holders}
        assert held[enough.pid] == held[many.pid] == list(range(3, 11))
        assert [each.pid for each in found.cut] == [many.pid]
        assert (found.full, found.complete) == (False, True)
        enough.kill()
        many.kill()


@pytest.mark.parametrize("kind", [NativeScan, PythonScan])
def test_of_too_many_in_all_some_are_read_and_that_is_told(
    folder: Path, native_libraries: Path, kind: type[NativeScan | PythonScan]
) -> None:
    with started(MANY, str(folder / "dev" / "nvidia0.17"), "20") as process:
        found = LocalOpenFiles(DeviceNames(str(folder)), scan=kind(limits=ScanLimits(in_all=5))).scan(60.0)
        assert sum(len(holding.files) for holding in found.holders) == 5
        assert found.full
        process.kill()


@needs("root", detail="only root can become another user")
@pytest.mark.parametrize("kind", [NativeScan, PythonScan])
def test_one_users_flood_takes_that_users_share_only(
    folder: Path, native_libraries: Path, kind: type[NativeScan | PythonScan]
) -> None:
    """They may not be dumped, so that their folders look like root's."""
    scan = kind(limits=ScanLimits(of_process=8, of_user=10))
    device = str(folder / "dev" / "nvidia0.17")
    as_nobody = MANY.replace("print(flush=True)", "os.setresuid(65534, 65534, 65534); print(flush=True)")
    with ExitStack() as stack:
        flood = [stack.enter_context(started(as_nobody, device, "7")) for _ in range(4)]
        root = stack.enter_context(started(MANY, device, "7"))
        found = LocalOpenFiles(DeviceNames(str(folder)), scan=scan).scan(60.0)
        held = {holding.process.pid: len(holding.files) for holding in found.holders}
        pids = [each.pid for each in flood]
        assert sorted(held[pid] for pid in pids) == [1, 1, 8, 8]
        assert held[root.pid] == 8
        assert {each.pid for each in found.cut} == {pid for pid in pids if held[pid] == 1}
        assert found.cut_users == (pwd.getpwuid(65534).pw_name,)
        assert (found.full, found.complete) == (False, True)
        for each in (*flood, root):
            each.kill()


def test_descriptions_that_there_is_no_time_for_have_no_number(scan: Scan) -> None:
    """Some numbers and not the others would look like open files that nobody shares."""
    ends = os.pipe()
    wanted = [(os.getpid(), end, 0) for end in (*ends, os.dup(ends[0]))]
    first, second, again = scan.describe(wanted, time.monotonic() + 60)
    assert first == again != second
    assert scan.describe(wanted, time.monotonic() - 1) == [None] * 3
    for _, end, _ in wanted:
        os.close(end)


FORKS = (
    "import os, signal, sys; files = [os.open(sys.argv[1], os.O_RDWR) for _ in range(3)]\n"
    "for at in range(int(sys.argv[2])):\n"
    " if os.fork() == 0:\n"
    "  for file in [os.dup(file) for file in files] if at % 2 else []: pass\n"
    "  os.write(1, b'.'); signal.pause()\n"
    "sys.stdin.read()\n"
    "os.killpg(0, signal.SIGKILL)"
)


def test_hundreds_of_forks_have_the_same_open_files(folder: Path, scan: Scan) -> None:
    """Under the numbers that they inherited and under numbers of their own."""
    command = [sys.executable, "-c", FORKS, str(folder / "dev" / "nvidia0.17"), "200"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, start_new_session=True, **pipes) as parent:
        assert len(parent.stdout.read(200)) == 200
        found = look(folder, scan)
        mine = [file.description for file in found[parent.pid].files]
        assert None not in mine
        assert len(set(mine)) == 3
        assert len(found) == 201
        for holding in found.values():
            assert [file.description for file in holding.files] in (mine, mine * 2)
        parent.stdin.close()


def test_deadline_cuts_the_scan_off(folder: Path, scan: Scan) -> None:
    found = LocalOpenFiles(DeviceNames(str(folder)), scan=scan).scan(0.0)
    assert not found.complete


@pytest.mark.fault(11)
def test_processes_that_come_and_go(folder: Path, holder: subprocess.Popen[bytes], scan: Scan) -> None:
    """Whoever ends while being looked at is simply not there; who stays is always found."""
    with started(CHURN) as churn:
        for _ in range(20):
            assert holder.pid in look(folder, scan)
        churn.kill()


@needs("root", detail="needs root to become somebody else")
def test_what_may_not_be_read_is_counted(folder: Path, holder: subprocess.Popen[bytes], scan: Scan) -> None:
    """Asked with another user's eyes: nobody is named, and how many were closed to us is."""
    answer = as_nobody(lambda: LocalOpenFiles(DeviceNames(str(folder)), scan=scan).scan(60.0))
    assert answer["holders"] == []
    assert answer["denied_processes"] >= 1
    assert "root" in answer["denied_users"]
    assert answer["complete"]


def as_nobody(job: Callable[[], object]) -> Any:
    import msgspec

    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        os.write(theirs, msgspec.json.encode(job()))
        os._exit(0)
    os.close(theirs)
    os.waitpid(pid, 0)
    with open(ours, "rb") as file:
        return json.loads(file.read())


def test_real_device_files_in_a_tree(tmp_path: Path, scan: Scan) -> None:
    """The real driver's names, in a tree like /proc; look-alikes stay out."""
    _process(tmp_path, 5, {3: "/dev/nvidia0", 4: "/dev/nvidiactl", 5: "/dev/nvidia-uvm", 9: "socket:[1]"})
    _process(tmp_path, 6, {0: "/dev/null", 7: "/dev/nvidia-caps/nvidia-cap2"})
    _process(tmp_path, 7, {3: "/dev/nvidia0\n/dev/nvidia1", 4: "/dev/nvidia0.bak", 5: "/tmp/dev/nvidia0"})
    _process(tmp_path, 8, {3: "/dmabuf:\x1b]0;evil", 4: "/dmabuf:camera"})
    _fdinfo(tmp_path, 8, 3, b"pos:\t0\nsize:\t2147483648\nexp_name:\tnv_dmabuf\n")
    _fdinfo(tmp_path, 8, 4, b"pos:\t0\nsize:\t4096\nexp_name:\tuvcvideo\n")
    found = LocalOpenFiles(DeviceNames(), str(tmp_path), scan=scan).scan(60.0).holders
    kinds = {each.process.pid: [(file.fd, file.kind, file.path) for file in each.files] for each in found}
    assert kinds == {
        5: [(3, "gpu", "/dev/nvidia0"), (4, "control", "/dev/nvidiactl"), (5, "uvm", "/dev/nvidia-uvm")],
        6: [(7, "other", "/dev/nvidia-caps/nvidia-cap2")],
        8: [(3, "dmabuf", "/dmabuf:")],
    }
    (buffer,) = found[-1].dmabufs
    assert (buffer.fd, buffer.nbytes, buffer.exporter) == (3, 2147483648, "nv_dmabuf")
    assert {each.process.started_at for each in found} == {77}


def _process(root: Path, pid: int, links: dict[int, str]) -> None:
    (root / str(pid) / "fd").mkdir(parents=True)
    (root / str(pid) / "stat").write_text(f"{pid} (x) (y) S 1 2 3 0 -1 0 " + "0 " * 12 + "77 0 0\n")
    for number, link in links.items():
        (root / str(pid) / "fd" / str(number)).symlink_to(link)


def _fdinfo(root: Path, pid: int, fd: int, content: bytes) -> None:
    folder = root / str(pid) / "fdinfo"
    folder.mkdir(exist_ok=True)
    (folder / str(fd)).write_bytes(content)


def raw(link: bytes, *, mode: int = 0, device: int = 0) -> RawFile:
    return RawFile(1, 1, 3, link, device, 0, 0, mode)


CHARACTER_DEVICE, PLAIN_FILE = 0o020666, 0o100644


def test_a_plain_file_with_a_devices_name_is_no_device() -> None:
    """A container owns its /dev, and can put anything there."""
    names = DeviceNames()
    assert names.name(raw(b"/dev/nvidia0", mode=PLAIN_FILE)) is None
    assert names.name(raw(b"/dev/nvidia0", mode=CHARACTER_DEVICE, device=os.makedev(1, 3))) is None
    assert names.name(raw(b"/dev/nvidia3", mode=CHARACTER_DEVICE, device=os.makedev(195, 3))).minor == 3


def test_a_virtual_gpu_hides_the_real_one(tmp_path: Path) -> None:
    names = DeviceNames(str(tmp_path))
    assert names.name(raw(b"/dev/nvidia0")) is None
    assert names.name(raw(bytes(tmp_path) + b"/dev/nvidia0.1")).kind == "gpu"


@given(st.binary(max_size=80), st.sampled_from([b"/dev/nvidia", b"/dmabuf:", b"/dev/nvidia-", b""]))
def test_no_link_upsets_it(rest: bytes, prefix: bytes) -> None:
    naming = DeviceNames().name(raw(prefix + rest))
    assert naming is None or b"\n" not in naming.path


def test_a_walk_begun_ahead_is_collected_once(
    folder: Path, holder: subprocess.Popen[bytes], scan: Scan
) -> None:
    """The first scan gets what was begun; the one after it looks again and sees the holder gone."""
    files = LocalOpenFiles(DeviceNames(str(folder)), scan=scan)
    files.begin_scan(60.0)
    first = [holding.process.pid for holding in files.scan(60.0).holders]
    holder.kill()
    holder.wait()
    assert first == [holder.pid]
    assert files.scan(60.0).holders == ()
