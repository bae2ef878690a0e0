"""The same processes, seen from the host and from inside a PID namespace: the answers agree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.needs import skip_without
from tests.virtualgpu.conftest import HOLDER, Hold, hold
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import ProgramLauncher

__all__ = ["hold"]

FRESH = ("--pid", "--fork", "--mount-proc", "--kill-child")
AS_ROOT = ("unshare", *FRESH)
AS_ANYBODY = ("unshare", "--user", "--map-root-user", *FRESH)

# Holds memory, says its pid, then answers questions: each line is one of vram's command lines.
ROOM = f"""
import json, subprocess, sys
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
holder = subprocess.Popen([sys.executable, {str(HOLDER)!r}, sys.argv[1], "0"], **pipes)
print(holder.stdout.readline().strip(), flush=True)
for line in sys.stdin:
    asked = subprocess.run([sys.executable, "-m", "vram", *line.split()], capture_output=True, text=True)
    print(json.dumps([asked.returncode, asked.stdout, asked.stderr, holder.poll()]), flush=True)
"""


class Room:
    """A PID namespace with one holder of GPU memory in it, and vram to be asked there."""

    def __init__(self, gpu: ProgramLauncher, enter: tuple[str, ...], nbytes: int, **env: str) -> None:
        self._process = gpu.popen(
            [*enter, sys.executable, "-c", ROOM, str(nbytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())

    def vram(self, *words: object) -> tuple[int, str, str, int | None]:
        """Exit code, both outputs, and how the room's own holder ended, if it did."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        code, out, err, ended = json.loads(self._process.stdout.readline())
        return code, out, err, ended

    def why(self, *words: str) -> dict[str, Any]:
        code, out, err, _ = self.vram("why", "--json", *words)
        assert code == 0, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


@pytest.fixture(params=[AS_ROOT, AS_ANYBODY], ids=["as root", "in a user namespace"])
def enter(request: pytest.FixtureRequest) -> tuple[str, ...]:
    command: tuple[str, ...] = request.param
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no such namespace may be made here")
    return command


@pytest.fixture
def rooms() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_room(rooms: ExitStack, gpu: VirtualGpu, enter: tuple[str, ...], nbytes: int, **env: str) -> Room:
    room = Room(gpu, enter, nbytes, **env)
    rooms.callback(room.close)
    return room


def why_here(gpu: VirtualGpu) -> dict[str, Any]:
    done = gpu.run([sys.executable, "-m", "vram", "why", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def entries(answer: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in answer["gpus"][0]["entries"] if entry["kind"] == kind]


def nbytes(answer: dict[str, Any], *kinds: str) -> int:
    return sum(entry["nbytes"] for kind in kinds for entry in entries(answer, kind))


def codes(answer: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in answer["findings"]}


def test_host_and_container_agree_on_every_byte(
    virtual_gpu: VirtualGpu, hold: Hold, rooms: ExitStack, enter: tuple[str, ...]
) -> None:
    """What is hidden inside is what the host names outside, and the rest is the same in both."""
    outsider = hold(virtual_gpu, 2 * GIB)
    room = open_room(rooms, virtual_gpu, enter, 1 * GIB)
    host, container = why_here(virtual_gpu), room.why()

    named = {entry["holder"]["pid"]: entry for entry in entries(host, "process")}
    (inside,) = entries(container, "process")
    (twin,) = (entry for pid, entry in named.items() if pid != outsider.pid)
    assert (inside["holder"]["pid"], inside["nbytes"]) == (room.pid, twin["nbytes"])
    assert twin["holder"]["inner_pid"] == room.pid, "the host knows what the container calls it"
    assert twin["holder"]["started_at"] == inside["holder"]["started_at"]

    # Contexts cost a little more than they are charged; that of the outsider is hidden with it.
    beside = nbytes(host, "overhead") - nbytes(container, "overhead")
    assert nbytes(container, "hidden") == named[outsider.pid]["nbytes"] + beside
    assert nbytes(host, "hidden", "unattributed") == 0
    for kind in ("free", "reserved"):
        assert nbytes(host, kind) == nbytes(container, kind)
    assert host["gpus"][0]["total_bytes"] == container["gpus"][0]["total_bytes"]
    for answer in (host, container):
        assert (
            sum(entry["nbytes"] or 0 for entry in answer["gpus"][0]["entries"])
            == answer["gpus"][0]["total_bytes"]
        )


def test_each_view_says_what_it_cannot_see(
    virtual_gpu: VirtualGpu, hold: Hold, rooms: ExitStack, enter: tuple[str, ...]
) -> None:
    hold(virtual_gpu, 2 * GIB)
    room = open_room(rooms, virtual_gpu, enter, 1 * GIB)
    assert "VR301" in codes(room.why())
    assert "VR301" not in codes(why_here(virtual_gpu))
    _, text, _, _ = room.vram("why", "--ascii")
    assert "held by processes outside this PID namespace" in text


def test_a_container_that_is_alone_sees_everything(
    virtual_gpu: VirtualGpu, rooms: ExitStack, enter: tuple[str, ...]
) -> None:
    answer = open_room(rooms, virtual_gpu, enter, 1 * GIB).why()
    assert not entries(answer, "hidden")
    assert "VR301" not in codes(answer)


@pytest.fixture
def old_driver(virtual_gpu: VirtualGpu) -> VirtualGpu:
    """One that shows the host's pids inside of containers, where they name nobody or somebody else."""
    virtual_gpu.set(driver_version="535.183.01", host_pids=True)
    return virtual_gpu


def test_a_pid_of_the_host_is_hidden_and_never_acted_on(
    old_driver: VirtualGpu, hold: Hold, rooms: ExitStack, enter: tuple[str, ...]
) -> None:
    outsider = hold(old_driver, 2 * GIB)
    room = open_room(rooms, old_driver, enter, 1 * GIB)
    answer = room.why()
    (hidden,) = [entry for entry in entries(answer, "hidden") if entry["holder"]]
    assert (hidden["charged_pid"], hidden["hidden_by"]) == (outsider.pid, "namespace")
    code, _, err, _ = room.vram("kill", outsider.pid, "--yes")
    assert code != 0, err
    assert outsider.process.poll() is None


def test_under_such_a_driver_not_even_a_pid_that_fits_is_acted_on(
    old_driver: VirtualGpu, rooms: ExitStack, enter: tuple[str, ...]
) -> None:
    """It is a process of ours with the GPU open; but the list may mean another one by that number."""
    room = open_room(rooms, old_driver, enter, 1 * GIB)
    (process,) = entries(room.why(), "process")
    assert process["confidence"] == "likely"
    code, _, err, ended = room.vram("kill", room.pid, "--yes")
    assert (code != 0, ended) == (True, None), err


def test_a_container_with_one_mig_device_balances_it_alone(
    native_libraries: Path, rooms: ExitStack, enter: tuple[str, ...]
) -> None:
    """The whole GPU is withheld from it, as from every container that is not privileged."""
    with VirtualGpu.create(mig="1g.18gb,2g.35gb", mig_restricted=True) as gpu:
        room = open_room(rooms, gpu, enter, 1 * GIB, CUDA_VISIBLE_DEVICES=first_device(gpu))
        whole = room.why()["gpus"][0]
        assert (whole["total_bytes"], whole["status"]) == (None, "denied")
        assert [each["gpu_instance"] for each in whole["instances"]] == [7, 3]
        one = room.why("--gpu", "0:0")["gpus"][0]
        assert (one["mig"], one["status"]) == ("0:0", "ok")
        assert sum(entry["nbytes"] or 0 for entry in one["entries"]) == one["total_bytes"]
        (process,) = (entry for entry in one["entries"] if entry["kind"] == "process")
        assert process["holder"]["pid"] == room.pid
        code, text, err, _ = room.vram("why", "--ascii")
        assert (code, "MIG 0:0" in text) == (0, True), err
        rooms.close()


def first_device(gpu: VirtualGpu) -> str:
    program = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0);"
    program += "print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)))"
    done = gpu.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return str(done.stdout.strip())


def test_a_holder_is_named_by_both_its_pids(
    virtual_gpu: VirtualGpu, rooms: ExitStack, enter: tuple[str, ...]
) -> None:
    room = open_room(rooms, virtual_gpu, enter, 1 * GIB)
    done = virtual_gpu.run([sys.executable, "-m", "vram", "who"], capture_output=True, text=True)
    assert f"({room.pid} inside)" in done.stdout
