"""Programs that have given up system calls are killed for a call that vram makes in them: it makes none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs, skip_without
from tests.reach import sandbox
from tests.reach.conftest import SUBJECT, Subject, World, target_of
from vram.errors import CallsGivenUp, ExitCode, NotReachable, TargetDied
from vram.host.local.seccomp import given_up
from vram.reach import injection
from vram.reach.injectors import ask_trim, choose_injector
from vram.reach.payload import PayloadRequest
from vram.reach.target_process import examine

GIVEN_UP = [
    "kill-connect",
    "kill-clone",
    "kill-exec-memory",
    "trap-connect",
    "errno-connect",
    "beside:kill-connect",
    "strict",
]
MEASURE = PayloadRequest("trim", {"verb": "measure"})
SANDBOX = Path(sandbox.__file__)


@pytest.fixture(autouse=True)
def known_machine() -> None:
    if not sandbox.NUMBERS:
        skip_without("kernel", f"the numbers of system calls on {os.uname().machine} are not known here")


def is_alive(subject: Subject) -> bool:
    return "alive" in subject.ask()


@pytest.mark.fault(35)
@pytest.mark.parametrize("filters", GIVEN_UP)
def test_nobody_is_reached_who_may_be_killed_for_it(world: World, tmp_path: Path, filters: str) -> None:
    subject = world.subject("reading", f"gives-up={filters}")
    for words in (
        ("trim", subject.pid),
        ("inside", subject.pid),
        ("attach", subject.pid, "-o", tmp_path / "a.vram"),
    ):
        done = world.vram(*words)
        assert done.returncode == ExitCode.NOT_REACHABLE, (words, done.stdout, done.stderr)
        assert "seccomp" in done.stderr
        assert is_alive(subject)
    one = world.vram("why", subject.pid)
    assert one.returncode == ExitCode.OK, one.stderr
    assert "seccomp" in one.stdout
    everybody = world.vram("why", "--deep", "--json")
    assert everybody.returncode == ExitCode.OK, everybody.stderr
    assert "seccomp" in everybody.stdout
    assert is_alive(subject)


@pytest.mark.fault(35)
def test_an_agent_is_not_asked_either(world: World) -> None:
    subject = world.subject("reading", "agent", "gives-up=kill-clone")
    for via in ("agent", "ptrace"):
        assert world.vram("trim", subject.pid, "--via", via).returncode == ExitCode.NOT_REACHABLE
    assert is_alive(subject)


@pytest.mark.fault(35)
def test_the_interface_for_debuggers_is_not_used_either(world: World, python314: str) -> None:
    subject = world.subject("computing", "gives-up=kill-connect", python=python314)
    for words in (("trim", subject.pid), ("trim", subject.pid, "--via", "remote-exec")):
        assert world.vram(*words).returncode == ExitCode.NOT_REACHABLE
    assert is_alive(subject)


@pytest.mark.fault(35)
def test_a_program_that_gives_them_up_after_it_was_examined_is_not_written_to(world: World) -> None:
    subject = world.subject("reading", "gives-up=later:kill-connect")
    process = examine(target_of(subject.pid))
    assert "given_up" in subject.ask()
    with pytest.raises(NotReachable, match="seccomp"):
        injection.run(process, MEASURE, 5.0)
    assert is_alive(subject)


@needs("x86-64", detail="on aarch64 the virtual GPU's driver cannot park")
@pytest.mark.fault(35)
def test_even_a_stop_kills_one_that_waits_with_a_timeout(world: World) -> None:
    """So nothing is stopped to read its filters, and it is not parked."""
    subject = world.subject("sleeping", "gives-up=kill-restart")
    with pytest.raises(CallsGivenUp):
        choose_injector(target_of(subject.pid))
    done = world.vram("park", subject.pid)
    assert done.returncode == ExitCode.CANNOT_PARK, done.stderr
    assert "seccomp" in done.stderr
    assert world.vram("park").returncode == ExitCode.OK
    assert is_alive(subject)


@needs("root", detail="only root may act on other users' processes")
@pytest.mark.fault(35)
def test_root_does_not_reach_another_users_either(world: World) -> None:
    code = f"import os, sys; sys.path.insert(0, {str(SANDBOX.parent)!r}); import sandbox\n"
    code += "os.setgid(65534); os.setuid(65534); sandbox.give_up('kill-connect'); print(1, flush=True)\n"
    with world.popen([sys.executable, "-c", code + "print(input())"]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(CallsGivenUp):
            ask_trim(target_of(process.pid), "measure", 5.0)
        assert process.communicate(b"alive\n")[0] == b"alive\n"


# ---- filters of a container, which vram has too ----


@needs("root", detail="only root sets filters without giving up new privileges")
@needs("x86-64", detail="on aarch64 the virtual GPU's driver cannot park")
@pytest.mark.fault(35)
def test_filters_that_a_container_runtime_set_harm_nobody(world: World) -> None:
    """As in Docker: set by root, for a program that can never be that."""
    inside = [sys.executable, str(SANDBOX), "root:container"]
    subject = Subject(world.popen([*inside, sys.executable, str(SUBJECT), str(1 << 30), "reading"]))
    try:
        assert given_up(subject.pid) == "filters"  # from outside: these are not ours
        assert world.vram("park", subject.pid).returncode == ExitCode.OK
        assert world.vram("unpark", subject.pid).returncode == ExitCode.OK
        done = _vram_in(world, inside, "trim", subject.pid)
        assert done.returncode == ExitCode.OK, done.stderr
        assert is_alive(subject)
    finally:
        subject.close()


@pytest.mark.fault(35)
def test_filters_of_the_first_process_of_a_container_harm_nobody(world: World) -> None:
    """As in a pod that may not gain privileges: the first process, the program and vram have the same."""
    assert _in_a_namespace(world, "container", "reading") == [ExitCode.OK, True]


@pytest.mark.fault(35)
@pytest.mark.parametrize("filters", ["kill-connect", "container"])
def test_a_filter_of_its_own_counts_in_a_container_too(world: World, filters: str) -> None:
    found = _in_a_namespace(world, "container", "reading", f"gives-up={filters}")
    assert found == [ExitCode.NOT_REACHABLE, True]


def _vram_in(world: World, inside: list[str], *words: object) -> subprocess.CompletedProcess[str]:
    argv = [*inside, sys.executable, "-m", "vram", *map(str, words)]
    return subprocess.run(argv, env=world.environment, capture_output=True, text=True)


# The first process of a container: it starts a program and vram, and says how vram ended and whether the
# program still answers.
_FIRST = f"""
import json, subprocess, sys
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
program = subprocess.Popen([sys.executable, {str(SUBJECT)!r}, str(1 << 30), *sys.argv[1:]], **pipes)
program.stdout.readline()
asked = subprocess.run([sys.executable, "-m", "vram", "inside", str(program.pid)], stdout=subprocess.DEVNULL)
program.stdin.write("\\n")
program.stdin.flush()
print(json.dumps([asked.returncode, "alive" in program.stdout.readline()]), flush=True)
program.kill()
"""


def _in_a_namespace(world: World, filters: str, *words: str) -> list[object]:
    own = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    enter = ["unshare", *own, "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no new PID namespace may be made here")
    first = [sys.executable, str(SANDBOX), filters, sys.executable, "-c", _FIRST, *words]
    done = subprocess.run([*enter, *first], env=world.environment, capture_output=True, text=True)
    assert done.stdout, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- whoever ends while vram is in it ----


@pytest.mark.parametrize(
    ("dies_at", "words"),
    [
        ("socket.connect", ("trim",)),
        ("socket.connect", ("inside",)),
        ("socket.connect", ("why",)),
        ("collection", ("trim", "--collect")),
    ],
)
@pytest.mark.fault(35)
def test_a_program_that_ends_while_vram_is_in_it_is_a_failure(
    world: World, dies_at: str, words: tuple[str, ...]
) -> None:
    subject = world.subject("reading", f"dies-at={dies_at}")
    done = world.vram(words[0], subject.pid, *words[1:])
    assert done.returncode == ExitCode.PARTIAL, done.stdout
    assert f"pid {subject.pid} ended while vram was in it" in done.stderr
    assert subject.process.wait() == 9


@pytest.mark.fault(35)
def test_that_is_a_failure_by_its_agent_too(world: World) -> None:
    subject = world.subject("reading", "agent", "dies-at=collection")
    done = world.vram("trim", subject.pid, "--collect", "--via", "agent")
    assert (done.returncode, f"pid {subject.pid} ended" in done.stderr) == (ExitCode.PARTIAL, True)
    assert world.audit()[-1]["status"] == "failed"


@pytest.mark.fault(35)
def test_that_is_a_failure_by_the_interface_for_debuggers_too(world: World, python314: str) -> None:
    subject = world.subject("computing", "dies-at=socket.connect", python=python314)
    with pytest.raises(TargetDied):
        ask_trim(target_of(subject.pid), "measure", 10.0, via="remote-exec")


@pytest.mark.fault(35)
def test_looking_at_everybody_says_who_has_ended(world: World) -> None:
    subject = world.subject("reading", "dies-at=socket.connect")
    done = world.vram("why", "--deep")
    assert done.returncode == ExitCode.PARTIAL, done.stdout
    assert f"pid {subject.pid} ended while vram was in it" in done.stderr
