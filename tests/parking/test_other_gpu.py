"""A parked process comes back on another GPU of the same chip, or is refused before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.parking.conftest import CHECKPOINTED, RUNNING, Machine, runs_on
from tests.virtualgpu.conftest import ask
from vram.errors import ExitCode
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

CONTEXT = 518 * MIB


@pytest.fixture
def two(two_virtual_gpus: VirtualGpu, tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(two_virtual_gpus, tmp_path, stack)


def charged(machine: Machine) -> list[list[list[int]]]:
    found: list[list[list[int]]] = ask(machine.gpu, "[processes(0), processes(1)]")
    return found


def entries(machine: Machine) -> dict[int, dict[str, Any]]:
    gpus = json.loads(machine.vram("why", "--json").stdout)["gpus"]
    assert all(sum(each["nbytes"] for each in gpu["entries"]) == gpu["total_bytes"] for gpu in gpus)
    return {gpu["index"]: gpu for gpu in gpus}


@pytest.mark.parametrize("visible", [None, "0"], ids=["it sees both", "it sees one"])
def test_it_comes_back_on_the_other_gpu_with_all_that_it_had(two: Machine, visible: str | None) -> None:
    worker = two.worker(**({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    share = [worker.pid, CONTEXT + 64 * MIB]
    assert charged(two) == [[share], []]
    two.vram("park", worker.pid)
    done = two.vram("unpark", worker.pid, "--gpu", 1)
    assert done.returncode == 0, done.stderr
    assert "582.0 MiB on GPU 1" in done.stdout
    assert charged(two) == [[], [share]]
    assert runs_on(worker)
    assert two.state(worker.pid) == RUNNING
    gpus = entries(two)
    assert next(each["kind"] for each in gpus[1]["entries"]) == "process"
    assert "process" not in [each["kind"] for each in gpus[0]["entries"]]
    assert two.vram("park").stdout == "Nothing is parked.\n"
    (record,) = [each for each in two.audit() if each.get("action") == "unpark"]
    uuids = [gpus[0]["uuid"], gpus[1]["uuid"]]
    assert record["gpus"] == ([uuids, uuids[::-1]] if visible is None else [uuids])


def test_it_can_be_parked_again_there_and_come_home(two: Machine) -> None:
    worker = two.worker()
    for gpu in (1, 0, 1):
        two.vram("park", worker.pid)
        assert two.vram("unpark", worker.pid, "--gpu", gpu).returncode == 0
        assert len(charged(two)[gpu]) == 1
        assert runs_on(worker)


def test_its_memory_is_freed_there_when_it_ends(two: Machine) -> None:
    worker = two.worker()
    two.vram("park", worker.pid)
    two.vram("unpark", worker.pid, "--gpu", 1)
    worker.process.kill()
    worker.process.wait()
    assert ask(two.gpu, "[memory(0)['v2'][3], memory(1)['v2'][3]]") == [0, 0]
    assert [path.name for path in (two.gpu.folder / "memory").iterdir()] == []


def test_the_gpu_that_it_was_on_is_no_other(two: Machine) -> None:
    worker = two.worker()
    two.vram("park", worker.pid)
    assert two.vram("unpark", worker.pid, "--gpu", 0).returncode == 0
    assert charged(two)[0] != []


def test_a_full_gpu_is_no_place(two: Machine) -> None:
    two.gpu.set(1, total_bytes=2 * GIB)
    worker, other = two.worker(), two.worker(GPU="1", NBYTES=str(700 * MIB))
    two.vram("park", worker.pid)
    done = two.vram("unpark", worker.pid, "--gpu", 1)
    assert done.returncode != 0
    assert two.state(worker.pid) == CHECKPOINTED
    assert two.vram("unpark", worker.pid).returncode == 0
    assert runs_on(worker)
    assert runs_on(other)


def test_refused_before_anything_happens(two: Machine) -> None:
    worker = two.worker()
    two.vram("park", worker.pid)

    def refused(code: int, said: str, *words: object) -> None:
        done = two.vram("unpark", worker.pid, *words)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
        assert two.state(worker.pid) == CHECKPOINTED

    refused(ExitCode.USAGE, "there is no GPU 7", "--gpu", 7)
    refused(ExitCode.USAGE, "--gpu cannot be combined", "--gpu", 1, "--anyway")
    two.gpu.set(1, name="NVIDIA L4")
    refused(ExitCode.CANNOT_PARK, "the driver takes the same chip only", "--gpu", 1)
    two.gpu.set(1, name="NVIDIA H200")
    two.gpu.set(driver_version="575.10")
    refused(ExitCode.CANNOT_PARK, "driver 575.10 brings processes back to their own GPU only", "--gpu", 1)
    two.gpu.set(driver_version="580.159.04")
    assert [each["action"] for each in two.audit() if each["event"] == "intend"] == ["park"]
    assert two.vram("unpark", worker.pid, "--gpu", 1).returncode == 0
    assert runs_on(worker)


def test_one_on_two_gpus_is_not_split(two: Machine) -> None:
    both = """
    cuda.start(0)
    cuda.alloc(64 * MIB)
    cuda.start(1)
    cuda.alloc(64 * MIB)
    cuda.tell("ready")
    cuda.heard()
    """
    worker = two.program(both)
    two.vram("park", worker.pid)
    done = two.vram("unpark", worker.pid, "--gpu", 1)
    assert done.returncode == ExitCode.CANNOT_PARK
    assert "it was on several GPUs" in done.stderr
    assert two.vram("unpark", worker.pid).returncode == 0


def test_a_driver_that_refuses_leaves_it_parked(two: Machine) -> None:
    worker = two.worker()
    two.vram("park", worker.pid)
    two.gpu.fail("cuCheckpointProcessRestore", error=1)
    assert two.vram("unpark", worker.pid, "--gpu", 1).returncode != 0
    assert two.state(worker.pid) == CHECKPOINTED
    two.gpu.clear_faults()
    assert two.vram("unpark", worker.pid).returncode == 0
    assert runs_on(worker)
