"""`vram.account()`, which is `vram.why()` too: programs get the same answer as people, as an object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import vram
from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.errors import BadSnapshot, UsageError
from vram.units import GIB
from vram.virtualgpu import VirtualGpu


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    world = World().gpu(0, used=6 * GIB + 2 * CONTEXT + 2 * OVERHEAD).gpu(1)
    world.cuda(100, 2 * GIB + CONTEXT)
    world.process(201, executable="/usr/bin/python3", forked=True).files(201, family=200)
    world.charge(200, 4 * GIB + CONTEXT)
    path = tmp_path / "snapshot.json"
    path.write_bytes(msgspec.json.encode(world.survey()))
    return str(path)


def test_a_snapshot_as_an_object(snapshot: str) -> None:
    answer = vram.why(snapshot=snapshot)
    assert [row.pid for row in answer.processes] == [201, 100]
    (ghost,) = answer.ghosts
    assert ([each.pid for each in ghost.holders], ghost.dead_pid) == ([201], 200)
    assert (ghost.state, ghost.nbytes, ghost.gpus) == ("ghost", 4 * GIB + CONTEXT, (0,))
    assert repr(ghost) == "<Hold: ghost, 4.5 GiB on GPU 0, of dead pid 200, held by pid 201>"
    assert [finding.code for finding in answer.problems] == ["VR101"]
    assert answer.free_command == "vram free"
    assert [gpu["index"] for gpu in json.loads(answer.json())["gpus"]] == [0, 1]
    assert "GHOST" in str(answer)
    assert "<td>4.5 GiB</td><td>0</td><td>GHOST</td><td>201</td>" in answer._repr_html_()
    assert repr(answer) == "<vram.account(): 2 GPUs, 2 holds, 1 ghost>"


def test_gpus_can_be_chosen(snapshot: str) -> None:
    assert [gpu.index for gpu in vram.why(gpus=[1], snapshot=snapshot).gpus] == [1]
    assert vram.why(gpus=[1], snapshot=snapshot).processes == ()
    with pytest.raises(UsageError, match="no GPU 7"):
        vram.why(gpus=[7], snapshot=snapshot)


def test_a_file_that_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}")
    with pytest.raises(BadSnapshot):
        vram.why(snapshot=str(tmp_path / "x"))


PROGRAM = """
import sys, vram
answer = vram.why()
print(answer.gpus[0].total_bytes, len(answer.processes), "torch" in sys.modules)
"""


def test_this_host_is_read_without_making_a_context(virtual_gpu: VirtualGpu) -> None:
    done = virtual_gpu.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    total, processes, torch = done.stdout.split()
    assert int(total) > GIB
    assert (processes, torch) == ("0", "False")
