"""MPS on the virtual GPU: a server and its clients are processes of their own, and are told apart.

The server is a program at the place where packages put it, in a mount namespace that the test makes:
vram goes by the kernel's word for where a program lies, and by no name that a process gives itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.needs import require, skip_without
from tests.virtualgpu.conftest import Hold, Holder, ask, hold
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

__all__ = ["hold"]

NAME = "nvidia-cuda-mps-server"
INSTALLED = Path("/usr/local/sbin")
OWN_MOUNTS = ("unshare", "--mount")
# What comes last on the line is the interpreter's own path and what it is given: the copy takes its place.
INSTALL = f'mount --bind "$1" {INSTALLED} && shift 2 && exec {INSTALLED}/{NAME} "$@"'
ELSEWHERE = 'program="$1" && shift 2 && exec "$program" "$@"'
INTERPRETER = {
    "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}",
    "LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR") or "",
}
CLIENT = {"VRAM_VIRTUAL_MPS": "client"}
REFUSED = (("kill", "--yes"), ("park",), ("trim",))

Serve = Callable[[], Holder]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program of the server's name: it makes a context and waits."""
    folder = tmp_path / "sbin"
    folder.mkdir()
    return Path(shutil.copy(Path(sys.executable).resolve(), folder / NAME))


@pytest.fixture
def serve(virtual_gpu: VirtualGpu, hold: Hold, program: Path) -> Serve:
    """Start a server that lies where packages install it."""
    require("root", detail="only what root installed is taken for a part of the system")
    trial = [*OWN_MOUNTS, "mount", "--bind", program.parent, INSTALLED]
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True).returncode:
        skip_without("mounts", "nothing may be mounted here")
    under = (*OWN_MOUNTS, "sh", "-c", INSTALL, "sh", str(program.parent))
    return lambda: hold(virtual_gpu, env=INTERPRETER, under=under)


def vram(gpu: VirtualGpu, *words: object) -> subprocess.CompletedProcess[str]:
    return gpu.run([sys.executable, "-m", "vram", *map(str, words)], capture_output=True, text=True)


def told(gpu: VirtualGpu, *words: object) -> dict[str, Any]:
    done = vram(gpu, *words, "--json")
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def processes(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {e["holder"]["pid"]: e for e in answer["gpus"][0]["entries"] if e["kind"] == "process"}


def mps_finding(answer: dict[str, Any]) -> dict[str, Any]:
    (finding,) = (each for each in answer["findings"] if each["code"] == "VR303")
    return dict(finding)


def listed(gpu: VirtualGpu, kind: str) -> dict[int, int]:
    """What NVML itself lists: bytes by pid."""
    calls = f"[[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGet{kind}RunningProcesses_v3(handle(0))]"
    return dict(ask(gpu, calls))


def test_clients_stand_under_their_server_with_their_bytes(
    virtual_gpu: VirtualGpu, hold: Hold, serve: Serve
) -> None:
    server = serve()
    sizes = {hold(virtual_gpu, nbytes, env=CLIENT).pid: nbytes for nbytes in (1 * GIB, 2 * GIB)}
    charged = listed(virtual_gpu, "MPSCompute")
    assert set(charged) == set(sizes)
    assert set(listed(virtual_gpu, "Compute")) == {server.pid, *sizes}

    answer = told(virtual_gpu, "why")
    named = processes(answer)
    assert named[server.pid]["holder"]["executable"] == str(INSTALLED / NAME)
    assert {pid: entry["mps_server"] for pid, entry in named.items()} == {
        server.pid: None,
        **dict.fromkeys(sizes, server.pid),
    }
    assert {pid: named[pid]["nbytes"] for pid in sizes} == charged
    assert all(charged[pid] >= nbytes for pid, nbytes in sizes.items())
    gpu = answer["gpus"][0]
    assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]
    assert set(mps_finding(answer)["pids"]) == {server.pid, *sizes}


def test_who_draws_them_below_it(virtual_gpu: VirtualGpu, hold: Hold, serve: Serve) -> None:
    server, client, other = serve(), hold(virtual_gpu, GIB, env=CLIENT), hold(virtual_gpu, GIB)
    lines = vram(virtual_gpu, "who", "--ascii").stdout.splitlines()
    depth = {
        pid: line.index(f"pid {pid} ")
        for line in lines
        for pid in (server.pid, client.pid, other.pid)
        if f"pid {pid} " in line
    }
    assert depth[client.pid] > depth[server.pid] == depth[other.pid], lines
    assert sum("MPS server of the processes below" in line for line in lines) == 1


def test_the_server_is_neither_offered_nor_ended_while_clients_live(
    virtual_gpu: VirtualGpu, hold: Hold, serve: Serve
) -> None:
    server, client = serve(), hold(virtual_gpu, GIB, env=CLIENT)
    answer = told(virtual_gpu, "why")
    commands = [remedy["command"] or "" for each in answer["findings"] for remedy in each["remedies"]]
    assert not [command for command in commands if command.startswith("vram") and str(server.pid) in command]
    assert not [command for command in commands if "quit" in command]
    for verb, *options in REFUSED:
        done = vram(virtual_gpu, verb, server.pid, *options)
        assert done.returncode != 0, done.stdout
        assert "the MPS service" in done.stderr, done.stderr
    assert (server.process.poll(), client.process.poll()) == (None, None)


@pytest.mark.fault(19)
def test_a_client_cannot_be_parked_and_its_end_is_said_to_touch_others(
    virtual_gpu: VirtualGpu, hold: Hold, serve: Serve
) -> None:
    serve()
    client = hold(virtual_gpu, GIB, env=CLIENT)
    done = vram(virtual_gpu, "park", client.pid)
    assert (done.returncode != 0, "through MPS" in done.stderr) == (True, True), done.stderr
    plan = vram(virtual_gpu, "kill", client.pid, "--dry-run")
    assert "other clients of the same server may fail with it" in " ".join(plan.stdout.split()), plan.stdout
    assert client.process.poll() is None


def test_a_server_that_its_last_client_has_left_is_told(
    virtual_gpu: VirtualGpu, hold: Hold, serve: Serve
) -> None:
    server, client = serve(), hold(virtual_gpu, GIB, env=CLIENT)
    client.end()
    answer = told(virtual_gpu, "why")
    assert set(processes(answer)) == {server.pid}
    finding = mps_finding(answer)
    assert "held by an MPS server without listed clients" in finding["title"]
    assert finding["nbytes"] == processes(answer)[server.pid]["nbytes"]
    assert [each["command"] for each in finding["remedies"]] == ["echo quit | nvidia-cuda-mps-control"]
    assert vram(virtual_gpu, "kill", server.pid, "--yes").returncode != 0
    assert server.process.poll() is None


def test_a_program_of_that_name_elsewhere_serves_nobody(
    virtual_gpu: VirtualGpu, hold: Hold, program: Path
) -> None:
    under = ("sh", "-c", ELSEWHERE, "sh", str(program))
    impostor = hold(virtual_gpu, env=INTERPRETER, under=under)
    client = hold(virtual_gpu, GIB, env=CLIENT)
    named = processes(told(virtual_gpu, "why"))
    assert named[impostor.pid]["holder"]["executable"] == str(program)
    assert named[client.pid]["mps_server"] is None


def test_the_doctor_counts_the_clients(virtual_gpu: VirtualGpu, hold: Hold, serve: Serve) -> None:
    serve()
    clients = [hold(virtual_gpu, env=CLIENT) for _ in range(2)]
    done = vram(virtual_gpu, "doctor", "--json")
    (check,) = (each for each in json.loads(done.stdout)["checks"] if each["check"] == "gpu.mps")
    assert "serves 2 clients" in check["seen"]
    assert {f"pid {client.pid} is a client" for client in clients} <= set(check["details"])
