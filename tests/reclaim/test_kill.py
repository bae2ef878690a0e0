"""SIGTERM, grace, SIGKILL, bytes read again; and whom nobody may touch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ghosts.conftest import is_charge
from tests.needs import needs, require, skip_without
from tests.reclaim.conftest import Bench
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

STUCK = Path(__file__).with_name("stuck.py")
needs_root = needs("root")

# Holds a GiB and does not end when asked to.
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
HOLDER = "import driver, protocol, sys; driver.context(); driver.alloc(1 << 30)\n"
WAITS = "protocol.ready('allocated'); protocol.wait()"


def start(machine: Bench, code: str, *words: str, **options: object) -> subprocess.Popen[bytes]:
    """Start a program that holds GPU memory, and wait until it does."""
    actor = machine.popen(
        [sys.executable, "-c", code, *words],
        cwd=PROGRAMS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **options,
    )
    assert actor.stdout is not None
    assert actor.stdout.readline()
    return actor


def end(actor: subprocess.Popen[bytes]) -> None:
    actor.kill()
    actor.communicate()


def test_a_named_process_ends_and_its_bytes_are_measured(machine: Bench):
    demo = machine.demo("memory.plain", 1 * GIB)
    answer = machine.ask("kill", str(demo.pids["self"]), "--yes")
    (outcome,) = answer["receipt"]["outcomes"]
    assert (outcome["status"], outcome["message"]) == ("done", "it exited after SIGTERM")
    returned = answer["receipt"]["returned_bytes"]
    # What a context costs beyond its charge comes back with it.
    assert is_charge(returned, 1 * GIB)
    assert returned >= answer["receipt"]["promised_bytes"]


@pytest.mark.fault(18)
def test_who_ignores_sigterm_gets_grace_and_then_sigkill(machine: Bench):
    deaf = start(machine, DEAF + HOLDER + WAITS)
    try:
        answer = machine.ask("kill", str(deaf.pid), "--yes", "--grace", "0.3s")
        (outcome,) = answer["receipt"]["outcomes"]
        assert outcome["status"] == "done"
        assert "killed (SIGKILL)" in outcome["message"]
        assert outcome["took_s"] >= 0.3
        assert deaf.wait() == -9
        assert is_charge(answer["receipt"]["returned_bytes"], 1 * GIB)
    finally:
        end(deaf)


EXECS = """
import os
def again(*_): os.execv(sys.executable, [sys.executable, '-c', 'print("anew", flush=True); input()'])
"""
LEADER_LEAVES = """
import ctypes, os, threading
def leave(*_): os.write(1, b'left\\n'); ctypes.CDLL(None).syscall(60, 0)
threading.Thread(target=ctypes.CDLL(None).pause, daemon=True).start()
"""
AT_SIGTERM = "import signal; signal.signal(signal.SIGTERM, {})\n"


@pytest.mark.fault(13, 18)
def test_who_becomes_another_program_when_asked_to_end_is_left_alone_and_that_is_told(machine: Bench):
    """It took SIGTERM: that is no refusal."""
    actor = start(machine, HOLDER + EXECS + AT_SIGTERM.format("again") + WAITS)
    try:
        done = machine.vram("kill", str(actor.pid), "--yes", "--grace", "2s", "--json")
        assert done.returncode == 3
        (outcome,) = json.loads(done.stdout)["receipt"]["outcomes"]
        assert outcome["status"] == "failed"
        assert outcome["message"].startswith(f"pid {actor.pid} was sent SIGTERM and nothing more")
        assert [each.get("status") for each in machine.audit()] == [None, "failed"]
        assert actor.poll() is None
    finally:
        end(actor)


def test_threads_that_live_on_without_their_leader_are_ended(machine: Bench):
    actor = start(machine, HOLDER + LEADER_LEAVES + AT_SIGTERM.format("leave") + WAITS)
    try:
        answer = machine.ask("kill", str(actor.pid), "--yes", "--grace", "2s")
        (outcome,) = answer["receipt"]["outcomes"]
        assert outcome["status"] == "done"
        assert "killed (SIGKILL)" in outcome["message"]
        assert actor.stdout is not None
        assert actor.stdout.readline() == b"left\n"
        assert actor.wait() == -9
        assert is_charge(answer["receipt"]["returned_bytes"], 1 * GIB)
    finally:
        end(actor)


def test_who_lives_on_without_its_leader_is_known_and_asked_like_others(machine: Bench):
    actor = start(machine, HOLDER + LEADER_LEAVES + "leave()\n")
    try:
        answer = machine.ask("kill", str(actor.pid), "--yes", "--grace", "30s")
        assert answer["receipt"]["outcomes"][0]["message"] == "it exited after SIGTERM"
        assert actor.wait() == -15
        assert is_charge(answer["receipt"]["returned_bytes"], 1 * GIB)
    finally:
        end(actor)


def test_a_stopped_process_takes_sigterm_and_may_clean_up(machine: Bench):
    """It is continued after the signal, so that its handlers run."""
    demo = machine.demo("signals.stopped", 1 * GIB)
    answer = machine.ask("kill", str(demo.pids["worker"]), "--yes", "--grace", "30s")
    assert answer["receipt"]["outcomes"][0]["message"] == "it exited after SIGTERM"


@pytest.mark.fault(4)
@needs_root
def test_state_d_is_unkillable_and_said_once(machine: Bench):
    """A process that waits inside the kernel: no signal ends it, and nobody tries again."""
    require("unshare")
    machine.require_virtual("a file system is made that never answers")
    if not os.path.exists("/dev/fuse"):
        skip_without("fuse", "there is no /dev/fuse")
    code = HOLDER + "import os; print('waits', flush=True); os.stat(sys.argv[1])"
    stuck = machine.popen(
        ["unshare", "--mount", sys.executable, str(STUCK), sys.executable, "-c", code],
        cwd=PROGRAMS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert stuck.stdout is not None
    try:
        lines = [stuck.stdout.readline() for _ in range(2)]
        if b"waits\n" not in lines:
            skip_without("fuse", "FUSE may not be mounted here")
        pid = next(line for line in lines if line != b"waits\n").decode().strip()
        done = machine.vram("kill", pid, "--yes", "--grace", "0.1s", "--json")
        assert done.returncode == 3
        (outcome,) = json.loads(done.stdout)["receipt"]["outcomes"]
        assert outcome["status"] == "unkillable"
        assert "it is waiting in the kernel (state D)" in outcome["message"]
        signals = [each for each in machine.audit() if each["event"] == "outcome"]
        assert [each["status"] for each in signals] == ["unkillable"]
        # Now that the kernel holds it, the plan itself says so.
        (skipped,) = machine.ask("free", "--up-to", "kill", "--dry-run")["skipped"]
        assert "signals have no effect now" in skipped["why"]
    finally:
        stuck.communicate()


def test_who_is_on_a_gpu_that_does_not_answer_can_be_ended_and_nothing_is_promised(machine: Bench):
    demo = machine.demo("memory.plain", 1 * GIB)
    machine.fault("nvmlDeviceGet* gpu=0 error=GPU_IS_LOST")
    answer = machine.ask("kill", str(demo.pids["self"]), "--yes")
    (outcome,) = answer["receipt"]["outcomes"]
    assert (outcome["status"], outcome["step"]["predicted_bytes"]) == ("done", None)
    assert (answer["receipt"]["promised_bytes"], answer["receipt"]["returned_bytes"]) == (None, None)


def test_who_is_only_on_a_gpu_that_does_not_answer_is_found_again_when_the_plan_runs(
    two_virtual_gpus: VirtualGpu, tmp_path: Path
):
    """The plan measures the other GPU, on which the process has no file open."""
    bench = Bench(two_virtual_gpus.environment(), tmp_path / "state", real=False)
    actor = start(bench, HOLDER + WAITS, env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"})
    try:
        two_virtual_gpus.add_fault("nvmlDeviceGet* gpu=1 error=GPU_IS_LOST")
        answer = bench.ask("kill", str(actor.pid), "--yes")
        assert (answer["plan"]["gpus"], answer["plan"]["steps"][0]["gpus"]) == ([0], [1])
        assert answer["receipt"]["outcomes"][0]["status"] == "done"
        assert actor.wait() == -15
    finally:
        end(actor)
        bench.close()


def test_nobody_is_ended_for_a_size_that_the_gpu_cannot_tell(machine: Bench):
    demo = machine.demo("memory.plain", 1 * GIB)
    pid = demo.pids["self"]
    machine.fault("nvmlDeviceGet* gpu=0 error=GPU_IS_LOST")
    done = machine.vram("free", "--more", "1GiB", "--pid", str(pid), "--yes")
    assert done.returncode == 3
    assert f"GPU 0 does not answer: what pid {pid} would free is unknown" in done.stderr
    assert not machine.audit()


def test_a_stranger_to_a_gpu_that_does_not_answer_is_not_called_free_of_it(machine: Bench):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    machine.fault("nvmlDeviceGet* gpu=0 error=GPU_IS_LOST")
    try:
        done = machine.vram("kill", str(other.pid), "--yes")
        assert done.returncode == 3
        assert f"whether pid {other.pid} holds memory there is unknown" in done.stderr
    finally:
        other.communicate()


def test_a_pid_that_does_not_exist(machine: Bench):
    done = machine.vram("kill", "2147483646", "--yes")
    assert (done.returncode, done.stdout) == (10, "")
    assert "there is no process 2147483646" in done.stderr
    assert not machine.state.exists()


def test_a_process_without_gpu_memory(machine: Bench):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        done = machine.vram("kill", str(other.pid), "--yes")
        assert done.returncode == 11
        assert "holds no memory on any GPU" in done.stderr
        assert other.poll() is None
    finally:
        other.communicate()


def test_an_empty_digest_does_not_stand_for_any(machine: Bench):
    """As an unset variable of a script gives it."""
    demo = machine.demo("memory.plain", 1 * GIB)
    done = machine.vram("kill", str(demo.pids["self"]), "--yes", "--digest", "")
    assert (done.returncode, done.stdout) == (2, "")
    os.kill(demo.pids["self"], 0)
    assert not machine.audit()


@pytest.mark.parametrize("word", ["0", "-1", "abc", "99999999999", ""])
def test_what_is_no_pid_is_a_usage_error(machine: Bench, word: str):
    assert machine.vram("kill", "--yes", "--", word).returncode == 2


@pytest.mark.fault(16)
def test_our_own_ancestors_are_protected(machine: Bench):
    done = machine.vram("kill", str(os.getpid()), "--yes")
    assert done.returncode == 13
    assert [each["event"] for each in machine.audit()] == ["refused"]


@pytest.mark.fault(16)
@needs_root
def test_a_part_of_the_system_is_protected_from_root_whatever_is_asked(machine: Bench):
    """A display server that holds GPU memory, by the path of its real executable."""
    require("unshare")
    machine.require_virtual("a program is installed for the time of the test")
    library = "import os, sys; os.execv('/opt/Xorg', ['Xorg', *sys.argv[1:]])"
    setup = 'mount -t tmpfs none /opt && cp "$0" /opt/Xorg && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", setup, os.path.realpath(sys.executable)]
    home = {"PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"}
    server = machine.popen(
        [*argv, sys.executable, "-c", library, "-c", HOLDER + WAITS],
        cwd=PROGRAMS,
        env={**os.environ, **home},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    try:
        if not server.stdout.readline():
            skip_without("mounts", "no folder can be mounted here for the time of a test")
        pid = str(server.pid)
        assert os.readlink(f"/proc/{pid}/exe") == "/opt/Xorg"
        for words in (
            ("kill", pid),
            ("free", "--more", "1GiB", "--pid", pid),
            ("free", "--pid", pid, "--up-to", "kill"),
        ):
            done = machine.vram(*words, "--yes")
            assert done.returncode == 13, done.stdout
            assert "display server" in done.stderr
        skipped = machine.ask("free", "--finding", "VR206", "--up-to", "kill", "--yes")
        assert not skipped["plan"]["steps"]
        assert server.poll() is None
        assert {each["event"] for each in machine.audit()} == {"refused"}
    finally:
        end(server)


@pytest.fixture
def records() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.fault(15)
@needs_root
def test_someone_elses_process_is_denied_and_that_is_written_down(machine: Bench, records: Path):
    """An ordinary user names root's process; what is said is what anybody can see."""
    machine.require_virtual("its folder is opened for this")
    demo = machine.demo("memory.plain", 1 * GIB)
    pid = demo.pids["self"]
    os.chown(records, 65534, 65534)
    # The interpreter may lie where other users may not go: it changes its user once all is imported.
    code = (
        "import os, sys\n"
        "import vram.reclaim.audit; from vram.reclaim import identity\n"
        "from argparse import Namespace; from vram.cli import reclaiming\n"
        "from vram.host.local import LocalHost\n"
        "host = LocalHost(); host.facts(); host.signals.self_and_ancestors()\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "args = Namespace(yes=True, dry_run=False, json=False, digest=None, pid=[int(sys.argv[1])])\n"
        "def make(): return identity.identify(host, args.pid[0])\n"
        "try: reclaiming.reclaim(args, reclaiming.LocalReclaimer(args, host, make))\n"
        "except Exception as error: print(int(error.exit_code), error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(pid)],
        env=machine.environment(XDG_STATE_HOME=str(records)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"12 pid {pid} belongs to root\n", done.stderr
    log = (records / "vram" / "audit.jsonl").read_text()
    assert f'"pids":[{pid}]' in log
    assert '"uid":65534' in log
    os.kill(pid, 0)


def test_ending_one_of_several_holders_promises_nothing(machine: Bench):
    demo = machine.demo("forks.orphan", 1 * GIB)
    parent, child = demo.pids["parent"], demo.pids["child"]
    alone = machine.ask("kill", str(parent), "--dry-run")
    assert [step["predicted_bytes"] for step in alone["plan"]["steps"]] == [0]
    assert f"until pid {child}" in alone["plan"]["steps"][0]["reason"]
    both = machine.ask("kill", str(parent), str(child), "--dry-run")
    first, last = (step["predicted_bytes"] for step in both["plan"]["steps"])
    assert first == 0
    assert is_charge(last, 1 * GIB)
