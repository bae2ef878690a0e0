"""The one-screen answer in fixed situations: what `vram` prints on terminals of three widths and 24 lines."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from tests.ledger.world import CONTEXT, OVERHEAD, World
from tests.wsl.test_ledger import WslWorld
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.model.gpu import GpuFacts, MemoryFacts
from vram.model.ledger import Ledger
from vram.model.observation import ProbeRun
from vram.model.process import LaunchClaim, ProcessFacts, ProcessRef
from vram.report.layout import RenderOptions
from vram.report.screen import screen
from vram.units import GIB

FOLDER = Path(__file__).parent / "screens"
WIDTHS = (80, 100, 200)
HEIGHT = 23  # of 24 lines, the prompt has one


class Machine(World):
    """A world in the words of a cluster: GPUs that are in use by jobs with workers."""

    def __init__(self) -> None:
        super().__init__()
        self._used: dict[int, int] = {}

    def job(
        self,
        pid: int,
        command: str,
        gib: float,
        *,
        gpu: int = 0,
        workers: int = 0,
        state: str = "S",
        parent: int = 1,
        launch: LaunchClaim | None = None,
    ) -> Machine:
        """A process that holds *gib* of a GPU, and forked workers that hold nothing of their own."""
        self.started(pid, command, state=state, parent=parent, launch=launch)
        self.charge(pid, self.hold(gpu, gib), gpu=gpu).files(pid, minors=(gpu,), family=pid)
        for worker in range(pid + 1, pid + 1 + workers):
            self.started(worker, command, parent=pid, forked=True)
            self.files(worker, minors=(gpu,), family=pid)
        return self

    def torchrun(
        self,
        pid: int,
        gib: float,
        *,
        ranks: int,
        agent: int | None = None,
        stopped: int = -1,
        workers: int = 0,
    ) -> Machine:
        """A rank on each GPU; without an *agent* that one is dead, and init has adopted them."""
        if agent is None:
            self.init()
        else:
            self.started(agent, "/usr/bin/python3 /usr/bin/torchrun --nproc-per-node 8 train.py")
        for rank in range(ranks):
            launch = LaunchClaim(
                "torchrun", "torchrun.1", direct=True, rank=rank, size=ranks, local_size=ranks
            )
            self.job(
                pid + 10 * rank,
                "/usr/bin/python3 -u /home/alice/train.py --lr 3",
                gib,
                gpu=rank,
                workers=workers,
                state="T" if rank == stopped else "R",
                parent=agent or 1,
                launch=launch,
            )
        return self

    def pool(self, pid: int, gib: float, *, parent: int, workers: int = 4) -> Machine:
        """Workers of Python's multiprocessing on one GPU; their parent holds nothing."""
        command = (
            "python -c from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork"
        )
        launch = LaunchClaim("multiprocessing", f"multiprocessing.{parent}", direct=True)
        self.started(parent, "python pool.py")
        for at in range(workers):
            self.job(pid + at, command, gib, parent=parent, launch=launch)
        return self

    def init(self) -> Machine:
        """The first process, which adopts those whose parents died."""
        facts = ProcessFacts(
            command="systemd", user="root", uid=0, executable="/usr/lib/systemd/systemd", namespace_pids=(1,)
        )
        self._see("proc.processes", process=ProcessRef(1, started_at=1), facts=facts)
        return self

    def ghost(self, dead: int, child: int, command: str, gib: float, *, gpu: int = 0) -> Machine:
        """A dead process whose memory a forked child of its still holds."""
        self.charge(dead, self.hold(gpu, gib), gpu=gpu)
        self.started(child, command, forked=True)
        self.files(child, minors=(gpu,), family=dead)
        return self

    def started(
        self,
        pid: int,
        command: str,
        *,
        parent: int = 1,
        state: str = "S",
        forked: bool = False,
        launch: LaunchClaim | None = None,
    ) -> Machine:
        facts = ProcessFacts(
            command="python",
            argv=tuple(command.split()),
            user="alice",
            uid=1000,
            state=state,
            forked=forked,
            parent=parent,
            executable="/usr/bin/python3",
            age_s=7500.0,
            launch=launch,
        )
        self._see("proc.processes", process=ProcessRef(pid, started_at=pid * 10), facts=facts)
        return self

    def hold(self, gpu: int, gib: float) -> int:
        """Count what a process holds of a GPU; returns the bytes that it is charged with."""
        nbytes = int(gib * GIB) + CONTEXT
        self._used[gpu] = self._used.get(gpu, 0) + nbytes + OVERHEAD
        return nbytes

    def with_gpus(self, count: int = 1, *, lost: int | None = None, busy: int = 40) -> Machine:
        for index in range(count):
            facts = GpuFacts(
                uuid=f"GPU-{index}",
                name="NVIDIA H200",
                minor=index,
                utilization=busy if index in self._used else 0,
            )
            self._see("nvml.gpu", gpu=index, facts=facts)
            if index == lost:
                self._see("nvml.memory", gpu=index, status="lost", message="GPU is lost")
                continue
            used = self._used.get(index, 0)
            total, reserved = 143_771 * (1 << 20), 645_005_312
            memory = MemoryFacts(total=total, free=total - used - reserved, used=used, reserved=reserved)
            self._see("nvml.memory", gpu=index, facts=memory)
        return self

    def ledger(self, *probes: ProbeRun) -> Ledger:
        survey = self.survey()
        return build_ledger(replace(survey, probes=probes or (ProbeRun("nvml", "ok", 0.01),)))


def _eight_busy() -> Machine:
    machine = Machine()
    for gpu in range(8):
        machine.job(
            3000 + 10 * gpu, f"python train.py --rank {gpu}", 96.5 - gpu, gpu=gpu, workers=4, state="R"
        )
    return machine


def _mig() -> Ledger:
    world = Machine()
    world.divided(devices=2, total=100 * GIB, used=20 * GIB + 2 * CONTEXT)
    world.mig(0, 1, total=40 * GIB, used=12 * GIB + CONTEXT).mig(1, 2, total=40 * GIB, used=8 * GIB + CONTEXT)
    for pid, instance, gib in ((510, 1, 12), (520, 2, 8)):
        world.started(pid, f"python serve.py --port {pid}")
        world.charge(pid, gib * GIB + CONTEXT, instance=instance, compute=0).files(pid)
    return world.ledger()


def _wsl() -> Ledger:
    world = WslWorld()
    world.gpu(used=9 * GIB, total=24 * GIB)
    world.adapter().windows(8420, 3 * GIB, "chrome.exe").guest(5 * GIB).linux(310)
    return build_ledger(replace(world.survey(), probes=(ProbeRun("nvml", "ok", 0.01),)))


def _shared() -> Ledger:
    world = Machine()
    world.shared(available=60 * GIB)
    world.job(4711, "python -m vllm.entrypoints.openai.api_server --model llama", 40, workers=2)
    world.ghost(2990, 2995, "python train.py", 8)
    return world.ledger()


SITUATIONS: dict[str, Callable[[], Ledger]] = {
    "idle": lambda: Machine().with_gpus(2).ledger(),
    "one-healthy-job": lambda: Machine().job(4711, "python train.py", 40, workers=4).with_gpus(1).ledger(),
    "one-ghost-beside-three-healthy": lambda: (
        Machine()
        .ghost(15679, 15699, "python train.py 0 40", 40)
        .job(15680, "python serve.py 0 12", 12, workers=4, state="R")
        .job(15692, "python -m ipykernel_launcher -f /home/alice/kernel.json", 3)
        .job(15695, "python serve.py 1 20", 20, gpu=1)
        .with_gpus(2, busy=0)
        .ledger()
    ),
    "eight-busy": lambda: _eight_busy().with_gpus(8).ledger(),
    "eight-with-one-ghost": lambda: (
        _eight_busy().ghost(2990, 2995, "python train.py --rank 3", 30, gpu=3).with_gpus(8).ledger()
    ),
    "eight-ranks": lambda: (
        Machine()
        .torchrun(7010, 51.5, ranks=8, agent=7000, workers=4)
        .pool(6101, 3, parent=6100)
        .job(4711, "python serve.py", 4)
        .with_gpus(8)
        .ledger()
    ),
    "one-rank-stopped": lambda: (
        Machine().torchrun(7010, 51.5, ranks=4, agent=7000, stopped=2).with_gpus(4).ledger()
    ),
    "orphaned-job": lambda: (
        Machine().torchrun(31204, 4.5, ranks=2).job(4711, "python serve.py", 40).with_gpus(2, busy=0).ledger()
    ),
    "mig": _mig,
    "wsl2": _wsl,
    "shared-memory": _shared,
    "lost-gpu": lambda: (
        Machine()
        .job(4711, "python train.py", 40)
        .with_gpus(2, lost=1)
        .ledger(ProbeRun("nvml", "lost", 0.01, "GPU 1: GPU is lost"))
    ),
}


def made(name: str, width: int, *, ascii: bool = False) -> str:
    """What a terminal of 24 lines shows in one situation."""
    return printed(SITUATIONS[name](), width, ascii=ascii)


def printed(ledger: Ledger, width: int, *, ascii: bool = False) -> str:
    """What a terminal of 24 lines shows of *ledger*."""
    out = StringIO()
    console = Console(file=out, width=width, markup=False, highlight=False, emoji=False, color_system=None)
    console.print(screen(ledger, diagnose(ledger), RenderOptions(width=width, ascii=ascii), height=HEIGHT))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
