"""``vram report`` on traces of real programs on a virtual GPU: the lines that they name."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from jsonschema import validate

from tests.cli.conftest import Run
from tests.cli.trace_programs import LEAKY
from tests.needs import needs
from tests.patience import PATIENCE_S
from tests.trace.writer import TraceFile
from vram.errors import ExitCode
from vram.report.schema import shipped
from vram.units import MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

LIBRARY = Path(__file__).parents[2] / "src" / "vram" / "trace" / "lib" / "libvramtracer.so"
LINES = LEAKY.splitlines()


def line_of(text: str) -> int:
    (number,) = [at for at, line in enumerate(LINES, 1) if text in line]
    return number


class Recorded(NamedTuple):
    """A trace of the program, and how long its list had become."""

    path: str
    grown: int

    @property
    def live(self) -> int:
        return 4 * 64 * MIB + self.grown * 16 * MIB


def recorded(folder: Path, least: int) -> Recorded:
    """Run the program on a virtual GPU of its own until its list has at least so many allocations."""
    program = folder / "leaky.py"
    program.write_text(LEAKY)
    with VirtualGpu.create() as gpu:
        environment = {
            **gpu.environment(),
            "PYTHONPATH": str(PROGRAMS),
            "CUDA_INJECTION64_PATH": str(LIBRARY),
            "VRAM_TRACE_OUTPUT": str(folder / "trace"),
        }
        argv = [sys.executable, str(program), str(least)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    (part,) = folder.glob("trace.*.part")
    return Recorded(str(part.rename(folder / "leaky.vram")), int(done.stdout))


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory, native_libraries: Path) -> Recorded:
    return recorded(tmp_path_factory.mktemp("before"), 12)


@pytest.fixture(scope="module")
def trace(leaky: Recorded) -> str:
    return leaky.path


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory, leaky: Recorded) -> Recorded:
    return recorded(tmp_path_factory.mktemp("after"), leaky.grown + 8)


# ---- what it says of a program whose lines are known ----


def test_the_summary_names_the_planted_lines(vram: Run, trace: str) -> None:
    code, out, err = vram("report", trace)
    assert (code, err) == (ExitCode.OK, "")
    assert f"remember  leaky.py:{line_of('history.append')}" in out
    assert "in use at exit, no sign of a leak" in out
    assert "1 failed allocation" in out
    assert all(len(line) <= 80 or str(Path(trace).parent) in line for line in out.splitlines())


def test_leaks_are_those_that_were_planted(vram: Run, leaky: Recorded) -> None:
    """Each by its line, and none invented."""
    code, out, _ = vram("report", "leaks", "--by", "stack", "--json", leaky.path)
    assert code == ExitCode.OK
    answer = json.loads(out)
    validate(answer, json.loads(shipped("report").read_bytes()))
    found = {}
    for each in answer["leaks"]:
        frames = answer["stacks"][each["row"]["stack"]]["frames"]
        line = next(frame["line"] for frame in frames if frame["file"].endswith("leaky.py"))
        found[line] = (each["verdict"], each["row"]["nbytes"], each["row"]["count"])
    assert found == {
        line_of("history.append"): ("growing", leaky.grown * 16 * MIB, leaky.grown),
        line_of("driver.alloc(64"): ("in use at exit", 4 * 64 * MIB, 4),
        line_of("driver.alloc(32"): ("leaked", 32 * MIB, 1),
    }


def test_the_peak_adds_up(vram: Run, leaky: Recorded) -> None:
    answer = json.loads(vram("report", "peak", "--json", leaky.path).out)
    (gpu,) = answer["gpus"]
    assert sum(row["nbytes"] for row in answer["peak"]) == gpu["peak_nbytes"]
    assert gpu["peak_nbytes"] == leaky.live
    assert f"leaky.py:{line_of('history.append')}\n" in vram("report", "peak", "--tree", leaky.path).out


@pytest.mark.parametrize("view", ["timeline", "churn", "frag", "peak", "leaks"])
def test_every_view_answers(vram: Run, trace: str, view: str) -> None:
    for options in ([], ["--ascii"], ["-v"], ["--limit", "1"], ["--gpu", "0"], ["--json"]):
        code, out, err = vram("report", view, *options, trace)
        assert (code, err) == (ExitCode.OK, ""), options
        assert out


def test_churn_is_what_was_freed_at_once(vram: Run, trace: str) -> None:
    (row,) = json.loads(vram("report", "churn", "--json", "--by", "stack", trace).out)["churn"]
    assert (row["row"]["count"], row["row"]["nbytes"]) == (32, 32 * 8 * MIB)


def test_the_difference_of_two_runs_is_what_grew(vram: Run, leaky: Recorded, longer: Recorded) -> None:
    """Also where the program lies in another folder."""
    code, out, _ = vram("report", "diff", leaky.path, longer.path, "--json")
    assert code == ExitCode.OK
    answer = json.loads(out)
    validate(answer, json.loads(shipped("report-diff").read_bytes()))
    (row,) = answer["at_peak"]
    assert (row["before_nbytes"], row["after_nbytes"]) == (leaky.grown * 16 * MIB, longer.grown * 16 * MIB)
    assert row["caller"]["function"] == "remember"
    assert "remember  leaky.py" in vram("report", "diff", leaky.path, longer.path).out


def test_which_cards_it_fits(vram: Run, leaky: Recorded) -> None:
    code, out, _ = vram("report", "fit", leaky.path, "--json")
    assert code == ExitCode.OK
    answer = json.loads(out)
    validate(answer, json.loads(shipped("report-fit").read_bytes()))
    assert answer["fit"]["needs"][0]["live_nbytes"] == leaky.live
    short = vram("report", "fit", leaky.path).out
    assert short.startswith("The smallest card that fits is RTX 4060 (8.0 GiB): ")
    assert short.count("RTX ") == 1
    assert "RTX 4090" in vram("report", "fit", "-v", leaky.path).out
    given = vram("report", "fit", leaky.path, "--memory", "512MiB").out
    assert given.startswith("It does not fit a card (512.0 MiB): ")
    assert vram("report", "leaks", leaky.path, "--memory", "1GiB").code == 2
    assert vram("report", "fit", leaky.path, "--limit", "3").code == 2
    small = json.loads(vram("report", "fit", leaky.path, "--memory", "512MiB", "--json").out)
    assert [each["verdict"] for each in small["fit"]["cards"]] == ["too small"]


# ---- files for other programs ----


def test_one_page_of_it(vram: Run, trace: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    code, out, err = vram("report", trace, "--html", str(path))
    assert (code, out, err) == (ExitCode.OK, f"written: {path}\n", "")
    page = path.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "leaky.vram" in page
    assert "remember" in page
    assert vram("report", trace, "--html", str(path)).code == ExitCode.USAGE


@pytest.mark.parametrize(
    "form", ["perfetto", "speedscope", "torch", pytest.param("parquet", marks=needs("pyarrow.parquet"))]
)
def test_exports_of_a_real_trace(vram: Run, leaky: Recorded, form: str, tmp_path: Path) -> None:
    path, trace, live = tmp_path / "out.parquet", leaky.path, leaky.live
    code, out, err = vram("report", trace, "--export", form, "-o", str(path))
    assert (code, out, err) == (ExitCode.OK, f"written: {path}\n", "")
    if form == "perfetto":
        events = json.loads(path.read_bytes())["traceEvents"]
        counters = [each["args"]["bytes"] for each in events if each["ph"] == "C"]
        assert (max(counters), counters[-1]) == (live, live)
    elif form == "speedscope":
        profiles = {each["name"]: each for each in json.loads(path.read_bytes())["profiles"]}
        assert profiles["live at the peak"]["endValue"] == live
        assert profiles["never freed"]["endValue"] == live + 32 * MIB
    elif form == "torch":
        taken = pickle.loads(path.read_bytes())
        assert sum(segment["total_size"] for segment in taken["segments"]) == live
    else:
        import pyarrow.parquet as pq

        assert (tmp_path / "out.stacks.parquet").exists()
        kept = pq.read_table(path).to_pylist()
        made = sum(row["nbytes"] for row in kept if (row["op"], row["kind"]) == ("alloc", "device"))
        assert made == live + 32 * MIB + 32 * 8 * MIB
    code, _, err = vram("report", trace, "--export", form, "-o", str(path))
    assert code == ExitCode.USAGE
    assert "exists" in err
    assert vram("report", trace, "--export", form, "-o", str(path), "--force").code == ExitCode.OK


def test_without_pyarrow_a_sentence(trace: str, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('hidden')\n")
    argv = [sys.executable, "-m", "vram", "report", trace, "--export", "parquet", "-o", str(tmp_path / "x")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == ExitCode.USAGE
    assert "writing Parquet needs pyarrow, which is not installed" in done.stderr
    assert "-m pip install 'pyarrow>=14'" in done.stderr
    assert not (tmp_path / "x").exists()


# ---- words ----


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no trace given"),
        (("leaks",), "no trace given"),
        (("t.vram", "leaks"), "the view comes first"),
        (("leak", "t.vram"), "'leak' is neither a view nor a trace"),
        (("diff", "t.vram"), "diff compares two traces, 1 given"),
        (("leaks", "--tree", "t.vram"), "--tree draws the calls of one view"),
        (("peak", "--tree", "--json", "t.vram"), "--tree has no JSON form"),
        (("t.vram", "--export", "torch"), "--export and -o belong together"),
        (("t.vram", "-o", "x"), "--export and -o belong together"),
        (("t.vram", "--json", "--html", "x"), "exclude each other"),
        (("leaks", "t.vram", "--html", "x"), "--html writes the whole trace"),
        (("peak", "--limit", "-1", "t.vram"), "is not a number of rows"),
        (("peak", "--limit", "many", "t.vram"), "is not a number of rows"),
    ],
)
def test_words_that_make_no_sense(vram: Run, words: tuple[str, ...], message: str) -> None:
    code, out, err = vram("report", *words)
    assert (code, out) == (ExitCode.USAGE, "")
    assert message in err


def test_parts_that_are_not_there(vram: Run, trace: str) -> None:
    assert "nothing on GPU 3" in vram("report", trace, "--gpu", "3").err
    assert "no process 1" in vram("report", trace, "--process", "1").err


def test_a_file_that_is_no_trace(vram: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello, this is no trace at all")
    for words in (("report", str(path)), ("report", "leaks", str(path)), ("report", "fit", str(path))):
        code, out, err = vram(*words)
        assert (code, out) == (ExitCode.BAD_INPUT, "")
        assert "is not a trace" in err
    assert vram("report", str(tmp_path / "nothing")).code == ExitCode.BAD_INPUT


def test_a_file_of_the_name_of_a_view(
    vram: Run, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaks").write_bytes(Path(trace).read_bytes())
    assert "Never freed" in vram("report", "./leaks").out


def test_a_process_that_was_killed_is_said_to_be(vram: Run, tmp_path: Path) -> None:
    trace = TraceFile()
    writer = trace.section(pid=7).writer()
    writer.alloc(10, 0x7000, MIB, where=writer.where())
    path = tmp_path / "cut.vram"
    path.write_bytes(trace.bytes())
    code, out, _ = vram("report", str(path))
    assert code == ExitCode.OK
    assert "pid 7: the recording has no end: the process was killed, or still runs." in out
    assert "no stack was recorded" in out


def test_a_process_of_several(vram: Run, tmp_path: Path) -> None:
    trace = TraceFile()
    for pid in (71, 72):
        writer = trace.section(pid=pid).writer()
        stack = writer.stack(("f", f"/p/{pid}.py", pid))
        writer.alloc(10, 0x7000, pid * MIB, where=writer.where(), stack=stack)
    path = tmp_path / "two.vram"
    path.write_bytes(trace.bytes())
    code, out, err = vram("report", "peak", str(path), "--process", "72")
    assert code == ExitCode.OK
    assert "/p/72.py:72" in out
    assert "/p/71.py" not in out
    assert err == "vram: the figures of a GPU as a whole are those of all 2 processes\n"
    assert vram("report", "peak", str(path), "--process", "72", "--json").err == ""
    assert "and 1 more process" in vram("report", str(path)).out


def test_text_in_a_trace_stays_text(vram: Run, tmp_path: Path) -> None:
    trace = TraceFile()
    writer = trace.section(pid=7, command=("\x1b]0;evil\x07",)).writer()
    stack = writer.stack((b"\x1b[31m\xff", "/p/\u202ex.py", 3))
    writer.alloc(10, 0x7000, MIB, where=writer.where(), stack=stack)
    path = tmp_path / "evil.vram"
    path.write_bytes(trace.bytes())
    for words in (["report"], ["report", "leaks", "-v"], ["report", "--json"], ["report", "fit"]):
        out = vram(*words, str(path)).out
        assert out.replace("\n", "").isprintable()
        assert "evil" in out
