"""Waiting for room: in order, and nobody is kept out by those who only wait."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.policy.conftest import gpu, ledger, process
from tests.serve.users import UsersMachine, needs_root
from vram.errors import NotPermitted
from vram.model.ledger import Ledger
from vram.serve.socket.waiting import BEHIND_S, GRANT_S, KEEP_S, MAX_OF_ONE_USER, WaitingList
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

ALICE, BOB, CAROL = 1, 2, 3


class Waits:
    """A waiting list whose readings come every second, and who was served."""

    def __init__(self) -> None:
        self.list = WaitingList()
        self.served: list[str] = []
        self.now = 100.0

    def add(self, name: str, uid: int, size: int, *gpus: int) -> int:
        return self.list.add(uid, size * GIB, gpus, lambda gpu, free: self.served.append(name)).number

    def read(self, found: Ledger, seconds: float = 1.0) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.list.serve(found, self.now)


def used(size: int, uid: int | None = None) -> Ledger:
    """A GPU of 80 GiB of which *size* are held, by a process of *uid*."""
    return ledger(gpu(process(1, size * GIB, uid=uid)))


def test_who_came_first_is_served_first_and_room_is_not_given_twice():
    waits = Waits()
    first = waits.add("first", ALICE, 50)
    waits.add("second", BOB, 40)
    waits.read(used(10))  # 70 GiB are free
    assert waits.served == ["first"]
    waits.read(used(10), GRANT_S / 2)
    assert waits.served == ["first"]
    waits.list.remove(first)
    waits.read(used(10))
    assert waits.served == ["first", "second"]


def test_what_the_first_one_needs_is_kept_for_it():
    waits = Waits()
    waits.add("large", ALICE, 60)
    small = waits.add("small", BOB, 10)
    waits.read(used(30), KEEP_S / 2)  # 50 GiB are free
    assert waits.served == []
    waits.read(used(20))
    assert waits.served == ["large"]
    waits.list.remove(small)


def test_on_another_gpu_those_behind_are_served():
    waits = Waits()
    waits.add("large", ALICE, 70, 0)
    waits.add("small", BOB, 10, 0, 1)
    waits.read(ledger(gpu(process(1, 30 * GIB)), gpu(process(2, 50 * GIB), index=1)))
    assert waits.served == ["small"]


def test_room_is_not_kept_for_ever_even_for_who_leaves_and_comes_again():
    waits = Waits()
    everything = waits.add("everything", ALICE, 79)
    waits.add("small", BOB, 10)
    waits.read(used(30), KEEP_S / 2)
    waits.list.remove(everything)
    assert waits.served == []
    everything = waits.add("everything", ALICE, 79)
    waits.add("large", CAROL, 55)
    waits.read(used(30))
    assert waits.served == ["small"]  # it came before the new request
    waits.read(used(40, BOB), KEEP_S / 2 + 2)
    assert waits.served == ["small"]
    waits.read(used(0))
    assert waits.served == ["small", "large"]  # alice's request goes behind


def test_a_grant_that_is_not_used_costs_the_place_in_the_queue():
    waits = Waits()
    waits.add("unused", ALICE, 10)
    waits.read(used(0), GRANT_S + 1)
    assert waits.served == ["unused"]
    waits.add("again", ALICE, 60)
    waits.add("other", BOB, 60)
    waits.read(used(10))
    assert waits.served == ["unused", "other"]
    waits.read(used(70), BEHIND_S + GRANT_S)
    waits.add("later", CAROL, 60)
    waits.read(used(10))
    assert waits.served == ["unused", "other", "again"]


@pytest.mark.parametrize("uid", [ALICE, CAROL])
def test_a_grant_that_is_used_costs_nothing(uid: int):
    """Also where a program of another user uses it: a container's, for example."""
    waits = Waits()
    grant = waits.add("used", ALICE, 10)
    waits.read(used(0))
    waits.read(used(10, uid), 5)
    waits.list.remove(grant)
    waits.read(used(0), GRANT_S)
    waits.add("again", ALICE, 60)
    waits.add("other", BOB, 60)
    waits.read(used(10))
    assert waits.served == ["used", "again"]


def test_who_takes_a_grant_and_hangs_up_has_not_used_it():
    waits = Waits()
    for _ in range(3):
        number = waits.add("grant", ALICE, 3)
        waits.read(used(0))
        waits.list.remove(number)
    waits.read(used(0), GRANT_S)
    waits.add("again", ALICE, 60)
    waits.add("other", BOB, 60)
    waits.read(used(10))
    assert waits.served == ["grant"] * 3 + ["other"]


def test_each_user_waits_for_a_few_only():
    waits = Waits()
    for _ in range(MAX_OF_ONE_USER):
        waits.add("one", ALICE, 79)
    with pytest.raises(NotPermitted):
        waits.add("too many", ALICE, 1)
    waits.add("another", BOB, 1)


# ---- the attack: small requests again and again, never used ----

AGAIN = """
import itertools, select, socket, sys, time

def come():
    made = socket.socket(socket.AF_UNIX)
    made.connect(sys.argv[1])
    made.sendall(b'{"schema": 1, "do": "wait", "nbytes": %d}\\n' % (20 << 30))
    return made

# By and by, so that some are always granted.
holds = itertools.chain((1.0, 1.5, 2.0, 2.5), itertools.repeat(2.0))
waiting, granted = [come() for _ in range(4)], {}
while True:
    for made in select.select(waiting, (), (), 0.1)[0]:
        said = made.recv(1 << 16)
        if b'"room"' in said:
            granted[made] = time.monotonic() + next(holds)
            print("granted", flush=True)
        elif not said or b'"error"' in said:
            waiting[waiting.index(made)] = come()
    for made in [each for each, until in granted.items() if time.monotonic() > until]:
        del granted[made]
        made.close()
        waiting[waiting.index(made)] = come()
"""


@pytest.fixture
def machine(virtual_gpu: VirtualGpu) -> Iterator[UsersMachine]:
    with ExitStack() as stack:
        yield UsersMachine(virtual_gpu, stack)


@needs_root
def test_who_waits_again_and_again_keeps_nobody_out(machine: UsersMachine):
    """Alice always has some grants of 20 GiB that she does not use; bob needs nearly the whole GPU."""
    service = machine.start()
    program = [sys.executable, "-c", AGAIN, str(service.socket)]
    alice = machine.popen("alice", program, stdout=-1, text=True)
    assert alice.stdout is not None
    assert [alice.stdout.readline() for _ in range(4)] == ["granted\n"] * 4
    done = machine.wait("bob", "135GiB")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
