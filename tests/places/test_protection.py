"""What is a part of the system: programs that root installed, and nothing that only looks like one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.needs import needs, require, skip_without
from tests.patience import PATIENCE_S
from tests.reclaim.conftest import Bench, machine
from tests.virtualgpu.conftest import HOLDER
from vram.errors import Protected
from vram.host.local import LocalHost
from vram.host.local.processes import LocalProc
from vram.model.process import ProcessFacts
from vram.protected import role
from vram.reclaim.identity import identify
from vram.units import GIB

__all__ = ["machine"]

pytestmark = needs("root", detail="only root is in danger of being fooled")

NOBODY = 65534
LOGIN = "/usr/bin/login"
SHELL = os.path.realpath("/bin/sh")
WAITS = "echo ready; read word"
DISGUISE = f"mount --bind {SHELL} {LOGIN}"
OWN_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount")


@contextmanager
def running(*argv: str, uid: int = NOBODY) -> Iterator[int]:
    """A process of somebody's that has said that it is ready; its pid."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, user=uid, group=uid, extra_groups=[], **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if process.stdout.readline() != b"ready\n":
                skip_without(
                    "namespaces", f"no such namespace may be made here: {process.stderr.read().decode()}"
                )
            yield process.pid
        finally:
            process.kill()


@contextmanager
def disguised() -> Iterator[int]:
    """An ordinary user's shell that runs as /usr/bin/login, a file of root's, in namespaces of its own."""
    require("unshare", "login")
    with running(*OWN_NAMESPACES, "sh", "-c", f"{DISGUISE} && exec {LOGIN} -c '{WAITS}'") as pid:
        yield pid


@contextmanager
def handed_over() -> Iterator[int]:
    """The same file, opened in those namespaces and executed outside of them."""
    outside = (*OWN_NAMESPACES, "sh", "-c", f"{DISGUISE} && exec 9<{LOGIN} && {WAITS}")
    with running(*outside) as pid, running("sh", "-c", f"exec /proc/{pid}/fd/9 -c '{WAITS}'") as other:
        yield other


@pytest.mark.fault(16)
@pytest.mark.parametrize("hostile", [disguised, handed_over])
def test_a_file_mounted_over_a_part_of_the_system_is_none(hostile) -> None:
    """For root too, who sees the path of the real one and a file that belongs to root."""
    with hostile() as pid:
        assert os.readlink(f"/proc/{pid}/exe") == LOGIN
        assert os.stat(f"/proc/{pid}/exe").st_uid == 0
        found = LocalProc().facts(pid)
        assert found is not None
        assert (found[1].executable, found[1].executable_trusted) == (LOGIN, False)
        assert role(pid, found[1]) is None
        assert identify(LocalHost(), pid).process.pid == pid


def test_memory_held_under_such_a_name_comes_back(machine: Bench) -> None:
    """Somebody holds a GPU as "login": vram names the process, plans its end and ends it."""
    python = os.path.realpath(sys.executable)
    setup = f'mount --bind {python} {LOGIN} && exec {LOGIN} "$@"'
    interpreter = {
        "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}",
        "LD_LIBRARY_PATH": f"{sysconfig.get_config_var('LIBDIR')}:{machine.environment()['LD_LIBRARY_PATH']}",
    }
    argv = [*OWN_NAMESPACES, "sh", "-c", setup, "sh", str(HOLDER), str(GIB), "0"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, env=machine.environment(**interpreter), **pipes) as holder:
        try:
            assert holder.stdout is not None
            if not holder.stdout.readline():
                skip_without("namespaces", "no such namespaces may be made here")
            (entry,) = (each for each in machine.why()["gpus"][0]["entries"] if each["kind"] == "process")
            assert (entry["holder"]["pid"], entry["holder"]["executable"]) == (holder.pid, LOGIN)
            done = machine.vram("kill", str(holder.pid), "--yes")
            assert done.returncode == 0, done.stderr
            assert holder.wait(PATIENCE_S) != 0
        finally:
            holder.kill()


# Runs as root in a mount namespace, where it installs Xorg, and tells how it judges those who run it.
JUDGE = """
import json, os, shutil, subprocess, sys
from vram.host.local.processes import LocalProc
from vram.protected import role
shell, waits = sys.argv[1:]
anybody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
shielded = ("unshare", "--mount")
contained = (*shielded, "sh", "-c", 'mount -t tmpfs none /opt && cp "$0" /opt/Xorg && exec "$@"', shell)

def installed(owner, mode):
    shutil.copy(shell, "/opt/fresh")
    os.chown("/opt/fresh", owner, 0)
    os.chmod("/opt/fresh", mode)
    os.rename("/opt/fresh", "/opt/Xorg")

def judged(*before, after=lambda: None):
    argv = [*before, "/opt/Xorg", "-c", waits]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        after()
        _, facts = LocalProc().facts(process.pid)
        assert facts.executable == "/opt/Xorg", facts
        process.kill()
    return facts.executable_trusted, role(process.pid, facts)

told = {}
installed(0, 0o755)
told["of root"] = judged()
told["of anybody"] = judged(*anybody)
told["of anybody, shielded"] = judged(*shielded, *anybody)
told["of root, in a container"] = judged(*contained)
told["of anybody, in a container"] = judged(*contained, *anybody)
told["replaced since"] = judged(*anybody, after=lambda: installed(0, 0o755))
installed(65534, 0o755)
told["somebody else's file"] = judged()
installed(0, 0o757)
told["changeable by all"] = judged()
print(json.dumps(told))
"""
PART = [True, "a display server or compositor"]
NO_PART = [False, None]


@pytest.fixture(scope="module")
def judgements() -> dict[str, list[object]]:
    setup = 'mount -t tmpfs none /opt && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", setup, "sh", sys.executable, "-c", JUDGE, SHELL, WAITS]
    require("unshare", "setpriv")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    if "mount: " in done.stderr:
        skip_without("mounts", f"nothing may be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    answer: dict[str, list[object]] = json.loads(done.stdout)
    return answer


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    ("program", "judgement"),
    [
        ("of root", PART),
        ("of anybody", PART),
        ("of anybody, shielded", PART),
        ("of root, in a container", PART),
        ("of anybody, in a container", NO_PART),
        ("replaced since", PART),
        ("somebody else's file", NO_PART),
        ("changeable by all", NO_PART),
    ],
)
def test_what_root_installed_is_a_part_of_the_system(judgements, program: str, judgement: list) -> None:
    """Whoever runs it, and in whichever mount namespace of root's; root may have replaced the file since."""
    assert judgements[program] == judgement


# The first process of its PID namespace: has login stopped at its first instruction, as debuggers do, and
# asks a vram with mounts of its own, where that file is hidden by another one.
FIRST = """
import ctypes, subprocess, sys
login, hide, code = sys.argv[1:]
trace_me = ctypes.CDLL(None).ptrace
started = subprocess.Popen([login], user=65534, group=65534, preexec_fn=lambda: trace_me(0, 0, 0, 0))
asked = [sys.executable, "-c", code, str(started.pid)]
subprocess.run(["unshare", "--mount", "sh", "-c", hide + ' && exec "$@"', "sh", *asked])
started.kill()
"""


def test_from_a_container_that_sees_the_machine_its_programs_are_told() -> None:
    """They are neither at the same path there nor in the same mount namespace, but in the first process's."""
    code = (
        "import sys; from vram.host.local.processes import LocalProc\n"
        "found = LocalProc().facts(int(sys.argv[1]))[1]; print(found.executable, found.executable_trusted)"
    )
    machine = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    argv = [*machine, sys.executable, "-c", FIRST, LOGIN, DISGUISE, code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    if "unshare: " in done.stderr or "mount: " in done.stderr or not os.path.exists(LOGIN):
        skip_without("namespaces", f"no such namespaces may be made here: {done.stderr}")
    assert (done.stdout, done.stderr) == (f"{LOGIN} True\n", "")


def test_the_kernels_threads_are_told_by_the_kernel() -> None:
    found = LocalProc().facts(2)
    if found is None or found[1].command != "kthreadd":
        skip_without("kernel", "the kernel's threads are not in sight here")
    assert found[1].kernel_thread
    with pytest.raises(Protected, match="a kernel thread"):
        identify(LocalHost(), 2)


def test_a_process_that_looks_like_one_is_none(tmp_path: Path) -> None:
    """A name in the kernel's manner, and, in a container, a parent with the kernel's number."""
    program = tmp_path / "kworker:0"
    shutil.copy(SHELL, program)
    with running(str(program), "-c", WAITS, uid=0) as pid:
        found = LocalProc().facts(pid)
        assert found is not None
        assert (found[1].command, found[1].kernel_thread) == ("kworker:0", False)
        hidden = msgspec.structs.replace(found[1], parent=2, executable=None)
        assert role(pid, hidden) is None


def test_of_older_snapshots_the_path_is_believed() -> None:
    """They tell neither whose the file was nor what the kernel called a thread; nothing is done by them."""
    older = b'{"type": "process", "command": "login", "executable": "/usr/bin/login"}'
    assert role(9, msgspec.json.decode(older, type=ProcessFacts)) == "a login service"
    thread = b'{"type": "process", "command": "kworker/0:1", "parent": 2}'
    assert role(9, msgspec.json.decode(thread, type=ProcessFacts)) == "a kernel thread"
