"""Draw the pictures of the site and the README: what `vram why` prints while each demo runs.

python docs/generators/pictures.py docs

The surveys are real ones, of processes that really run. What differs from machine to machine and from
run to run (host, user, pids, ages) is replaced before the picture is drawn, so that taking pictures
again changes nothing unless the answer has changed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.model.files import FilesFacts, UnreadableFacts
from vram.model.observation import Observation, ProbeRun, Survey
from vram.model.process import ProcessFacts, ProcessRef, Workload
from vram.probes import bundle
from vram.report import svg
from vram.report.screen import screen
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DEMOS, EXPORT, FORK, POOL, Demo, DemoProgram

VRAM = Path(sys.executable).with_name("vram")
# Those of the README's picture run at once; every other picture shows one demo.
SEVERAL = (FORK, EXPORT, POOL)

FIRST_PID = 4711
STARTED_AT = 100_000
AGE_S = 2 * 3600.0
TAKEN_AT = "2026-01-01T12:00:00Z"
KERNEL = "6.18.0"


def main(folder: str) -> None:
    for path, demos in pictures(Path(folder)):
        path.parent.mkdir(exist_ok=True)
        draw(demos, path)


def pictures(folder: Path) -> Iterator[tuple[Path, Sequence[Demo]]]:
    yield folder / "why.svg", SEVERAL
    for demo in DEMOS:
        yield folder / "pictures" / f"{demo.name}.svg", (demo,)


def draw(demos: Sequence[Demo], picture: Path) -> None:
    """Draw the answer of `vram why` while *demos* run."""
    with TemporaryDirectory() as folder:
        survey = Path(folder) / "survey.json"
        pids = observe(demos, survey)
        ledger = build_ledger(same_everywhere(bundle.read(str(survey)), pids))
    findings = diagnose(ledger)
    picture.write_text(svg.draw(lambda options: screen(ledger, findings, options), prompt="vram why"))


def observe(demos: Sequence[Demo], path: Path, *, gpus: int = 1) -> dict[int, int]:
    """Write what is observed while *demos* run; return the pid that each process has on pictures."""
    with ExitStack() as cleanup:
        gpu = cleanup.enter_context(VirtualGpu.create(gpus, memory_bytes=24 * 2**30, name="NVIDIA GPU"))
        pids: list[int] = []
        for demo in demos:
            program = cleanup.enter_context(DemoProgram(gpu, demo.program, demo.size))
            pids += program.pids.values()
            demo.prepare(program)
        gpu.run([VRAM, "snapshot", "-o", path], check=True, stdout=subprocess.DEVNULL)
    return {pid: FIRST_PID + number for number, pid in enumerate(pids)}


# ---- what is replaced ----


def same_everywhere(survey: Survey, pids: Mapping[int, int]) -> Survey:
    """*survey* of the demos alone, as any machine would have it."""
    return replace(
        survey,
        taken_at=TAKEN_AT,
        host=replace(survey.host, name="workstation", kernel=KERNEL, user="user", uid=1000, pid_namespace=1),
        observations=tuple(_observations(survey.observations, pids)),
        probes=tuple(_undisturbed(run) for run in survey.probes),
    )


def _observations(observations: Sequence[Observation], pids: Mapping[int, int]) -> Iterator[Observation]:
    for each in observations:
        # Who may not be read, and what started the demo, is another matter on every machine.
        if isinstance(each.facts, UnreadableFacts) or (each.process and each.process.pid not in pids):
            continue
        process = each.process and _process(each.process, pids)
        yield replace(each, process=process, facts=_facts(each.facts, pids))


def _process(process: ProcessRef, pids: Mapping[int, int]) -> ProcessRef:
    pid = pids[process.pid]
    # NVML names pids alone.
    started_at = process.started_at and STARTED_AT + pid
    return replace(process, pid=pid, started_at=started_at, pid_namespace=process.pid_namespace and 1)


def _facts(facts: Any, pids: Mapping[int, int]) -> Any:
    if isinstance(facts, FilesFacts):
        files = (replace(file, path=f"/dev/{Path(file.path).name}") for file in facts.files)
        return replace(facts, files=tuple(files))
    if not isinstance(facts, ProcessFacts):
        return facts
    return replace(
        facts,
        uid=1000,
        user="user",
        executable="/usr/bin/python3",
        state="S",
        parent=pids.get(facts.parent or 0, 1),
        group=pids.get(facts.group or 0, 1),
        session=pids.get(facts.session or 0, 1),
        age_s=AGE_S,
        namespace_pids=tuple(pids.get(pid, pid) for pid in facts.namespace_pids),
        cgroup=None,
        workload=Workload(),
    )


def _undisturbed(run: ProbeRun) -> ProbeRun:
    """A container hides its own init from everybody: that is no news about the demo."""
    denied = run.status == "denied"
    status, code = ("ok", None) if denied else (run.status, run.code)
    return replace(run, status=status, code=code, message=None if denied else run.message, duration_s=0.0)


if __name__ == "__main__":
    main(sys.argv[1])
