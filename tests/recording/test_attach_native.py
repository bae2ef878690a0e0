"""`vram attach` to a program without Python: its functions are in the trace, and its work goes on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.needs import require
from tests.patience import PATIENCE_S, until, until_readable
from tests.recording.conftest import VRAM, Workplace

SOURCE = Path(__file__).with_name("churning.c")


class Churning:
    """The program, and how many rounds of work it has done."""

    def __init__(self, work: Workplace, program: Path) -> None:
        self.process = work.start([str(program)])
        self.pid = self.process.pid
        assert self._hear() == "ready"

    def _hear(self) -> str:
        assert self.process.stdout is not None
        until_readable(self.process.stdout, lambda: "it does not answer: it hangs")
        line = self.process.stdout.readline()
        assert line, f"it has ended: {self.process.wait()}"
        return line.strip()

    def rounds(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self._hear())

    def work_for(self, rounds: int) -> None:
        enough = self.rounds() + rounds
        until(lambda: self.rounds() >= enough)

    def is_loaded(self, name: str) -> bool:
        return name in Path(f"/proc/{self.pid}/maps").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("cc")
    program = tmp_path_factory.mktemp("churning") / "churning"
    line = ["cc", "-O1", "-g", "-rdynamic", str(SOURCE), "-o", str(program), "-pthread", "-ldl"]
    subprocess.run(line, check=True)
    return program


@pytest.fixture
def churning(work: Workplace, built: Path) -> Churning:
    return Churning(work, built)


def test_its_functions_are_recorded(work: Workplace, churning: Churning) -> None:
    begun = work.vram("attach", churning.pid, "-o", "trace.vram")
    assert begun.returncode == 0, begun.stderr
    assert "before, according to the driver" in begun.stderr
    churning.work_for(100)
    stopped = work.vram("attach", churning.pid, "--stop")
    assert stopped.returncode == 0, stopped.stderr
    view = work.view("trace.vram")
    assert view.events >= 200
    report = work.vram("report", "leaks", "trace.vram").stdout
    assert "leak_here" in report
    assert "churn_here" not in report
    until(lambda: not churning.is_loaded("visitor.so"))
    assert churning.is_loaded("libvramtracer.so"), "the recorder's library stays, as the guide says"
    churning.work_for(10)


def test_a_second_recording_is_refused_and_a_later_one_begins(work: Workplace, churning: Churning) -> None:
    assert work.vram("attach", churning.pid, "-o", "one.vram").returncode == 0
    again = work.vram("attach", churning.pid, "-o", "two.vram")
    assert "is being recorded already" in again.stderr
    assert work.vram("attach", churning.pid, "--stop").returncode == 0
    assert "is not being recorded" in work.vram("attach", churning.pid, "--stop").stderr
    assert work.vram("attach", churning.pid, "-o", "two.vram").returncode == 0
    churning.work_for(20)
    assert work.vram("attach", churning.pid, "--stop").returncode == 0
    assert work.view("two.vram").events >= 40


def test_it_stops_by_itself(work: Workplace, churning: Churning) -> None:
    """Also when vram is killed meanwhile: the timer is the recorder's own."""
    running = work.start([*VRAM, "attach", str(churning.pid), "-o", "trace.vram", "--for", "1s"])
    until(lambda: (work.folder / "trace.vram").exists())
    churning.work_for(20)
    running.kill()
    running.wait(PATIENCE_S)
    # While it records, no other recording begins.
    until(lambda: not work.vram("attach", churning.pid, "-o", "next.vram").returncode, max_pause_s=0.5)
    assert work.view("trace.vram").events
    churning.work_for(10)


def test_a_file_that_it_cannot_write_is_an_answer(work: Workplace, churning: Churning) -> None:
    (work.folder / "there").write_text("mine")
    done = work.vram("attach", churning.pid, "-o", "there")
    assert "exists already" in done.stderr
    done = work.vram("attach", churning.pid, "-o", "/proc/no-such-folder/trace")
    assert "cannot write the trace" in done.stderr
    assert (work.folder / "there").read_text() == "mine"
    churning.work_for(10)


def test_frameworks_are_pythons(work: Workplace, churning: Churning) -> None:
    done = work.vram("attach", churning.pid, "-o", "trace.vram", "--framework", "torch")
    assert done.returncode == 2
    assert "not a Python process" in done.stderr
    assert not (work.folder / "trace.vram").exists()
