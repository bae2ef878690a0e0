"""Windows asked seldom or not at all: each start of the stand-in is counted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.wsl.conftest import Wsl
from tests.wsl.windows import encoded, install, search_path, speaking, starts
from vram.cli.source import WINDOWS_EVERY_S
from vram.host.local.windows import LocalWindows, SeldomWindows
from vram.model.observation import WINDOWS_LEFT_OUT
from vram.units import GIB


class Hand:
    """A clock's hand that tests move."""

    at_s = 1000.0

    def __call__(self) -> float:
        return self.at_s


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "windows"
    place.mkdir()
    monkeypatch.setenv("PATH", search_path(place))
    return place


def test_an_answer_is_given_again_with_its_age_until_it_is_too_old(folder: Path) -> None:
    install(folder, b"first")
    hand = Hand()
    windows = SeldomWindows(LocalWindows(virtual=True), 15.0, hand)
    fresh = windows.ask("", PATIENCE_S).answer()
    install(folder, b"second")
    hand.at_s += 14
    again = windows.ask("", PATIENCE_S).answer()
    assert (fresh.output, fresh.age_s, again.output, again.age_s) == (b"first", 0, b"first", 14)
    assert starts(folder) == 1
    hand.at_s += 1
    renewed = windows.ask("", PATIENCE_S).answer()
    assert (renewed.output, renewed.age_s, starts(folder)) == (b"second", 0, 2)


def test_one_that_hangs_is_not_waited_for_at_every_look(folder: Path) -> None:
    install(folder, before="import signal; signal.pause()")
    hand = Hand()
    windows = SeldomWindows(LocalWindows(virtual=True), 15.0, hand)
    assert windows.ask("", 0.5).answer().status == "timeout"
    hand.at_s += 3
    install(folder, b"well again")
    assert windows.ask("", PATIENCE_S).answer() == windows.ask("", PATIENCE_S).answer()
    assert windows.ask("", PATIENCE_S).answer().status == "timeout"
    hand.at_s += 12
    assert windows.ask("", PATIENCE_S).answer().output == b"well again"


def test_one_that_was_closed_unheard_is_asked_again(folder: Path) -> None:
    install(folder, b"heard")
    windows = SeldomWindows(LocalWindows(virtual=True), 15.0, Hand())
    windows.ask("", PATIENCE_S).close()
    assert windows.ask("", PATIENCE_S).answer().output == b"heard"


# What `vram watch` and `vram top` do: one host, surveyed again and again.
READ_FIVE_TIMES = """
import sys
from vram.cli.source import WINDOWS_EVERY_S
from vram.host.local import LocalHost
from vram.ledger.build import build_ledger
from vram.probes.survey import survey
from vram.report.json import why
host = LocalHost(windows_every_s=WINDOWS_EVERY_S)
for _ in range(5):
    sys.stdout.buffer.write(why(build_ledger(survey(host, deadline_s=float(sys.argv[1]))), (), compact=True))
"""


def test_reading_again_and_again_starts_powershell_seldom_and_says_how_old_its_answer_is(wsl: Wsl) -> None:
    wsl.gpu.set(windows_bytes=GIB)
    wsl.says(speaking("en", guest=0, other=GIB))
    began = time.monotonic()
    argv = [sys.executable, "-c", READ_FIVE_TIMES, str(PATIENCE_S)]
    done = subprocess.run(argv, env=wsl.environment(), stdout=subprocess.PIPE, check=True)
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rounds) == 5
    took_s = time.monotonic() - began
    assert 1 <= starts(wsl.windows) <= 1 + took_s // WINDOWS_EVERY_S
    for each in rounds:
        (held,) = (entry for entry in each["gpus"][0]["entries"] if entry["kind"] == "windows")
        assert (held["nbytes"], held["windows"]["name"]) == (GIB, "chrome.exe")
    aged = [any(note["code"] == "windows-old" for note in each["gpus"][0]["notes"]) for each in rounds]
    assert aged.count(False) == starts(wsl.windows) or took_s > WINDOWS_EVERY_S
    assert not aged[0]


@pytest.mark.parametrize("command", ["why", "who", "check"])
def test_windows_can_be_left_out(wsl: Wsl, command: str) -> None:
    wsl.gpu.set(windows_bytes=GIB)
    wsl.says(speaking("en", guest=0, other=GIB))
    wsl.vram(command, "--no-windows", "--deadline", f"{PATIENCE_S}s", code=None)
    assert starts(wsl.windows) == 0
    wsl.vram(command, "--deadline", f"{PATIENCE_S}s", code=None)
    assert starts(wsl.windows) == 1


def test_a_page_without_windows_balances_and_says_who_wanted_it(wsl: Wsl) -> None:
    wsl.gpu.set(windows_bytes=GIB)
    wsl.says(encoded(speaking("en", guest=0, other=GIB)))
    report = wsl.why("--no-windows")
    page = report["gpus"][0]
    assert page["windows"]["code"] == WINDOWS_LEFT_OUT
    assert sum(entry["nbytes"] or 0 for entry in page["entries"]) == page["total_bytes"]
    (finding,) = (each for each in report["findings"] if each["code"] == "VR603")
    assert finding["remedies"][-1]["command"] == "vram why"
