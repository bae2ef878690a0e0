"""Ghosts on a GPU that MIG divides: who keeps the bytes, and in which instance they lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.places.test_namespaces import first_device
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

SECOND = 3  # the driver's number of the first instance of two slices


class Inside:
    """A place for demos: one MIG device of a virtual GPU."""

    def __init__(self, gpu: VirtualGpu, uuid: str) -> None:
        self._gpu = gpu
        self._uuid = uuid

    def popen(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        env = {**options.pop("env", os.environ), "CUDA_VISIBLE_DEVICES": self._uuid}
        return self._gpu.popen(argv, env=env, **options)


@pytest.fixture
def divided(native_libraries: Path) -> Iterator[VirtualGpu]:
    with VirtualGpu.create(mig="3g.71gb,2g.35gb") as gpu:
        yield gpu


def second_device(gpu: VirtualGpu) -> str:
    return first_device(gpu).replace("-9100-", f"-9{SECOND}00-")


def why(gpu: VirtualGpu) -> dict[str, Any]:
    done = gpu.run([sys.executable, "-m", "vram", "why", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    whole: dict[str, Any] = json.loads(done.stdout)["gpus"][0]
    assert sum(entry["nbytes"] or 0 for entry in whole["entries"]) == whole["total_bytes"]
    for each in whole["instances"]:
        inside = [e["nbytes"] for e in whole["entries"] if e["gpu_instance"] == each["gpu_instance"]]
        assert sum(inside) == each["total_bytes"]
    return whole


def only(gpu: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = (entry for entry in gpu["entries"] if entry["kind"] == kind)
    return dict(found)


def test_an_exported_allocation_is_proved_in_its_own_instance(divided: VirtualGpu) -> None:
    """A process sees one MIG device only, so every instance is tried by itself."""
    with DemoProgram(Inside(divided, second_device(divided)), "exports.handle", 2 * GIB) as demo:
        demo.go()
        demo.go()
        exported = only(why(divided), "exported")
        assert (exported["gpu_instance"], exported["nbytes"]) == (SECOND, 2 * GIB)
        assert exported["holder"]["pid"] == demo.pids["holder"]
        assert exported["confidence"] == "fact"


def test_a_forked_child_keeps_its_dead_parent_s_memory_in_their_instance(divided: VirtualGpu) -> None:
    with DemoProgram(Inside(divided, second_device(divided)), "forks.orphan", 1 * GIB) as demo:
        demo.kill("parent")
        orphan = only(why(divided), "orphaned")
        assert orphan["gpu_instance"] == SECOND
        assert (orphan["holder"]["pid"], orphan["charged_pid"]) == (
            demo.pids["child"],
            demo.pids["parent"],
        )
