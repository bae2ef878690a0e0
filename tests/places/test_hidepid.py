"""A /proc that hides others' processes, mounted for real: who holds memory is hidden there, and not dead.

To see as others do, vram keeps its user here and gives up its groups and capabilities: what the kernel
asks before it shows a process is not whether somebody is called root.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.doctor.conftest import in_the_first_namespace
from tests.needs import skip_without
from tests.virtualgpu.conftest import Hold, hold
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

__all__ = ["hold"]

HIDE = 'mount -t proc -o "$1" proc /proc && shift && exec "$@"'
AS_A_STRANGER = """
import ctypes, os, sys
os.setgroups([])
os.setresgid(65534, 65534, 65534)
for capability in range(64):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: exec brings none of them back
os.execv(sys.argv[1], sys.argv[1:])
"""
STRANGER = (sys.executable, "-c", AS_A_STRANGER)


@pytest.fixture(params=["hidepid=2", "hidepid=4"])
def hiding(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What runs a command below a /proc of its own, in our PID namespace."""
    enter = ("unshare", "--mount", "sh", "-c", HIDE, "sh", request.param)
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True).returncode:
        skip_without("mounts", "no /proc may be mounted here")
    return enter


def vram(gpu: VirtualGpu, under: tuple[str, ...], *words: object) -> subprocess.CompletedProcess[str]:
    argv = [*under, sys.executable, "-m", "vram", *map(str, words)]
    return gpu.run(argv, capture_output=True, text=True)


def why(gpu: VirtualGpu, under: tuple[str, ...]) -> dict[str, Any]:
    done = vram(gpu, under, "why", "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def by_kind(answer: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for entry in answer["gpus"][0]["entries"]:
        kinds.setdefault(entry["kind"], []).append(entry)
    return kinds


def test_others_are_hidden_and_never_called_dead(
    virtual_gpu: VirtualGpu, hold: Hold, hiding: tuple[str, ...]
) -> None:
    neighbour = hold(virtual_gpu, 2 * GIB)
    (seen,) = by_kind(why(virtual_gpu, ()))["process"]
    answer = why(virtual_gpu, (*hiding, *STRANGER))
    found = by_kind(answer)
    assert answer["host"]["hides_processes"]
    assert not found.keys() & {"process", "orphaned", "unattributed"}
    (entry,) = found["hidden"]
    assert (entry["charged_pid"], entry["nbytes"]) == (neighbour.pid, seen["nbytes"])
    assert not entry["holder"]["visible"]
    assert entry["hidden_by"] == ("permission" if in_the_first_namespace() else "namespace")
    assert not [line for line in entry["evidence"] if "does not exist" in line]
    assert sum(e["nbytes"] or 0 for e in answer["gpus"][0]["entries"]) == answer["gpus"][0]["total_bytes"]


def test_the_words_for_people_say_the_same(
    virtual_gpu: VirtualGpu, hold: Hold, hiding: tuple[str, ...]
) -> None:
    neighbour = hold(virtual_gpu, 2 * GIB)
    done = vram(virtual_gpu, (*hiding, *STRANGER), "why", "--ascii")
    text = " ".join(done.stdout.split())
    assert "hidden" in text
    assert not [word for word in ("dead", "gone", "orphaned", "any more") if word in text], done.stdout
    refused = vram(virtual_gpu, (*hiding, *STRANGER), "kill", neighbour.pid, "--yes")
    assert refused.returncode != 0, refused.stdout
    assert neighbour.process.poll() is None


def test_our_own_processes_are_still_named(
    virtual_gpu: VirtualGpu, hold: Hold, hiding: tuple[str, ...]
) -> None:
    hold(virtual_gpu, 2 * GIB)
    ours = hold(virtual_gpu, GIB, under=STRANGER)
    found = by_kind(why(virtual_gpu, (*hiding, *STRANGER)))
    assert [entry["holder"]["pid"] for entry in found["process"]] == [ours.pid]
    assert len(found["hidden"]) == 1


def test_root_sees_everybody_there(virtual_gpu: VirtualGpu, hold: Hold, hiding: tuple[str, ...]) -> None:
    neighbour = hold(virtual_gpu, 2 * GIB)
    answer = why(virtual_gpu, hiding)
    assert [entry["holder"]["pid"] for entry in by_kind(answer)["process"]] == [neighbour.pid]


def test_who_is_dead_is_called_dead_by_who_sees_everybody(
    virtual_gpu: VirtualGpu, hold: Hold, hiding: tuple[str, ...]
) -> None:
    """The mount's word alone makes nothing hidden: the forked child that keeps the memory is named."""
    forked = hold(virtual_gpu, GIB, 0, "fork")
    (entry,) = by_kind(why(virtual_gpu, hiding))["orphaned"]
    assert (entry["holder"]["pid"], entry["charged_pid"]) == (forked.living_pid, forked.pid)
