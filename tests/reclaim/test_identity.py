"""The very process that was chosen, or nobody: reuse, exec, another user, another namespace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.faults.record import Tally
from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S, until
from vram.errors import NoSuchProcess, NotPermitted, Protected, WorldChanged
from vram.host.local import LocalHost
from vram.model.process import ProcessFacts, ProcessRef
from vram.reclaim.identity import identify, open_verified

PROGRAM = Path(__file__).with_name("pid_reuse.py")
needs_root = needs("root", detail="only root can change its user")

Start = Callable[..., subprocess.Popen[bytes]]

# Says that it is there, waits for a line, then does what its argument says, and says that too.
ACTOR = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
exec(sys.argv[1])
print("changed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def popen(deed: str = "") -> subprocess.Popen[bytes]:
        actor = subprocess.Popen(
            [sys.executable, "-c", ACTOR, deed], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(actor)
        assert actor.stdout is not None
        assert actor.stdout.readline() == b"ready\n"
        return actor

    yield popen
    for actor in started:
        actor.kill()
        actor.communicate()


def change(actor: subprocess.Popen[bytes]) -> None:
    """Let it do its deed, and wait until that is done."""
    assert actor.stdin is not None
    assert actor.stdout is not None
    actor.stdin.write(b"\n")
    actor.stdin.flush()
    assert actor.stdout.readline() in (b"changed\n", b"ready\n")


REUSES = int(os.environ.get("VRAM_PID_REUSES", "500"))
"""How many pids are forced to be reused; 10,000 is what the fault table promises."""


@pytest.mark.fault(12)
def test_nobody_who_inherited_a_pid_is_touched(new_namespaces: tuple[str, ...], tmp_path: Path, tally: Tally):
    argv = ["env", f"XDG_STATE_HOME={tmp_path}", *new_namespaces, sys.executable, str(PROGRAM)]
    control = subprocess.run([*argv, "100", "--by-pid"], capture_output=True, text=True, timeout=PATIENCE_S)
    if control.returncode:
        skip_without("namespaces", f"pids cannot be forced here: {control.stderr.splitlines()[-1]}")
    assert json.loads(control.stdout)["hit"] == 100
    done = subprocess.run([*argv, str(REUSES)], capture_output=True, text=True, timeout=PATIENCE_S + REUSES)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    tally.count(told["tries"], wrong=told["tries"] - told["refused"] + told["hit"])
    assert told == {"tries": REUSES, "refused": REUSES, "hit": 0}


def test_a_process_that_stays_is_held_and_signalled(start: Start, host: LocalHost):
    actor = start()
    with open_verified(host, identify(host, actor.pid)) as held:
        assert held.send(signal.SIGTERM) == "sent"
        assert held.ended(PATIENCE_S)


def test_one_that_ended_is_no_such_process(start: Start, host: LocalHost):
    actor = start()
    target = identify(host, actor.pid)
    actor.kill()
    actor.wait()
    with pytest.raises(NoSuchProcess):
        open_verified(host, target)


def test_a_zombie_has_ended(start: Start, host: LocalHost):
    actor = start()
    target = identify(host, actor.pid)
    actor.kill()
    os.waitid(os.P_PID, actor.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(NoSuchProcess):
        open_verified(host, target)


@pytest.mark.fault(13)
@pytest.mark.parametrize(
    ("deed", "what"),
    [
        ("os.execv('/bin/cat', ['cat'])", "program"),
        ("os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])", "memory image"),
    ],
    ids=["another program", "the same program"],
)
def test_exec_between_choosing_and_acting_is_refused(start: Start, host: LocalHost, deed: str, what: str):
    """exec keeps pid, start time and pidfd."""
    actor = start(deed)
    target = identify(host, actor.pid)
    with open_verified(host, target) as held:
        assert actor.stdin is not None
        actor.stdin.write(b"\n")
        actor.stdin.flush()
        _wait_for_exec(host, actor.pid, target.image)
        with pytest.raises(WorldChanged, match=what):
            held.send(signal.SIGKILL)
    with pytest.raises(WorldChanged, match=what):
        open_verified(host, target)
    assert actor.poll() is None


def _wait_for_exec(host: LocalHost, pid: int, image: str | None) -> None:
    # The kernel tells nobody but a tracer of an exec: looking is all there is.
    until(lambda: host.proc.image(pid) not in (image, None))


@pytest.mark.fault(13)
@needs_root
def test_another_user_is_refused(start: Start, host: LocalHost):
    actor = start("os.setuid(65534)")
    target = identify(host, actor.pid)
    with open_verified(host, target) as held:
        change(actor)
        with pytest.raises(WorldChanged, match="user"):
            held.send(signal.SIGKILL)
    assert actor.poll() is None


@pytest.mark.fault(15)
@needs_root
def test_someone_elses_process_is_denied_to_an_ordinary_user(start: Start):
    actor = start()
    # The interpreter may lie where other users may not go: it changes its user once all is imported.
    code = (
        "import os, sys; from vram.host.local import LocalHost; from vram.reclaim.identity import identify\n"
        "host = LocalHost(); host.facts(); host.signals.self_and_ancestors()\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: identify(host, int(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(actor.pid)], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"NotPermitted pid {actor.pid} belongs to root\n", done.stderr


@pytest.mark.fault(16)
def test_ourselves_and_our_ancestors_are_never_touched(host: LocalHost):
    for pid in (os.getpid(), os.getppid()):
        with pytest.raises(Protected, match="vram itself"):
            identify(host, pid)


@pytest.mark.fault(16)
def test_kernel_threads_and_init_are_never_touched(host: LocalHost):
    for pid in (1, 2):
        if os.path.exists(f"/proc/{pid}/stat"):
            with pytest.raises((Protected, NotPermitted)):
                identify(host, pid)


class Reading:
    """A /proc that says something else about one process."""

    def __init__(self, host: LocalHost, **changes: object) -> None:
        self._proc, self._changes = host.proc, changes

    def facts(self, pid: int) -> tuple[ProcessRef, ProcessFacts] | None:
        seen = self._proc.facts(pid)
        return (seen[0], replace(seen[1], **self._changes)) if seen else None

    def image(self, pid: int) -> str | None:
        return self._proc.image(pid)


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    "executable",
    [
        *("/usr/lib/xorg/Xorg", "/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-cuda-mps-server"),
        *("/usr/bin/dockerd", "/usr/sbin/sshd", "/usr/sbin/slurmd", "/usr/bin/kubelet", None),
    ],
)
def test_parts_of_the_system_are_protected_even_from_root(
    start: Start, host: LocalHost, executable: str | None
):
    """Without its executable nobody can tell what a process is: that protects it too."""
    actor = start()
    host.proc = Reading(host, executable=executable)  # type: ignore[assignment]
    with pytest.raises(Protected):
        identify(host, actor.pid)


def test_a_moved_control_group_is_refused(start: Start, host: LocalHost):
    actor = start()
    target = identify(host, actor.pid)
    host.proc = Reading(host, cgroup="/somewhere/else")  # type: ignore[assignment]
    with pytest.raises(WorldChanged, match="control group"):
        open_verified(host, target)


def test_where_proc_is_of_another_pid_namespace_nothing_is_touched(new_namespaces: tuple[str, ...]):
    """A container that shows the host's /proc: its pids name other processes there."""
    inside = tuple(word for word in new_namespaces if word != "--mount-proc")
    code = (
        "import os, sys; from vram.host.local import LocalHost; from vram.reclaim.identity import identify\n"
        "child = os.fork()\n"
        "if child == 0: os.read(int(sys.argv[1]), 1); os._exit(0)\n"
        "try: identify(LocalHost(), child)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    read, write = os.pipe()
    done = subprocess.run(
        [*inside, sys.executable, "-c", code, str(read)],
        pass_fds=(read,),
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(read)
    os.close(write)
    assert done.stdout.split()[:1] in (["WorldChanged"], ["NoSuchProcess"], ["Protected"]), done.stderr
