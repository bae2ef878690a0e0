"""The same host with other eyes: from a PID namespace, as another user, under a filter of system calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doctor.conftest import PROGRAM, Clinic, told
from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S
from vram.units import GIB

LIMITED = 7
NOBODY = 65534


@pytest.fixture
def new_namespaces() -> tuple[str, ...]:
    own = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    enter = ("unshare", *own, "--pid", "--fork", "--mount-proc", "--kill-child")
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no new PID namespace may be made here")
    return enter


def test_from_inside_a_pid_namespace(clinic: Clinic, new_namespaces: tuple[str, ...]) -> None:
    """It says that others cannot be seen, and counts nobody who is outside."""
    clinic.holder(GIB)
    answer = clinic.ask(before=new_namespaces)
    assert answer.state("place.namespace") == "limited"
    assert "a separate PID namespace" in answer.seen("place.namespace")
    assert answer.state("reaching.python") == "not-applicable", "the holder is outside"
    assert answer.code == LIMITED


def test_from_inside_a_user_namespace(clinic: Clinic) -> None:
    """There everybody is root, with every capability, over nobody but themselves."""
    enter = ("unshare", "--user", "--map-root-user")
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no new user namespace may be made here")
    neighbour = clinic.holder()
    answer = clinic.ask(before=enter)
    assert neighbour.poll() is None
    assert answer.state("permissions.processes") == "limited"
    assert "user namespace" in answer.checks["permissions.processes"]["fix"]
    assert answer.seen("permissions.ptrace") == "can attach to your own processes"


WITHOUT_CAPABILITIES = """
import ctypes, os, sys
for capability in range(64):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: exec brings none of them back
os.execv(sys.argv[1], sys.argv[1:])
"""


@needs("root", detail="only root can play two users")
class TestTwoUsers:
    @pytest.fixture
    def neighbour(self) -> Iterator[subprocess.Popen[bytes]]:
        """A process of somebody else."""
        process = subprocess.Popen(["sleep", "600"], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/")
        yield process
        process.kill()
        process.wait()

    def test_who_has_no_capability_cannot_read_the_neighbours_files(
        self, clinic: Clinic, neighbour: subprocess.Popen[bytes]
    ) -> None:
        answer = clinic.ask(before=(sys.executable, "-c", WITHOUT_CAPABILITIES))
        assert answer.state("permissions.processes") == "limited"
        assert answer.seen("permissions.processes").startswith("root cannot read the open files of")
        assert "CAP_SYS_PTRACE" in answer.checks["permissions.processes"]["fix"]
        assert answer.code == LIMITED

    def test_where_proc_hides_the_neighbour(self, clinic: Clinic, new_namespaces: tuple[str, ...]) -> None:
        """In the words that this very kernel shows the option with."""
        hide = ("sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh")
        drop = (sys.executable, "-c", WITHOUT_CAPABILITIES)
        done = clinic.run("--json", before=(*new_namespaces, *hide, *drop))
        if "mount" in done.stderr:
            skip_without("mounts", "nothing may be mounted here")
        assert "hides other users' processes" in told(done).seen("permissions.processes")

    def test_as_somebody_who_is_not_root(self, clinic: Clinic, tmp_path: Path) -> None:
        state = tmp_path / "theirs"
        state.mkdir(mode=0o700)
        os.chown(state, NOBODY, NOBODY)
        try:
            done = subprocess.run(
                [*PROGRAM, "--json"],
                env=clinic.environment(XDG_STATE_HOME=str(state), HOME=str(state)),
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                cwd="/",
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
        except PermissionError:
            skip_without("readable-by-all", "others cannot start this Python")
        if not done.stdout:
            skip_without("readable-by-all", "others cannot read this checkout")
        answer = told(done)
        assert answer.state("permissions.processes") == "limited"
        assert answer.checks["permissions.processes"]["command"] == 'sudo "$(command -v vram)" doctor'


FILTER = """
import ctypes, os, platform, struct, sys
ptrace = {"x86_64": 101, "aarch64": 117}[platform.machine()]
PIDFD_GETFD, EPERM = 438, 1
load, equal, give = 0x20, 0x15, 0x06
allow, refuse = 0x7FFF0000, 0x00050000 | EPERM
program = b"".join(struct.pack("HBBI", *line) for line in (
    (load, 0, 0, 0),
    (equal, 2, 0, ptrace),
    (equal, 1, 0, PIDFD_GETFD),
    (give, 0, 0, allow),
    (give, 0, 0, refuse),
))
buffer = ctypes.create_string_buffer(program, len(program))
header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
if libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0):
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_under_a_filter_of_system_calls(clinic: Clinic) -> None:
    """As in a container with an old profile: what is forbidden is found by trying, and named."""
    done = clinic.run("--json", before=(sys.executable, "-c", FILTER))
    if done.returncode == 77:
        skip_without("kernel", "no filter of system calls may be set here")
    answer = told(done)
    assert answer.state("permissions.pidfd") == "limited"
    assert answer.seen("permissions.pidfd") == "refused: pidfd_getfd (EPERM)"
    assert "seccomp" in answer.checks["permissions.pidfd"]["fix"]
    assert answer.state("permissions.ptrace") == "limited"
    assert answer.state("permissions.processes") in ("ok", "limited")
