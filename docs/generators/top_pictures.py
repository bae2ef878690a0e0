"""Draw the pictures of `vram top`: the view itself, on surveys of demos that really run.

python docs/generators/top_pictures.py docs/pictures

Host, user, pids and ages are replaced as in the other pictures, so that taking them again changes
nothing unless the view has changed.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generators.pictures import FIRST_PID, TAKEN_AT, observe, same_everywhere
from vram.diagnosis.engine import diagnose
from vram.host.local import LocalHost
from vram.ledger.build import build_ledger
from vram.live_reader import LiveReading
from vram.model.plan import Draft, Plan, Step, Target
from vram.model.process import ProcessRef
from vram.probes import bundle
from vram.report import plan as plan_text
from vram.report import svg
from vram.top.app import TopApp
from vram.top.dialogs import Question
from vram.units import GIB
from vram.virtualgpu.demos import EXPORT, FORK, POOL, THREAD, Demo

SCENES = ((POOL,), (POOL, THREAD), (POOL, THREAD, EXPORT), (FORK, POOL, THREAD, EXPORT))
"""What runs at each of the moments before the picture is taken, so that memory over time has steps."""
READINGS_EACH = 8
STEP_S = 30.0
NARROW, WIDE = (80, 24), (120, 36)


class DrawnSource:
    """Hands over readings that were made beforehand."""

    waiting_s = 0.0

    def __init__(self, readings: list[LiveReading]) -> None:
        self._readings = readings
        self._on_reading: Callable[[LiveReading], None] = lambda reading: None

    def listen(self, on_reading: Callable[[LiveReading], None]) -> None:
        self._on_reading = on_reading

    def ask(self, whole: bool = False) -> bool:
        return False

    def close(self) -> None:
        pass

    def play(self) -> None:
        for reading in self._readings:
            for _ in range(READINGS_EACH):
                self._on_reading(reading)


PICTURES: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {
    "top": (WIDE, ()),
    "top-tree": (NARROW, ("t",)),
    "top-plan": (NARROW, ("plan",)),
}
"""How large each is, and the keys that are pressed before it is taken; "plan" is a question."""


def main(folder: str, scenes: tuple[tuple[Demo, ...], ...] = SCENES) -> None:
    readings = [_reading(demos) for demos in scenes]
    target = Path(folder)
    target.mkdir(exist_ok=True)
    for name, (size, keys) in PICTURES.items():
        picture = _with_local_fonts(asyncio.run(_draw(readings, size, keys)))
        (target / f"{name}.svg").write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")


def _with_local_fonts(picture: str) -> str:
    """Textual's frame asks a foreign server for its font; the reader's own monospaced one will do."""
    picture = re.sub(r"@font-face \{[^}]*\}\s*", "", picture)
    return picture.replace("font-family: Fira Code, monospace", f"font-family: {svg.FONTS}")


def _reading(demos: tuple[Demo, ...]) -> LiveReading:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "survey.json"
        pids = observe(demos, path)
        ledger = build_ledger(same_everywhere(bundle.read(str(path)), pids))
    return LiveReading(taken_at=TAKEN_AT, took_s=0.0, ledger=ledger, findings=diagnose(ledger))


async def _draw(readings: list[LiveReading], size: tuple[int, int], keys: tuple[str, ...]) -> str:
    ticks: Iterator[int] = count()
    source = DrawnSource(readings)
    app = TopApp(source, LocalHost, clock=lambda: next(ticks) * STEP_S)
    async with app.run_test(size=size) as pilot:
        source.play()
        await pilot.pause()
        for key in keys:
            if key == "plan":
                options = app.options._replace(width=66)
                app.push_screen(
                    Question("vram free pid 4712", [plan_text.draft(_plan(), options)], ascii_only=False)
                )
            else:
                await pilot.press(key)
            await pilot.pause()
        return app.export_screenshot(title="vram top")


def _plan() -> Draft:
    """What `f` plans for the ghost of the pictures."""
    target = Target(
        process=ProcessRef(FIRST_PID + 1, 100_000),
        uid=1000,
        user="user",
        command="python forks.py orphan 4GiB",
        executable="/usr/bin/python3",
    )
    step = Step(
        kind="kill",
        target=target,
        gpus=(0,),
        predicted_bytes=4 * GIB + GIB // 2,
        loses="no GPU work: the owner of the memory is dead",
        reversible=False,
        reason="it holds memory of dead pid 4711",
        finding="VR101",
    )
    digest = "9bfb8781ac28" + "0" * 52
    made = Plan(made_at=TAKEN_AT, boot_id="", goal_bytes=None, gpus=(0,), steps=(step,), digest=digest)
    return Draft(plan=made)


if __name__ == "__main__":
    main(sys.argv[1])
