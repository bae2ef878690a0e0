"""Programs that together need more than the GPU has take turns; one without room waits, and loses nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.sleeping.conftest import Bedroom, get
from tests.sleeping.test_sleep_and_wake import SLEEPS
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

# A context takes 518 MiB, and 600 are reserved; what is touched of the rest takes the machine's memory.
NBYTES = str(400 * MIB)
STRANGER = """
    cuda.start()
    cuda.alloc(int(os.environ["NBYTES"]))
    cuda.tell("ready")
    cuda.heard()
"""


@pytest.fixture
def virtual_gpu(native_libraries: Path) -> Iterator[VirtualGpu]:
    """A card of 2 GiB: two of the servers have room."""
    with VirtualGpu.create(memory_bytes=2700 * MIB) as gpu:
        yield gpu


def test_three_servers_share_a_card_for_two(bedroom: Bedroom) -> None:
    """Requests at random, several at once: all are answered, by what lies in the right program's memory."""
    servers = []
    for _ in range(3):
        program, port = bedroom.server(NBYTES=NBYTES)
        bedroom.sleep("--idle", "1d", "--awake", "1ms", program.pid)
        bedroom.sleep("--awake", "1ms", program.pid)
        servers.append((program, port))
    wrong: list[str] = []

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(SLEEPS):
            answer = get(chance.choice(servers)[1], f"/{seed}-{number}")
            if answer != f"before /{seed}-{number}":
                wrong.append(answer)

    clients = [threading.Thread(target=ask, args=(seed,)) for seed in range(2)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert wrong == []
    states = list(bedroom.states().values())
    assert len(states) == 3


def test_without_room_it_waits_and_says_for_what(bedroom: Bedroom) -> None:
    program, port = bedroom.server(NBYTES=NBYTES)
    bedroom.sleep(program.pid)
    stranger = bedroom.machine.program(STRANGER, NBYTES=str(1300 * MIB))
    answers: list[str] = []
    client = threading.Thread(target=lambda: answers.append(get(port)))
    client.start()
    bedroom.until(program, "waiting for room")
    (listed,) = bedroom.listed()
    assert "programs that do not sleep hold the memory" in listed["trouble"]
    assert answers == []
    stranger.kill()
    client.join()
    assert answers == ["before /"]


def test_one_that_works_keeps_its_place(bedroom: Bedroom) -> None:
    """It is asked for its place when it rests."""
    busy = bedroom.machine.program(
        """
        import select
        cuda.start()
        cuda.alloc(int(os.environ["NBYTES"]))
        cuda.tell("ready")
        while not select.select([sys.stdin], [], [], 0)[0]:
            sum(range(10000))
        cuda.heard()
        cuda.tell("rests")
        cuda.heard()
        """,
        NBYTES=str(1000 * MIB),
    )
    bedroom.sleep("--anyway", busy.pid)
    program, port = bedroom.server(NBYTES=NBYTES)
    bedroom.sleep(program.pid)
    bedroom.sleep("--idle", "1d", "--awake", "1ms", busy.pid)
    bedroom.wake(busy.pid)
    client = threading.Thread(target=lambda: get(port))
    client.start()
    bedroom.until(program, "waiting for room")
    assert bedroom.states()[busy.pid] == "awake"
    until(lambda: "it works" in str(bedroom.listed()), bedroom.log, 0.1)
    busy.go()
    assert busy.told() == "rests"
    client.join()
