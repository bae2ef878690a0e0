"""One page per command: what it prints in a fixed situation, at 80 columns.

Commands that can be asked about a snapshot are; the others act on real processes on a virtual
GPU, one after the other. Pids, times, names of the machine and digests are replaced, so that a
page is the same wherever it is made.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from datetime import timezone
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from msgspec.structs import replace
from rich.console import Console, RenderableType

from tests.doctor.hosts import SOUND, confined
from tests.fleet import snapshots as fleet_snapshots
from tests.history import written
from tests.ledger.world import CONTEXT, OVERHEAD, World
from tests.patience import PATIENCE_S
from tests.sleeping.conftest import until_wakers_ended
from tests.trace_report import steady_traces, training_traces
from vram.cli.app import main
from vram.doctor.checks import examine
from vram.model.cgroups import CgroupLimit, GroupLimit, LimitChange
from vram.model.change import Change
from vram.model.fleet import FleetFree, FleetFreeReport
from vram.model.history import HistoryReport
from vram.model.observation import ProbeRun
from vram.model.process import Workload
from vram.model.slurm import EndedProcess, HookResult, JobHolder, SlurmJob
from vram.report import changes, doctor, fleet, limits, slurm
from vram.report.history import Page, history_text
from vram.report.layout import RenderOptions
from vram.trace.fit import fit
from vram.trace_report import charts, summary, views
from vram.trace_report.lines import ReportOptions
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS as DEMO_PROGRAMS

HERE = Path(__file__).parent
FOLDER = HERE / "pages"
PROGRAMS = HERE / "programs"
SOURCES = HERE.parents[1] / "src"
WIDTH = 80
# The pids of the snapshot and of the log.
FIXED = (100, 200, 201, 4711)

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
    " 23.99 GiB of which 1.20 GiB is free. Process 4711 has 10.00 GiB memory in use. Including non-PyTorch"
    " memory, this process has 12.79 GiB memory in use. Of the allocated memory 6.50 GiB is allocated by"
    " PyTorch, and 5.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is"
    " large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
)
REPLACED = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "2026-01-01T00:00:00Z"),
    # The unit may stand on the next line, beside the rule of a demo.
    (re.compile(r"\b\d+(?:\.\d+)?\s(?:│ +)?(?:ms|s)\b"), "N s"),
    # Those above train.py and serve.py are written down with them.
    (re.compile(r"^written: 1 GPU, \d+ processes", re.MULTILINE), "written: 1 GPU, N processes"),
    (re.compile(r"\brunning for \d+"), "running for N"),  # "s" may stand on the next line
    (re.compile(r"\b127\.0\.0\.1:[3-6]\d{4}\b"), "127.0.0.1:11434"),  # that the kernel chose
    (re.compile(r"\bplan [0-9a-f]{12}\b"), "plan 0123456789ab"),
    (re.compile(r"\bPython 3\.\d+(?:\.\d+)?"), "Python 3.x"),
)
# What `vram why` answers has a page of its own.
ANSWER = re.compile(r"^(\$ vram why\n)(?:│.*\n)+", re.MULTILINE)
ABOUT_A_PROCESS = re.compile(r"^vram: (?:the driver does not answer about )?pid (\d+): .*\n", re.MULTILINE)


class Situation:
    """Processes on one virtual GPU, and vram with folders of its own beside them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        gpu = stack.enter_context(VirtualGpu.create(memory_bytes=24 * GIB, name="NVIDIA GPU"))
        for name in ("runtime", "state"):
            (folder / name).mkdir(mode=0o700)
        self.environment = {
            **gpu.environment(),
            "COLUMNS": str(WIDTH),
            "NO_COLOR": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONIOENCODING": "utf-8",
            "PYTHONPATH": f"{SOURCES}:{DEMO_PROGRAMS}",
            "PYTHON_DISABLE_REMOTE_DEBUG": "1",
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.pids: dict[int, str] = {}

    def start(self, program: str, shown_as: int) -> int:
        """Start a program by a short command line; *shown_as* is its pid on the pages."""
        process = subprocess.Popen(
            ["python", f"{program}.py"], cwd=PROGRAMS, env=self.environment, stdin=-1, stdout=-1, text=True
        )
        self._stack.callback(_end, process)
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        pid = process.pid if said == "ready" else int(said)
        if pid != process.pid:
            process.wait()
            self.pids[process.pid] = str(shown_as - 1)
        self.pids[pid] = str(shown_as)
        return pid

    def vram(self, *words: object) -> str:
        """A command and all that it printed, as it stands on a page."""
        return self.begin(*words)()

    def begin(self, *words: object) -> Callable[[], str]:
        """The same for a command that runs beside others; what this returns waits for its end."""
        argv = [sys.executable, "-m", "vram", *map(str, words)]
        process = subprocess.Popen(
            argv, env=self.environment, cwd=self.folder, stdout=-1, stderr=-1, text=True
        )
        self._stack.callback(_end, process)
        return lambda: self._page(words, *process.communicate(timeout=PATIENCE_S))

    def _page(self, words: tuple[object, ...], printed: str, warnings: str) -> str:
        page = f"$ vram {' '.join(map(str, words))}\n{printed}{self._about_ours(warnings)}"
        user = re.escape(getpass.getuser())
        page = re.sub(rf"(?<=· ){user}\b|(?<=, ){user}(?=\))|\b{user}(?=  parked)", "user", page)
        return self.normalised(page)

    def _about_ours(self, warnings: str) -> str:
        """Without those about processes of other tests, which `vram park` asks the driver about, too."""
        return ABOUT_A_PROCESS.sub(lambda line: line[0] if int(line[1]) in self.pids else "", warnings)

    def in_process(self, *words: str) -> str:
        """The same for a command that needs no GPU, without the time that a start takes."""
        raw = BytesIO()
        stream = TextIOWrapper(raw, "utf-8", write_through=True)
        environment = {name: self.environment[name] for name in ("COLUMNS", "NO_COLOR")}
        with (
            ExitStack() as stack,
            mock.patch.dict(os.environ, environment),
            redirect_stdout(stream),
            redirect_stderr(stream),
        ):
            stack.callback(os.chdir, os.getcwd())
            os.chdir(self.folder)
            main(words)
        return self.normalised(f"$ vram {' '.join(words)}\n{raw.getvalue().decode()}")

    def normalised(self, text: str) -> str:
        text = text.replace(str(self.folder), "/tmp/golden").replace(os.uname().nodename, "host")
        for pid in re.findall(r"\b(?:pid|Process) (\d{3,})\b", text):
            # Of a process that we have not started: those of the demo.
            self.pids.setdefault(int(pid), pid if int(pid) in FIXED else str(5000 + len(self.pids)))
        for number, shown in self.pids.items():
            text = re.sub(rf"\b{number}\b", shown, text)
        for pattern, instead in REPLACED:
            text = pattern.sub(instead, text)
        return text


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def made(folder: Path) -> dict[str, str]:
    """Every page by its command, made now."""
    with ExitStack() as stack:
        situation = Situation(folder, stack)
        return {
            name: page.rstrip() + "\n" for name, page in {**_still(situation), **_live(situation)}.items()
        }


# ---- on snapshots and files ----


def _still(situation: Situation) -> dict[str, str]:
    vram = situation.in_process
    snapshot = str(_snapshot(situation.folder / "busy.json").relative_to(situation.folder))
    log = situation.folder / "train.log"
    log.write_text(OUT_OF_MEMORY)
    return {
        "why": vram("--from", snapshot)
        + vram("why", "-v", "--from", snapshot)
        + vram("why", "200", "--from", snapshot),
        "ps": vram("ps", "--from", snapshot) + vram("ps", "--columns", "pid,bytes,state", "--from", snapshot),
        "top": vram("top") + vram("top", "--help"),
        "who": vram("who", "--from", snapshot) + vram("who", "--by", "user", "--from", snapshot),
        "check": vram("check", "--from", snapshot)
        + vram("check", "--leftovers", "--gpu", "1", "--from", snapshot),
        "oom": vram("oom", "train.log"),
        "explain": vram("explain", "VR101") + vram("explain", "fragmented") + vram("explain", "VR999"),
        "report": _report(vram) + _fit(),
        "serve": _serve(situation),
        "history": _history(situation),
        "fleet": _fleet(situation),
        "doctor": _doctor(),
        "slurm": _slurm(vram),
        "help": vram("help") + vram("help", "all") + vram("help", "wyh"),
        "wait": vram("wait", "20") + vram("wait", "20GiB", "--socket", "no.sock"),
        "completion": vram("completion") + vram("completion", "--help"),
    }


def _snapshot(path: Path) -> Path:
    """Two GPUs: a healthy process, a forked child with its dead parent's memory, and a GPU that is idle."""
    world = World()
    world.gpu(0, used=6 * GIB + 2 * CONTEXT + 2 * OVERHEAD).gpu(1)
    world.cuda(100, 2 * GIB + CONTEXT)
    world.charge(200, 4 * GIB + CONTEXT).process(201).files(201, family=200)
    survey = replace(world.survey(), probes=(ProbeRun("nvml", "ok", 0.01),))
    path.write_bytes(msgspec.json.encode(survey))
    return path


def _serve(situation: Situation) -> str:
    """What a configuration means, and words that cannot be meant."""
    page = ""
    for text in ('interval = "10s"\n', 'intervall = "10s"\n', '[http]\nlisten = "0.0.0.0:9838"\n'):
        (situation.folder / "serve.toml").write_text(text)
        words = ("--config", "serve.toml", "--state", "/tmp/state", "--socket", "/tmp/vram.sock")
        page += f"# {text.strip().splitlines()[-1]}\n"
        page += situation.in_process("serve", "--check-config", *words)
    return page


def _history(situation: Situation) -> str:
    """Each question about a history that is written down, and words that cannot be meant."""
    folder = situation.folder / "history"
    folder.mkdir(mode=0o700)
    ask = written.example(folder).ask()
    at, page = written.START + 3600, Page(RenderOptions(width=WIDTH), timezone.utc)
    shown: dict[str, HistoryReport] = {
        "": ask.holders_at(None, None),
        "--gpu 0 --at 15:13": ask.holders_at("0", at),
        "ghosts": ask.ghosts(None, None),
        "waste": ask.waste(None, None),
        "series --gpu 0": ask.series("0", None, None, points=12),
        "search train": ask.search("train", None, None),
        "search no-such": ask.search("no-such", None, None),
    }
    text = "".join(
        f"$ vram history {words}".rstrip() + f"\n{history_text(each, page)}" for words, each in shown.items()
    )
    for wrong in (
        ("ghost",),
        ("search",),
        ("--at", "25:00"),
        ("ghosts", "--at", "04:12"),
        ("--file", "none.sqlite"),
    ):
        text += situation.in_process("history", *wrong)
    return text


def _fleet(situation: Situation) -> str:
    """Four nodes: healthy, with a ghost, cut short, and of another version."""
    folder = situation.folder / "nodes"
    folder.mkdir()
    for survey in (fleet_snapshots.healthy("gpu-1"), fleet_snapshots.haunted("gpu-2")):
        (folder / f"{survey.host.name}.json").write_bytes(msgspec.json.encode(survey))
    (folder / "gpu-3.json").write_bytes(b'{"schema": 1, "program": "vram')
    (folder / "gpu-4.json").write_bytes(b'{"schema": 99, "program": "vram 9.9.0"}')
    vram = situation.in_process
    return (
        vram("fleet", "--snapshots", "nodes")
        + vram("fleet", "--snapshots", "nodes", "--node", "gpu-2")
        + vram("fleet", "--snapshots", "nodes", "--by", "user")
        + vram("fleet", "free", "--snapshots", "nodes")
        + vram("fleet", "--hosts", "gpu;1")
        + _fleet_free()
    )


def _fleet_free() -> str:
    """Plans of three nodes, and what came of them."""
    ghost = "kill 4.5 GiB: pid 4202 · user · python serve.py"
    alone = {
        "message": "no vram service answers here: there is no socket at /run/vram/vram.sock",
        "hint": "start one with `vram serve`, or name it: --socket PATH",
    }
    planned = {"digest": "0" * 64, "steps": (ghost,), "promised_bytes": 4 * GIB}
    plans = (
        FleetFree(name="gpu-2", state="planned", **planned),
        FleetFree(name="gpu-5", state="refused", **alone),
        FleetFree(name="gpu-6", state="nothing"),
    )
    done = (replace(plans[0], state="freed", returned_bytes=4 * GIB), *plans[1:])
    page = "$ vram fleet free --hosts gpu-2,gpu-5,gpu-6\n"
    for nodes in (plans, done):
        executed = nodes is done
        report = FleetFreeReport(
            schema=1, executed=executed, returned_bytes=4 * GIB if executed else None, nodes=nodes
        )
        page += _printed(fleet.free(report, RenderOptions(width=WIDTH)))
    return page


def _limits() -> str:
    """What a driver that knows limits would have it say."""
    group = CgroupLimit("/user.slice/user-1000.slice", 20 * GIB, 0, 12 * GIB)
    unit = CgroupLimit("/system.slice/serve.service", 40 * GIB, 8 * GIB, 30 * GIB)
    change = LimitChange(
        gpu=0, uuid="GPU-0", cgroup=group.cgroup, hard=8 * GIB, soft=4 * GIB, before=group, gpu_bytes=80 * GIB
    )
    found = [
        GroupLimit(gpu=0, limit=group),
        GroupLimit(gpu=0, limit=unit, workload=Workload(unit="serve.service")),
    ]
    options = RenderOptions(width=WIDTH)
    set_one = "$ sudo vram limit --gpu 0 --slice user-1000.slice 8GiB --guarantee 4GiB --yes\n"
    made = _printed(limits.plan(change, options)) + _printed(limits.done(change))
    return f"$ vram limit\n{_printed(limits.table(found, options))}{set_one}{made}"


def _doctor() -> str:
    """What it looks at differs from host to host: two that are written down stand for them."""
    page = ""
    for host in (SOUND, confined(unreadable=213, yama=1)):
        facts = host.survey
        shown = doctor.text(examine(host), facts.host, facts.taken_at, RenderOptions(width=WIDTH))
        page += f"$ vram doctor\n{_printed(shown)}"
    return page


def _slurm(vram: Callable[..., str]) -> str:
    """Hooks that freed all, that could not, and that do not know; a cluster is in tests/slurm."""
    job = SlurmJob(job="42", uid=1000, user="user", gpu_words=("0",))
    train = {"user": "user", "command": "python train.py --epochs 90"}
    term = EndedProcess(pid=4101, left_by="42", by="cgroup", status="done", message=TERMINATED, **train)
    kill = EndedProcess(pid=4102, left_by="42", by="environment", status="done", message=KILLED, **train)
    stuck = JobHolder(gpu=0, nbytes=20 * GIB, pid=4103, whose="job", job_of_process="42", note=STUCK, **train)
    hidden = JobHolder(gpu=1, nbytes=GIB, pid=None, user=None, command=None, whose="unknown", note=UNSEEN)
    freed = HookResult(
        hook="epilog", job=job, gpus=(0,), verdict="clean", ended=(term, kill), freed_bytes=40 * GIB
    )
    results = {
        "epilog": (freed, replace(freed, verdict="held", ended=(), freed_bytes=0, held=(stuck,))),
        "prolog": (replace(freed, hook="prolog", verdict="held", ended=(), freed_bytes=0, reasons=(UNMET,)),),
        "health": (
            replace(
                freed, hook="health", job=None, verdict="unknown", ended=(), held=(hidden,), freed_bytes=0
            ),
        ),
    }
    page = "".join(
        f"$ vram slurm {hook}\n{slurm.text(each, WIDTH)}" for hook, found in results.items() for each in found
    )
    return page + vram("slurm", "epilog") + vram("slurm", "health", "--drain", "--node", "a b")


TERMINATED, KILLED = (
    "it exited after SIGTERM",
    "it did not exit within 2 s of SIGTERM and was killed (SIGKILL)",
)
STUCK = "it is waiting in the kernel (state D); signals have no effect now"
UNSEEN, UNMET = "no visible process holds it", "GPU 0 has 60.0 GiB free, 70.0 GiB are required"


def _report(vram: Callable[..., str]) -> str:
    """Every view of a trace that is written down, and words in the wrong order."""
    options = RenderOptions(width=WIDTH)
    view, shorter = training_traces.training(), training_traces.training(paths=("before.vram",))
    shorter = replace(shorter, peak=shorter.peak[:2], leaks=shorter.leaks[2:])
    few = ReportOptions(screen=options)
    blocks = training_traces.with_blocks()
    shown_by_words = {
        "train.vram": summary.summary(view, few),
        "peak train.vram": views.peak(view, few),
        "peak blocks.vram": views.peak(blocks, few),
        "peak --tree train.vram": views.tree(view, few),
        "peak --by library train.vram": views.peak(view, replace(few, by="library")),
        "leaks train.vram": views.leaks(view, few),
        "timeline train.vram": charts.timeline(view, few),
        "timeline --ascii train.vram": charts.timeline(
            view, replace(few, screen=options._replace(ascii=True))
        ),
        "churn train.vram": views.churn(view, few),
        "frag train.vram": charts.holes(view, few),
        "serve.vram": summary.summary(steady_traces.serving(), few),
        "window serve.vram": views.window(steady_traces.serving(), few),
        "solver.vram": summary.summary(steady_traces.native_steady(), few),
        "diff before.vram train.vram": views.diff(shorter, view, replace(few, by="stack")),
    }
    page = "".join(f"$ vram report {words}\n{_printed(shown)}" for words, shown in shown_by_words.items())
    for wrong in ((), ("train.vram", "leaks"), ("leak", "train.vram"), ("diff", "a.vram"), ("no-such.vram",)):
        page += vram("report", *wrong)
    return page


def _fit() -> str:
    blocks = training_traces.with_blocks()
    short, whole = (
        summary.cards(blocks, fit(blocks), ReportOptions(screen=RenderOptions(width=WIDTH), verbose=every))
        for every in (False, True)
    )
    return (
        f"$ vram report fit train.vram\n{_printed(short)}$ vram report fit -v train.vram\n{_printed(whole)}"
    )


def _printed(shown: RenderableType) -> str:
    out = StringIO()
    Console(file=out, width=WIDTH, markup=False, highlight=False, emoji=False).print(shown)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _changes() -> str:
    """Lines of a watch, one for each event that reads differently; which come when is tested elsewhere."""
    at = "2026-01-01T00:00:00Z"
    process = {"gpus": (0,), "pid": 4101, "user": "user", "command": "python train.py", "kind": "process"}
    ghost = {**process, "pid": 4202, "command": "python serve.py", "kind": "orphaned", "dead_pid": 4201}
    exported = {**ghost, "kind": "exported", "dead_pid": None, "co_holders": (4203,), "code": "VR103"}
    gpu = {"gpus": (0,), "free_bytes": 20 * GIB, "total_bytes": 24 * GIB}
    lost = "the GPU is lost: it has fallen off the bus or cannot be reached (NVML error 15)"
    cut = "the scan of all processes was cut off after 5.0 s: holders may be missing"
    told: list[dict[str, Any]] = [
        {"event": "started", **process, "nbytes": 518 * MIB},
        {"event": "grew", **process, "nbytes": 4 * GIB, "held_bytes": 9 * GIB},
        {"event": "shrank", **process, "nbytes": -GIB, "held_bytes": 8 * GIB},
        {"event": "stopped", **process},
        {"event": "continued", **process},
        {"event": "parked", **process, "nbytes": -8 * GIB},
        {"event": "unparked", **process, "nbytes": 8 * GIB},
        {"event": "released", **process, "nbytes": -8 * GIB},
        {"event": "ended", **process, "nbytes": -8 * GIB},
        {"event": "ghost", **ghost, "nbytes": 4 * GIB, "confidence": "fact", "code": "VR101"},
        {"event": "ghost", **ghost, "nbytes": 4 * GIB, "confidence": "likely", "code": "VR101"},
        {"event": "ghost", **exported, "nbytes": 4 * GIB, "confidence": "fact"},
        {"event": "ghost", "gpus": (0,), "kind": "orphaned", "dead_pid": 4201, "nbytes": 4 * GIB},
        {"event": "grew", **ghost, "nbytes": GIB, "held_bytes": 5 * GIB},
        {"event": "ghost-gone", **ghost, "nbytes": -5 * GIB},
        {"event": "freed", **gpu, "nbytes": 5 * GIB},
        {"event": "unattributed", "gpus": (0,), "kind": "unattributed", "nbytes": 2 * GIB},
        {"event": "hidden", "gpus": (0,), "kind": "hidden", "nbytes": 2 * GIB},
        {"event": "gpu-lost", "gpus": (0,), "message": lost, "code": "nvml-15"},
        {"event": "gpu-back", "gpus": (0,), "message": "NVIDIA GPU"},
        {"event": "driver-gone", "message": "the NVIDIA driver is not loaded (NVML error 9)"},
        {"event": "driver-back"},
        {"event": "probe-failed", "probe": "files", "message": cut},
        {"event": "finding", "gpus": (0,), "code": "VR407", "message": "MIG changes after a reset"},
    ]
    options = RenderOptions(width=0)
    return "".join(changes.change_text(Change(at=at, **each), options) for each in told)


# ---- on real processes, in this order: each finds what the one before it has left ----


def _released(situation: Situation) -> str:
    server = situation.start("ollama", 4303)
    train = situation.start("train", 4304)
    vram = situation.vram
    return (
        vram("release", train)
        + vram("release", server)
        + vram("release", server, "--yes")
        + vram("release", server, "--undo")
    )


def _without_waker(folder: Path) -> str:
    """Its checkpoint worker has the GPU open: what follows shows who has."""
    until_wakers_ended(folder / "state" / "vram")
    return ""


def _live(situation: Situation) -> dict[str, str]:
    vram = situation.vram
    train, serve = situation.start("train", 4101), situation.start("serve", 4202)
    # On a GPU of its own, and it mostly waits: so it runs beside the others.
    demo = situation.begin("demo", "fork")
    (situation.folder / "load.py").write_text("import driver\ndriver.context()\ndriver.alloc(1 << 30)\n")
    pages: dict[str, Callable[[], str]] = {
        "snapshot": lambda: vram("snapshot", "-o", "host.json"),
        "watch": lambda: vram("watch", "--for", "0.1s") + _changes() + vram("watch", "--exec", "no-such"),
        "inside": lambda: vram("inside", train),
        "trim": lambda: vram("trim") + vram("trim", train) + vram("trim", 1),
        "park": lambda: vram("park", train) + vram("park") + vram("park", "--tree"),
        "unpark": lambda: vram("unpark", train) + vram("unpark", train),
        "sleep": lambda: vram("sleep", train) + vram("sleep") + vram("sleep", "--check"),
        "wake": lambda: vram("wake", train) + vram("wake", train) + _without_waker(situation.folder),
        "borrow": lambda: (
            vram("borrow", "18GiB", "--", "echo", "it runs") + vram("borrow", "40GiB", "--", "true")
        ),
        # Who was recorded once cannot be parked any more.
        "attach": lambda: (
            vram("attach", train, "-o", "a.vram")
            + vram("attach", train, "-o", "b.vram")
            + vram("attach", train, "--stop")
            + vram("attach", train, "--stop")
        ),
        "reset": lambda: vram("reset", 0),
        "limit": lambda: (
            vram("limit") + vram("limit", "--gpu", 0, "--slice", "user-1000.slice", "4GiB") + _limits()
        ),
        "free": lambda: (
            vram("free", "--dry-run") + vram("free", "--yes") + vram("free", "4GiB") + vram("free", "30GiB")
        ),
        "kill": lambda: vram("kill", train, "--dry-run") + vram("kill", train, "--yes"),
        "run": lambda: (
            vram("run", "-o", "load.vram", "--no-stacks", "--check", "peak=8MiB", "--", "python", "load.py")
            + vram("run", "--", "true")
            + vram("run", "--check", "leaks=none", "--", "true")
        ),
        "lab": lambda: vram("lab", "show", "kill-nine") + vram("lab", "run", "kill-nine"),
        "demo": lambda: ANSWER.sub(r"\1│ …\n", demo()),
        "virtual": lambda: vram("virtual", "nvidia-smi") + vram("virtual", "fault", "cuMemAlloc* sometimes"),
        # At the end: nobody else is to meet its server.
        "release": lambda: _released(situation),
    }
    assert serve
    return {name: page() for name, page in pages.items()}
