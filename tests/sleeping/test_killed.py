"""Fault row 40: whatever is killed of vram's while programs sleep, each request is answered, and rightly.

``VRAM_KILLS=1000`` makes it as long as the promise is.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.patience import PATIENCE_S, until, until_gone
from tests.sleeping.conftest import Bedroom, get
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

KILLS = int(os.environ.get("VRAM_KILLS", "10"))
NBYTES = str(400 * MIB)


@pytest.fixture
def virtual_gpu(native_libraries: Path) -> Iterator[VirtualGpu]:
    """A card on which two of three servers have room."""
    with VirtualGpu.create(memory_bytes=2700 * MIB) as gpu:
        yield gpu


def helpers(bedroom: Bedroom) -> dict[int, str]:
    """What vram has started for what sleeps on this machine, by pid.

    No checkpoint worker: where one is killed in the midst of a restore, the virtual driver's thread is
    stopped with the lock of all processes (native/virtualgpu/DESIGN.md, "Not modelled").
    """
    mine = f"XDG_STATE_HOME={bedroom.machine.state_home}".encode()
    words = {b"vram.sleeping.waker": "waker", b"vram.sleeping.standby": "standby"}
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and mine in (folder / "environ").read_bytes().split(b"\0"):
                line = (folder / "cmdline").read_bytes()
                found |= {int(folder.name): name for word, name in words.items() if word in line}
    return found


@pytest.mark.fault(40)
def test_kills_at_random_moments(bedroom: Bedroom, tally: Tally) -> None:
    servers = []
    for _ in range(3):
        program, port = bedroom.server(NBYTES=NBYTES)
        bedroom.sleep("--idle", "100ms", "--awake", "1ms", program.pid)
        bedroom.until(program, "asleep")
        servers.append((program, port))
    ended = threading.Event()
    answers: Counter[str] = Counter()

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        number = 0
        while not ended.is_set():
            number += 1
            try:
                right = get(chance.choice(servers)[1], f"/{number}") == f"before /{number}"
            except (OSError, http.client.HTTPException):
                right = False
            answers["right" if right else "wrong"] += 1
            ended.wait(chance.expovariate(5.0))

    clients = [threading.Thread(target=ask, args=(seed,)) for seed in range(2)]
    for each in clients:
        each.start()
    chance = random.Random(KILLS)
    killed: Counter[str] = Counter()
    try:
        for _ in range(KILLS):
            ended.wait(chance.expovariate(2.0))
            names = helpers(bedroom)
            if not names:  # both were killed within a moment: any command of the user's starts another
                bedroom.listed()
                continue
            pid = chance.choice(sorted(names))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed[names[pid]] += 1
    finally:
        ended.set()
        for each in clients:
            each.join(PATIENCE_S)
    tally.count(KILLS, landed=sum(killed.values()), wrong=answers["wrong"])
    assert not any(each.is_alive() for each in clients), bedroom.log()
    assert answers["wrong"] == 0, bedroom.log()
    assert answers["right"]
    assert [program.process.poll() for program, _ in servers] == [None] * 3


@pytest.mark.fault(40)
def test_the_standby_starts_another_waker(bedroom: Bedroom) -> None:
    program, port = bedroom.server(NBYTES=NBYTES)
    bedroom.sleep(program.pid)
    first = bedroom.waker()
    until(lambda: "standby" in helpers(bedroom).values())
    os.kill(first, signal.SIGKILL)
    until_gone(first)
    assert get(port) == "before /"


@pytest.mark.fault(40)
def test_with_both_killed_the_list_starts_another(bedroom: Bedroom) -> None:
    program, port = bedroom.server(NBYTES=NBYTES)
    bedroom.sleep(program.pid)
    until(lambda: "standby" in helpers(bedroom).values())
    names = helpers(bedroom)
    for name in ("standby", "waker"):
        for pid in (pid for pid, each in names.items() if each == name):
            os.kill(pid, signal.SIGKILL)
            until_gone(pid)
    assert bedroom.states() == {program.pid: "asleep"}
    assert get(port) == "before /"


def test_a_waker_that_is_asked_to_end_wakes_all(bedroom: Bedroom) -> None:
    program, port = bedroom.server(NBYTES=NBYTES)
    bedroom.sleep("--idle", "1d", program.pid)
    bedroom.sleep(program.pid)
    waker = bedroom.waker()
    os.kill(waker, signal.SIGTERM)
    until_gone(waker)
    assert get(port) == "before /"
    assert bedroom.listed() == []
