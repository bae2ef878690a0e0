"""Take the pictures of the page of `vram serve`: a real service and its page, in a browser, light and dark.

python docs/generators/serve_pictures.py docs/pictures

What the service reads are surveys of demos that really run; host, user, pids and ages are replaced as in the
other pictures. Its clock goes from one reading to the next by ten seconds and then stops: an hour of history
takes a moment, and taking the pictures again changes nothing but what the page or the fonts of this machine
change. They need Chromium; without one they stay as they are.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from generators.pictures import observe, same_everywhere  # noqa: E402
from tests.browser.chromium import Browser, Page, find, started  # noqa: E402
from vram.diagnosis.engine import diagnose  # noqa: E402
from vram.ledger.build import build_ledger  # noqa: E402
from vram.live_reader import LiveReading  # noqa: E402
from vram.model.moment import Moment  # noqa: E402
from vram.model.observation import Survey  # noqa: E402
from vram.probes import bundle  # noqa: E402
from vram.report.json import encode  # noqa: E402
from vram.serve import config as configuration  # noqa: E402
from vram.serve.config import HttpConfig, ServeConfig, SocketConfig  # noqa: E402
from vram.serve.service import Service  # noqa: E402
from vram.virtualgpu.demos import EXPORT, FORK, POOL, THREAD  # noqa: E402

WIDTH, HEIGHT = 1200, 900
END = 1767268800.0  # 2026-01-01T12:00:00Z
STEP_S = 10.0
SCENES = ((POOL,), (POOL, THREAD), (POOL, THREAD, EXPORT), (POOL, THREAD, EXPORT, FORK))
BEGINNINGS_S = (52 * 60, 37 * 60, 21 * 60, 8 * 60)
"""What runs, and so long before the end it began."""
PICTURES = {
    "serve-page": (False, "", "body"),
    "serve-page-dark": (True, "", "body"),
    "serve-history": (False, f"#at={END - 15 * 60:.0f}&on=0&q=python", "#history-section"),
}
"""Of each: whether it is dark, what is shown, and what is scrolled to."""


def main(folder: str) -> None:
    if find() is None:
        print("no Chromium here: the pictures of the service's page stay as they are")
        return
    with started() as browser:
        take(browser, Path(folder))


def take(browser: Browser, folder: Path) -> None:
    with TemporaryDirectory() as work:
        for number, demos in enumerate(SCENES):
            survey = Path(work) / "survey.json"
            pids = observe(demos, survey, gpus=2)
            same = same_everywhere(bundle.read(str(survey)), pids)
            (Path(work) / f"scene{number}.json").write_bytes(encode(same))
        with running(Path(work)) as address:
            for name, (dark, shown, place) in PICTURES.items():
                page = browser.open(address + shown, width=WIDTH, height=HEIGHT, dark=dark)
                _show(page, place)
                page.screenshot(folder / f"{name}.png")
                page.close()


def _show(page: Page, place: str) -> None:
    page.send("Emulation.setTimezoneOverride", timezoneId="UTC")
    page.send("Page.reload")
    page.until("document.querySelector('.ghost')")
    page.run(f"scrollTo(0, document.querySelector({place!r}).offsetTop - 10)")
    page.until("document.getElementById('lanes').dataset.drawn || scrollY === 0")
    if place != "body":
        page.until("document.querySelector('#holders tbody tr') && document.querySelector('#found tbody tr')")
    page.run(f"scrollTo(0, document.querySelector({place!r}).offsetTop - 10)")


# ---- the service ----


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """The address of a service in a process of its own, when its clock has stopped."""
    with open(folder / "log", "wb") as log:
        service = subprocess.Popen([sys.executable, __file__, "--serve", folder], stderr=log)
    try:
        yield _wait(service, folder / "log")
    finally:
        service.kill()
        service.wait()


def _wait(service: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 120
    while service.poll() is None and time.monotonic() < deadline:
        address = log.read_text().partition("listening on ")[2].partition(" ")[0]
        if address:
            with urlopen(f"{address}page/now.json", timeout=60) as answer:
                if json.load(answer)["now"] >= END:
                    return address
        time.sleep(0.05)
    raise SystemExit(f"the service did not come up: {log.read_text()}")


class SteppingClock:
    """Goes on by a step whenever the service waits, until the end; then it stands, and waiting takes time."""

    def __init__(self) -> None:
        self.wall = END - BEGINNINGS_S[0] - 60.0

    def now(self) -> Moment:
        return Moment(self.wall, self.wall - END + 86400.0, "picture")

    async def sleep(self, seconds: float) -> None:
        if self.wall < END:
            self.wall = min(END, self.wall + STEP_S)
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(seconds)


class SceneSource:
    """Hands over the scene of the time that the clock shows."""

    launches = 1
    waiting_s = 0.0

    def __init__(self, readings: list[LiveReading], clock: SteppingClock) -> None:
        self._readings, self._clock = readings, clock
        self._on_reading: Callable[[LiveReading], None] = lambda reading: None

    def listen(self, on_reading: Callable[[LiveReading], None]) -> None:
        self._on_reading = on_reading

    def ask(self, whole: bool = False) -> bool:
        begun = [at for at, before_s in enumerate(BEGINNINGS_S) if self._clock.wall >= END - before_s]
        reading = self._readings[begun[-1] if begun else 0]
        asyncio.get_running_loop().call_soon(self._on_reading, reading)
        return True

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


def serve(folder: Path) -> None:
    clock = SteppingClock()
    readings = [_reading(folder / f"scene{number}.json") for number in range(len(SCENES))]
    config = ServeConfig(
        interval="0.5s", http=HttpConfig(listen="127.0.0.1:0"), socket=SocketConfig(enabled=False)
    )
    places = configuration.places(config, state=str(folder / "state"))
    asyncio.run(Service(config, places, source=SceneSource(readings, clock), clock=clock).run())


def _reading(path: Path) -> LiveReading:
    survey: Survey = bundle.read(str(path))
    ledger = build_ledger(survey)
    return LiveReading(taken_at=survey.taken_at, took_s=0.0, ledger=ledger, findings=diagnose(ledger))


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(Path(sys.argv[2]))
    else:
        main(sys.argv[1])
