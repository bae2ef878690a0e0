"""The reserve for managed memory, proved or not: real processes on a virtual GPU, in a /proc without others.

What else runs on the machine of the tests could hold anything; a folder with links to these processes shows
nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.world import CONTEXT, OVERHEAD, World
from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.model.observation import Observation, Survey
from vram.probes.sources.elsewhere import is_needed
from vram.probes.sources.exports import asks_all
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS, DemoProgram

pytestmark = [pytest.mark.native, needs("root")]

IN_FLIGHT = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
near, far = socket.socketpair()
if os.fork() == 0:
    import driver
    driver.init()
    socket.send_fds(near, [b"x"], [driver.export(driver.create(int(sys.argv[2])))])
    os._exit(0)
os.wait()
print(flush=True)
input()
"""


class Room:
    """Some processes, and vram that sees no others."""

    def __init__(self, gpu: VirtualGpu, root: Path, stack: ExitStack) -> None:
        self._gpu, self._root, self._stack = gpu, root, stack
        root.mkdir()
        self._show("self")

    def demo(self, program: str, nbytes: int, *, stages: int = 0) -> DemoProgram:
        demo = self._stack.enter_context(DemoProgram(self._gpu, program, nbytes))
        for _ in range(stages):
            demo.go()
        self._show(*map(str, demo.pids.values()))
        return demo

    def python(self, code: str, *arguments: object) -> None:
        process = self._gpu.popen(
            [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        self._show(str(process.pid))

    def vram(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._gpu.run(
            [sys.executable, "-m", "vram", *words],
            env={**os.environ, "VRAM_PROC_ROOT": str(self._root)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def entries(self) -> dict[str, tuple[int, str]]:
        done = self.vram("why", "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["gpus"][0]["entries"]
        return {each["kind"]: (each["nbytes"], each["confidence"]) for each in found}

    def _show(self, *names: str) -> None:
        for name in names:
            (self._root / name).symlink_to(f"/proc/{name}")


@pytest.fixture
def room(virtual_gpu: VirtualGpu, tmp_path: Path) -> Iterator[Room]:
    with ExitStack() as stack:
        yield Room(virtual_gpu, tmp_path / "proc", stack)


def test_what_managed_memory_leaves_is_proved_and_clean_in_every_view(room: Room) -> None:
    """The three figures of an H200; before, a hidden process of another user was said to hold them."""
    room.demo("memory.plain", GIB)
    for touched, left in ((4, 124), (64, 60), (200, 116)):
        room.demo("memory.managed", touched * MIB, stages=1).close()
        entries = room.entries()
        assert entries["preallocated"] == (left * MIB, "fact")
        assert not {"hidden", "unattributed"} & set(entries)
        check = room.vram("check", "--leftovers")
        assert (check.returncode, check.stdout) == (0, "GPU 0: clean\n")
    assert "VR408 116.0 MiB of GPU 0 is the driver's reserve" in room.vram("why", "--verbose").stdout
    assert json.loads(room.vram("ps", "--json").stdout)["processes"][1:] == []


def test_with_the_last_process_it_is_gone(room: Room) -> None:
    plain = room.demo("memory.plain", GIB)
    room.demo("memory.managed", 4 * MIB, stages=1).close()
    assert "preallocated" in room.entries()
    plain.close()
    assert set(room.entries()) == {"reserved", "free"}


@pytest.mark.parametrize("nbytes", [100 * MIB, 300 * MIB])
def test_memory_whose_descriptor_is_on_its_way_is_not_taken_for_the_reserve(room: Room, nbytes: int) -> None:
    """No process has it open, its maker is dead, no list has it: only the socket's own figure tells."""
    room.demo("memory.plain", GIB)
    room.python(IN_FLIGHT, PROGRAMS, nbytes)
    entries = room.entries()
    if nbytes > 126 * MIB:
        assert "preallocated" not in entries
        assert entries["unattributed"][0] == nbytes
    else:
        assert entries["preallocated"] == (nbytes, "likely")
    assert room.vram("check", "--leftovers").returncode == (1 if nbytes > 126 * MIB else 3)


def test_a_holder_beside_the_reserve_is_named_and_the_rest_is_the_reserve(room: Room) -> None:
    room.demo("memory.plain", GIB)
    room.demo("memory.managed", 4 * MIB, stages=1).close()
    holder = room.demo("exports.handle", 2 * GIB, stages=2)
    entries = room.entries()
    assert entries["exported"][0] == 2 * GIB
    assert entries["preallocated"][0] == 124 * MIB
    assert room.vram("check", "--leftovers").returncode == 1
    holder.close()


# ---- when it is worth reading every descriptor of the machine ----


def needed(world: World) -> bool:
    taken: Survey = world.survey()
    return is_needed(taken.host, taken.observations)


def world(nbytes: int, **who: Any) -> World:
    return World(**who).gpu(used=CONTEXT + OVERHEAD + nbytes).cuda(50, CONTEXT)


def test_other_descriptors_are_read_only_where_they_can_prove_something() -> None:
    assert needed(world(124 * MIB))
    assert needed(world(124 * MIB + GIB).process(80).export(80, GIB))
    assert not needed(world(0))
    assert not needed(world(GIB))
    assert not needed(world(124 * MIB, uid=1000))
    assert not needed(world(124 * MIB, initial_pid_namespace=False))
    assert not needed(world(124 * MIB).unreadable(1))
    assert not needed(world(124 * MIB).out_of_time())
    assert not needed(World().gpu(used=124 * MIB))


def test_a_handle_that_nothing_asked_about_leaves_a_doubt() -> None:
    """Beside many contexts those of processes at work are not asked: contexts may cost all of it."""
    one = world(124 * MIB).survey().observations
    assert asks_all(one)
    many = World().gpu(used=10 * (CONTEXT + OVERHEAD) + 60 * MIB)
    for pid in range(50, 60):
        many.cuda(pid, CONTEXT)
    assert not asks_all(many.survey().observations)
    failed = Observation(probe="driver.exports", status="failed", code="gone", message="no answer")
    assert not asks_all((*one, failed))
