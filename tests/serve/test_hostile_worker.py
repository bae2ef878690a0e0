"""A user against the worker that acts for him: it has his rights, and nothing of the service's to take."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.needs import skip_without
from tests.patience import PATIENCE_S, must_end, until, until_ended, until_gone
from tests.serve.users import ROOT, USERS, UsersMachine, needs_root
from vram.serve.socket.become import RunAs
from vram.serve.socket.peers import owner_of
from vram.serve.socket.worker import WorkerRequest
from vram.serve.socket.worker_process import WorkerProcess
from vram.virtualgpu import VirtualGpu

pytestmark = needs_root
ALICE = USERS["alice"]
PTRACE_ATTACH = 16
_HIERARCHIES = {
    "version 1": [Path("/sys/fs/cgroup/devices")],
    "version 2": [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")],
}


@pytest.fixture
def machine(virtual_gpu: VirtualGpu) -> Iterator[UsersMachine]:
    with ExitStack() as stack:
        yield UsersMachine(virtual_gpu, stack)


@pytest.fixture(params=_HIERARCHIES)
def job(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The control group of a job; in version 1 it may not open /dev/full, which stands for a GPU."""
    for root in _HIERARCHIES[request.param]:
        group = root / f"vram-test-{os.getpid()}-{os.urandom(4).hex()}"
        if not (root / "cgroup.procs").exists():
            continue
        with suppress(OSError):
            group.mkdir()
            break
    else:
        skip_without("cgroups", f"no control group of {request.param} can be made here")
    if root.name == "devices":
        (group / "devices.deny").write_text("c 1:7 rwm")
    try:
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def entering(group: Path) -> list[str]:
    return ["sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh"]


# ---- the attack: ask, stop the worker that comes, and trace it ----

ATTACK = """
import ctypes, errno, json, os, signal, socket, sys
path, service, uid = sys.argv[1], int(sys.argv[2]), os.getuid()

def worker():
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/status") as file:
                status = file.read()
        except OSError:
            continue
        if f"PPid:\\t{service}\\n" in status and f"Uid:\\t{uid}\\t{uid}\\t{uid}" in status:
            return int(name)

found = None
while not found:
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
    made.sendall(b'{"schema": 1, "do": "plan"}\\n')
    made.setblocking(False)
    while not (found := worker()):
        try:
            made.recv(1 << 20)
            break
        except BlockingIOError:
            pass
os.kill(found, signal.SIGSTOP)
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.ptrace(16, found, 0, 0)
told = {"traced": not failed, "errno": ctypes.get_errno() if failed else 0}
told["cgroups"] = [open(f"/proc/{pid}/cgroup").read() for pid in (found, os.getpid())]
try:
    open("/dev/full").close()
    told["opens"] = True
except PermissionError:
    told["opens"] = False
if not failed:
    os.kill(found, signal.SIGKILL)
os.kill(found, signal.SIGCONT)
print(json.dumps(told))
"""


def test_a_job_cannot_take_the_worker_over_to_open_what_it_may_not(job: Path, machine: UsersMachine):
    """The worker is in the job's own control group, and the kernel lets its user not trace it."""
    service = machine.start()
    program = [sys.executable, "-c", ATTACK, str(service.socket), str(service.process.pid)]
    enter = machine.enter("alice")
    at = enter.index("setpriv")
    process = machine.popen("root", [*entering(job), *enter[at:], *program], stdout=-1, text=True)
    told = json.loads(process.communicate(timeout=PATIENCE_S)[0])
    assert (told["traced"], told["errno"]) == (False, errno.EPERM)
    workers, jobs = (_but_freezer(each) for each in told["cgroups"])
    assert workers == jobs
    assert f"/{job.name}" in told["cgroups"][0]
    assert told["opens"] is (job.parent.name != "devices")


def _but_freezer(cgroups: str) -> set[str]:
    return {line for line in cgroups.splitlines() if ":freezer:" not in line}


# ---- a worker that says what it is, and waits ----

# Everything is imported first: the user may not be able to read the interpreter's files.

SAYING = f"""
import ctypes, json, os, signal, subprocess, sys
sys.path.append({str(ROOT / "src")!r})
from vram.errors import NotPermitted
from vram.serve.socket.become import become
def say(**told):
    os.write(1, json.dumps({{"is_last": True, "message": json.dumps(told)}}).encode() + b"\\n")
    signal.pause()
"""


def heard(code: str, run_as: RunAs, then: Any = lambda worker, told: None) -> Any:
    """What *code* says in a worker; *then* is done while it waits. Nothing of it is left afterwards."""
    command = (sys.executable, "-c", f"{SAYING}\nbecome(sys.argv[1])\n{code}")

    async def run() -> Any:
        worker = WorkerProcess(WorkerRequest(job="plan"), run_as, PATIENCE_S, command=command, grace_s=0.1)
        try:
            told = json.loads((await worker.last()).message)
            then(worker, told)
            return told
        finally:
            worker.end()
            await worker.has_ended.wait()

    with must_end():
        return asyncio.run(run())


def own_cgroups() -> str:
    return Path("/proc/self/cgroup").read_text()


def test_it_has_the_rights_of_that_user_and_cannot_regain_others():
    code = """
try:
    os.setuid(0)
except PermissionError:
    say(ids=[os.getresuid(), os.getresgid(), sorted(os.getgroups())])
"""
    told = heard(code, RunAs(4101, 4102, (4103, 4104), own_cgroups()))
    assert told["ids"] == [[4101] * 3, [4102] * 3, [4103, 4104]]


def test_its_user_may_neither_trace_it_nor_read_its_memory():
    def attack(worker: WorkerProcess, told: Any) -> None:
        assert _as(ALICE, lambda: _traced(worker.pid)) == errno.EPERM
        assert _as(ALICE, lambda: _opened(f"/proc/{worker.pid}/mem")) in (errno.EACCES, errno.EPERM)

    heard("say()", RunAs(ALICE, ALICE, (), own_cgroups()), attack)


def _traced(pid: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if libc.ptrace(PTRACE_ATTACH, pid, 0, 0) else 0


def _opened(path: str) -> int:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        return error.errno or -1
    return 0


def _as(uid: int, attack: Any) -> int:
    """What *attack* returns in a process of *uid*."""
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os._exit(attack())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_what_it_started_ends_with_it():
    code = """
if not (pid := os.fork()):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
say(child=pid)
"""
    children: list[int] = []
    heard(
        code,
        RunAs(ALICE, ALICE, (), own_cgroups()),
        lambda worker, told: children.append(os.pidfd_open(told["child"])),
    )
    until_ended(children[0])
    os.close(children[0])


def test_it_ends_with_a_service_that_was_killed():
    """In a group of the user's, systemd does not end it."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:  # the service

        def die(worker: WorkerProcess, said: Any) -> None:
            os.write(tell, str(worker.pid).encode())
            os._exit(0)

        try:
            heard("say()", RunAs(ALICE, ALICE, (), own_cgroups()), die)
        finally:
            os._exit(1)
    os.close(tell)
    with open(told) as said:
        worker = int(said.read())
    os.waitpid(pid, 0)
    until_gone(worker)


def test_outside_of_its_users_group_it_starts_no_program():
    """A program that it started there could be traced: a shell of the user's in the service's group."""
    code = """
refused = []
for start in (lambda: subprocess.run(["true"]), lambda: os.posix_spawn("/bin/true", ["true"], {}),
              lambda: os.system("true"), lambda: os.execv("/bin/true", ["true"])):
    try:
        start()
    except NotPermitted as error:
        refused.append(str(error))
say(refused=refused)
"""
    told = heard(code, RunAs(ALICE, ALICE, (), "0::/no/such/group\n"))
    assert ["control group" in each for each in told["refused"]] == [True] * 4


def test_it_enters_the_group_of_the_process_that_it_acts_on(job: Path):
    """As for a policy, where nobody asks."""
    waiting, _ends = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(waiting, 1)
        os._exit(0)
    try:
        (job / "cgroup.procs").write_text(str(pid))
        began = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        owner = owner_of(pid, began)
        assert owner is not None
        told = heard("say(cgroups=open('/proc/self/cgroup').read())", RunAs(ALICE, ALICE, (), owner.cgroups))
    finally:
        os.write(_ends, b".")
        os.waitpid(pid, 0)
        os.close(waiting)
        os.close(_ends)
    assert _but_freezer(told["cgroups"]) == _but_freezer(owner.cgroups)
    assert f"/{job.name}" in told["cgroups"]


# ---- keys ----

_KEYCTL, _ADD_KEY = {"x86_64": (250, 248), "aarch64": (219, 217)}.get(platform.machine(), (0, 0))
_JOIN, _SEARCH, _READ, _SESSION = 1, 10, 11, -3

STEALING = f"""
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
key = libc.syscall({_KEYCTL}, {_SEARCH}, {_SESSION}, b"user", b"vram-test", 0)
stolen = ctypes.create_string_buffer(64)
size = libc.syscall({_KEYCTL}, {_READ}, key, stolen, 64) if key > 0 else 0
say(stolen=stolen.raw[:max(size, 0)].decode())
"""


def test_the_keys_of_whoever_started_the_service_are_not_the_workers():
    """As with `sudo vram serve`: root's session keyring is in the service, and a worker inherits from it."""
    if not _KEYCTL:
        skip_without("kernel", "the numbers of keyctl are not known here")
    pid = os.fork()
    if pid == 0:  # a service with a session keyring of its own, which ends with it
        os._exit(_with_a_key())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _with_a_key() -> int:
    """0 where the worker found no key, 1 where it has read it, 2 where something else went wrong."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        assert libc.syscall(_KEYCTL, _JOIN, None) > 0
        key = libc.syscall(_ADD_KEY, b"user", b"vram-test", b"secret", ctypes.c_size_t(6), _SESSION)
        assert key > 0
        found = ctypes.create_string_buffer(64)
        assert libc.syscall(_KEYCTL, _READ, key, found, 64) == 6
        told = heard(STEALING, RunAs(ALICE, ALICE, (), own_cgroups()), then=lambda worker, told: None)
        return int(told["stolen"] != "")
    except BaseException as error:
        print(error)
        return 2
