"""`vram attach` and its `--stop`: a recorder in processes that already run, and their unharmed work."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.needs import needs, require_python
from tests.patience import PATIENCE_S, until, until_readable
from tests.recording.conftest import PROGRAMS, Workplace
from vram.cpython_layouts import MINORS
from vram.errors import TimedOut
from vram.host.local import LocalHost
from vram.trace.attach import attach, detach
from vram.trace.reader import open_trace
from vram.units import MIB

ATTACHES = int(os.environ.get("VRAM_ATTACHES", "5"))
KILLS = int(os.environ.get("VRAM_ATTACH_KILLS", "3"))

# It holds 8 MiB, allocates and frees all the time in a thread or between lines, and answers every line.
WORKER = """
import select, sys, threading, time
sys.path.insert(0, {programs!r})
from program import *
context()
held = alloc(8 << 20)
rounds = 0
def work():
    global rounds
    check(cuda.cuCtxSetCurrent(made))
    while True:
        free(alloc(1 << 20))
        rounds += 1
        time.sleep(0.002)
made = context()
busy = sys.argv[1] == "busy"
if sys.argv[1] == "threads":
    for _ in range(3): threading.Thread(target=work, daemon=True).start()
say("ready")
while True:
    if busy:
        free(alloc(1 << 20))
        rounds += 1
        if not select.select([sys.stdin], [], [], 0)[0]: continue
    line = sys.stdin.readline()
    if not line: break
    if line.startswith("alloc"): kept = alloc(int(line.split()[1]))
    say(rounds, threading.active_count())
"""


class Worker:
    """A process that is attached to."""

    def __init__(self, work: Workplace, state: str, python: str = sys.executable) -> None:
        code = WORKER.format(programs=str(PROGRAMS))
        self.process = work.start([python, "-c", code, state], PYTHONPATH="")
        self.pid = self.process.pid
        assert self.hear() == "ready"

    def hear(self) -> str:
        assert self.process.stdout is not None
        until_readable(self.process.stdout, lambda: "it does not answer: it hangs")
        line = self.process.stdout.readline()
        assert line, f"it has ended: {self.process.wait()}"
        return line.strip()

    def ask(self, line: str = "") -> tuple[int, int]:
        """How many rounds it has done, and how many threads it knows."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        rounds, threads = self.hear().split()
        return int(rounds), int(threads)

    @property
    def tracer(self) -> int:
        return self._status("TracerPid")

    @property
    def threads(self) -> int:
        return self._status("Threads")

    def _status(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0])


@pytest.fixture
def here(work: Workplace, monkeypatch: pytest.MonkeyPatch) -> LocalHost:
    """This process, with private folders of the test's own, for tests that attach often."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(work.runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(work.state))
    return LocalHost()


def test_it_records_from_then_on_and_says_what_was_before(work: Workplace) -> None:
    worker = Worker(work, "idle")
    done = work.vram("attach", worker.pid, "-o", "trace.vram")
    assert done.returncode == 0, done.stderr
    assert f"recording pid {worker.pid} into trace.vram" in done.stderr
    assert re.search(r"it held 52\d\.0 MiB on its GPU 0 before, according to the driver", done.stderr)
    worker.ask("alloc 3000000")
    ended = work.vram("attach", worker.pid, "--stop")
    assert ended.returncode == 0, ended.stderr
    assert "trace.vram: " in ended.stderr
    worker.ask("alloc 5000000")
    view = work.view("trace.vram")
    (site,) = [each for each in view.allocations if each.kind == "device"]
    assert (site.count, site.nbytes) == (1, 3_000_000)
    assert view.processes[0].attached
    assert view.processes[0].end == "detached"
    (before,) = view.before
    assert before.gpu == 0
    assert [gpu.gpu for gpu in view.gpus] == [0]
    assert before.nbytes > 500 * MIB


def test_twice_says_that_it_is_recorded_already_and_where(work: Workplace) -> None:
    worker = Worker(work, "idle")
    assert work.vram("attach", worker.pid, "-o", "a.vram").returncode == 0
    again = work.vram("attach", worker.pid, "-o", "b.vram")
    assert again.returncode == 23
    assert "is being recorded already, into" in again.stderr
    assert "a.vram" in again.stderr
    assert work.files() == ["a.vram"]


def test_again_after_detaching_and_names_do_not_collide(work: Workplace) -> None:
    worker = Worker(work, "idle")
    for _ in range(2):
        assert work.vram("attach", worker.pid).returncode == 0
        assert work.vram("attach", worker.pid, "--stop").returncode == 0
    names = work.files()
    assert len(names) == 2
    assert all(work.view(name).processes[0].end == "detached" for name in names)


def test_nobody_to_detach_is_said(work: Workplace) -> None:
    worker = Worker(work, "idle")
    done = work.vram("attach", worker.pid, "--stop")
    assert done.returncode == 23
    assert f"pid {worker.pid} is not being recorded" in done.stderr


class TestForSomeTime:
    def test_it_ends_by_itself_and_vram_waits(self, work: Workplace) -> None:
        worker = Worker(work, "busy")
        done = work.vram("attach", worker.pid, "-o", "trace.vram", "--for", "0.3s")
        assert done.returncode == 0, done.stderr
        assert re.search(r"trace\.vram: [\d,]+ events of 1 process", done.stderr)
        assert work.view("trace.vram").processes[0].end == "detached"
        worker.ask()

    def test_also_where_vram_is_killed_meanwhile(self, work: Workplace) -> None:
        worker = Worker(work, "idle")
        process = work.start_vram("attach", worker.pid, "-o", "trace.vram", "--for", "1.5s")
        assert process.stderr is not None
        assert process.stderr.readline().startswith("vram: recording")
        process.kill()
        process.wait()
        until(lambda: work.view("trace.vram").processes[0].end == "detached")
        worker.ask()

    def test_ctrl_c_ends_the_recording(self, work: Workplace) -> None:
        worker = Worker(work, "idle")
        process = work.start_vram("attach", worker.pid, "-o", "trace.vram", "--for", "1h")
        assert process.stderr is not None
        assert process.stderr.readline().startswith("vram: recording")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
        assert process.returncode == 0, said
        assert work.view("trace.vram").processes[0].end == "detached"

    def test_a_timer_leaves_a_later_recording_alone(self, work: Workplace) -> None:
        worker = Worker(work, "idle")
        usual = worker.threads
        assert any(self.is_ended_before_its_timer(work, worker, timer) for timer in ("2s", "10s", "60s"))
        assert work.vram("attach", worker.pid, "-o", "b.vram").returncode == 0
        until(lambda: worker.threads == usual)  # the first timer has ended
        assert work.vram("attach", worker.pid, "--stop").returncode == 0

    @staticmethod
    def is_ended_before_its_timer(work: Workplace, worker: Worker, timer: str) -> bool:
        """On a busy machine a short timer comes first."""
        first = work.start_vram("attach", worker.pid, "-o", f"{timer}.vram", "--for", timer)
        assert first.stderr is not None
        first.stderr.readline()
        detached = work.vram("attach", worker.pid, "--stop").returncode
        first.communicate()
        assert first.returncode == 0
        return detached == 0

    @pytest.mark.parametrize("text", ["0", "0s", "soon", "-1s", "60", "5m", "15d", ""])
    def test_wrong_durations(self, work: Workplace, text: str) -> None:
        assert work.vram("attach", "1", "--for", text).returncode == 2

    def test_the_end_of_the_process_ends_it(self, work: Workplace) -> None:
        worker = Worker(work, "idle")
        process = work.start_vram("attach", worker.pid, "-o", "trace.vram", "--for", "1h")
        assert process.stderr is not None
        process.stderr.readline()
        worker.process.communicate()
        _, said = process.communicate()
        assert process.returncode == 0, said
        assert work.view("trace.vram").processes[0].end == "exit"


# As root it imports what an attempt needs: the other user may not be able to read vram's files.
AS_ANOTHER_USER = """
import os, sys
from vram.errors import NotPermitted
from vram.host.local import LocalHost
from vram.reclaim.identity import identify
from vram.trace.attach import attach
pid, folder = int(sys.argv[1]), sys.argv[2]
os.chmod(folder, 0o777)
identify(LocalHost(), pid)
os.setgroups([])
os.setresuid(65534, 65534, 65534)
try:
    attach(LocalHost(), pid, f"{folder}/theirs.vram")
except NotPermitted as error:
    print(error)
"""


class TestRefused:
    def test_a_process_without_a_thread_at_rest(self, work: Workplace) -> None:
        """A sleep has a deadline, which the wait once more would put off."""
        other = work.start(["sleep", "600"])
        done = work.vram("attach", other.pid)
        assert done.returncode == 14
        assert "none of its threads waits in a system call without a deadline" in done.stderr
        assert "`vram run -- COMMAND` records a program" in done.stderr

    def test_nobody(self, work: Workplace) -> None:
        assert work.vram("attach", 2**22 - 1).returncode == 10

    def test_vram_itself(self, work: Workplace) -> None:
        assert work.vram("attach", os.getpid()).returncode == 13

    @pytest.mark.parametrize("name", ["/proc/trace.vram", "/nonexistent/trace.vram"])
    def test_a_folder_that_the_process_cannot_write_to(self, work: Workplace, name: str) -> None:
        worker = Worker(work, "idle")
        done = work.vram("attach", worker.pid, "-o", name)
        assert done.returncode == 23
        assert "cannot write the trace" in done.stderr
        worker.ask()

    def test_a_file_that_exists(self, work: Workplace) -> None:
        worker = Worker(work, "idle")
        (work.folder / "mine").write_text("precious")
        done = work.vram("attach", worker.pid, "-o", "mine")
        assert done.returncode == 23
        assert (work.folder / "mine").read_text() == "precious"

    def test_no_cupti(self, work: Workplace) -> None:
        for name in ("libcupti.so", "libcupti.so.12", "libcupti.so.13"):
            file = work.gpu.folder / "lib" / name
            file.unlink(missing_ok=True)
            file.write_text("none")
        worker = Worker(work, "idle")
        done = work.vram("attach", worker.pid, "-o", "trace.vram", CUDA_HOME="/nonexistent")
        assert done.returncode == 23
        assert "pip install nvidia-cuda-cupti" in done.stderr
        assert work.files() == []
        worker.ask()

    @needs("root", detail="only root can be another user, too")
    def test_another_users_process(self, work: Workplace, here: LocalHost) -> None:
        worker = Worker(work, "idle")
        done = work.start([sys.executable, "-c", AS_ANOTHER_USER, str(worker.pid), str(work.folder)])
        said, errors = done.communicate(timeout=PATIENCE_S)
        assert said == f"pid {worker.pid} belongs to root\n", errors
        assert work.files() == []
        worker.ask()


def test_a_process_that_has_not_used_cuda_yet(work: Workplace) -> None:
    code = "import sys; print('ready', flush=True); sys.stdin.readline()\n"
    code += "from program import *; context(); alloc(7000); say('done'); sys.stdin.readline()"
    process = work.start([sys.executable, "-c", code])
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    done = work.vram("attach", process.pid, "-o", "trace.vram")
    assert done.returncode == 0, done.stderr
    assert "it has not used CUDA yet" in done.stderr
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"
    process.communicate("\n")
    view = work.view("trace.vram")
    assert [site.nbytes for site in view.allocations if site.kind == "device"] == [7000]


def test_one_that_vram_run_launched_can_be_detached(work: Workplace) -> None:
    code = (
        "from program import *\ncontext(); alloc(1000); say(os.getpid()); sys.stdin.readline(); alloc(2000)"
    )
    process = work.start_vram("run", "-o", "trace.vram", "--", sys.executable, "-c", code)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert work.vram("attach", pid, "--stop").returncode == 0
    _, said = process.communicate("\n")
    assert process.returncode == 0, said
    assert work.files() == ["trace.vram"]
    view = work.view("trace.vram")
    assert [site.nbytes for site in view.allocations if site.kind == "device"] == [1000]
    assert view.processes[0].end == "detached"


def test_every_step_is_in_the_audit_log(work: Workplace) -> None:
    worker = Worker(work, "idle")
    work.vram("attach", worker.pid, "-o", "trace.vram")
    work.vram("attach", worker.pid, "--stop")
    log = (work.state / "vram" / "audit.jsonl").read_text()
    assert [re.search(r'"action":"(\w+)"', line)[1] for line in log.splitlines() if "intend" in line] == [  # type: ignore[index]
        "attach",
        "detach",
    ]
    assert log.count('"status":"done"') == 2


@pytest.mark.fault(20)
@pytest.mark.parametrize("version", [f"3.{minor}" for minor in MINORS])
def test_every_python_is_reached_and_goes_on(work: Workplace, here: LocalHost, version: str) -> None:
    worker = Worker(work, "threads", require_python(version))
    _, threads = worker.ask()
    for number in range(2):
        attach(here, worker.pid, str(work.folder / f"{number}.vram"), deadline_s=PATIENCE_S)
        before, _ = worker.ask()
        until(lambda before=before: worker.ask()[0] > before)
        detach(here, worker.pid, deadline_s=PATIENCE_S)
    assert worker.ask()[1] == threads
    for name in work.files():
        view = work.view(name)
        (site,) = [each for each in view.allocations if each.kind == "device"]
        frames = view.stacks[site.stack].frames
        assert [frame.function for frame in frames[:2]] == ["alloc", "work"]
        assert view.processes[0].end == "detached"


@pytest.mark.fault(20)
@pytest.mark.parametrize("state", ["busy", "threads"])
def test_again_and_again_under_load_no_harm_is_done(
    work: Workplace, here: LocalHost, state: str, tally: Tally
) -> None:
    """VRAM_ATTACHES=1000 makes it as long as the promise is."""
    worker = Worker(work, state)
    for number in range(ATTACHES):
        path = work.folder / f"{number}.vram"
        try:
            attach(here, worker.pid, str(path), deadline_s=PATIENCE_S)
            detach(here, worker.pid, deadline_s=PATIENCE_S)
        except TimedOut:  # the machine is too busy: nothing was done, and that is what must hold
            tally.count(landed=0)
        else:
            tally.count()
            assert open_trace([path]).view().processes[0].end == "detached"
            path.unlink()
        assert worker.tracer == 0
        worker.ask()
    before, _ = worker.ask()
    until(lambda: worker.ask()[0] > before)


@pytest.mark.fault(10, 20)
def test_a_vram_that_is_killed_at_any_moment_does_no_harm(work: Workplace, tally: Tally) -> None:
    """VRAM_ATTACH_KILLS=1000 makes it as long as the promise is."""
    worker = Worker(work, "threads")
    chance = random.Random(20)
    for number in range(KILLS):
        process = work.start_vram("attach", worker.pid, "-o", f"{number}.vram")
        try:
            process.wait(chance.uniform(0.1, 0.8))
            landed = 0
        except subprocess.TimeoutExpired:
            process.kill()
            landed = 1
        process.communicate()
        assert worker.tracer == 0
        before, _ = worker.ask()
        until(lambda before=before: worker.ask()[0] > before)
        tally.count(landed=landed)
        work.vram("attach", worker.pid, "--stop")  # whether it was recording by then or not
    assert work.vram("attach", worker.pid, "-o", "last.vram").returncode == 0
    assert work.vram("attach", worker.pid, "--stop").returncode == 0
    for name in work.files():
        assert work.view(name).processes[0].end == "detached"
