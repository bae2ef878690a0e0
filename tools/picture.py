"""Take the README's picture: `vram why` on a virtual GPU with two ghosts and a pool.

python tools/picture.py FILE.svg

The survey is a real one, of processes that really run. Before it is drawn, what speaks of the
machine it was taken on is changed to plain words: host, user, and where the interpreter lies.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from vram.model.files import UnreadableFacts
from vram.model.observation import Observation, ProbeRun, Survey
from vram.model.process import ProcessFacts
from vram.probes import bundle
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import EXPORT, FORK, POOL, DemoProgram

VRAM = Path(sys.executable).with_name("vram")


def main(picture: str) -> None:
    with TemporaryDirectory() as folder:
        seen = Path(folder) / "seen.json"
        observe(seen)
        survey = bundle.read(str(seen))
        bundle.write(plain(survey), str(seen))
        with VirtualGpu.create(gpus=0) as nowhere:
            nowhere.run([VRAM, "why", "--from", seen, "--svg", picture], check=True)


def observe(path: Path) -> None:
    with ExitStack() as cleanup:
        gpu = cleanup.enter_context(VirtualGpu.create(memory_bytes=24 * 2**30, name="NVIDIA GPU"))
        for demo in (FORK, EXPORT, POOL):
            demo.prepare(cleanup.enter_context(DemoProgram(gpu, demo.program, demo.size)))
        gpu.run([VRAM, "snapshot", "-o", path], check=True, stdout=subprocess.DEVNULL)


def plain(survey: Survey) -> Survey:
    kept = [each for each in survey.observations if not isinstance(each.facts, UnreadableFacts)]
    return replace(
        survey,
        host=replace(survey.host, name="workstation", user="user"),
        observations=tuple(_plain(each) for each in kept),
        probes=tuple(_calm(run) for run in survey.probes),
    )


def _plain(observation: Observation) -> Observation:
    facts = observation.facts
    if not isinstance(facts, ProcessFacts):
        return observation
    argv = tuple("python" if word == sys.executable else Path(word).name for word in facts.argv)
    named = replace(facts, user="user", argv=argv, executable="/usr/bin/python3")
    return replace(observation, facts=named)


def _calm(run: ProbeRun) -> ProbeRun:
    """A container hides its own init from everybody: that is no news about the demo."""
    return replace(run, status="ok") if run.status == "denied" else run


if __name__ == "__main__":
    main(sys.argv[1])
