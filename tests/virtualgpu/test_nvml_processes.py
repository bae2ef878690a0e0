"""NVML's process lists: whose memory it is, by the pid that made the context."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.needs import skip_without
from tests.virtualgpu.conftest import HOLDER, PREAMBLE, Hold, ask
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

CONTEXT = 518 * MIB
INSUFFICIENT_SIZE, VERSION_MISMATCH, NOT_FOUND = 7, 25, 6


def test_nobody_is_listed_on_an_idle_gpu(virtual_gpu: VirtualGpu) -> None:
    assert ask(virtual_gpu, "processes()") == []


def test_a_process_is_charged_for_its_context_and_its_allocations(
    virtual_gpu: VirtualGpu, hold: Hold
) -> None:
    idle, busy = hold(virtual_gpu), hold(virtual_gpu, 4 * GIB)
    charged = dict(ask(virtual_gpu, "processes()"))
    assert charged == {idle.pid: CONTEXT, busy.pid: CONTEXT + 4 * GIB}


@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
def test_every_version_of_the_list_tells_the_same(virtual_gpu: VirtualGpu, hold: Hold, version: str) -> None:
    """The first version's entries are shorter: a reader that mixes them up reads garbage."""
    pids = {hold(virtual_gpu, GIB).pid, hold(virtual_gpu, GIB).pid}
    entry = "n.c_nvmlProcessInfo_v2_t" if version else "Short"
    listed = ask(
        virtual_gpu,
        "[status, [[e.pid, e.usedGpuMemory] for e in entries[:count.value]]]",
        "class Short(ctypes.Structure):",
        "    _fields_ = [('pid', ctypes.c_uint), ('usedGpuMemory', ctypes.c_ulonglong)]",
        f"entries, count = ({entry} * 8)(), ctypes.c_uint(8)",
        f"call = n._nvmlGetFunctionPointer('nvmlDeviceGetComputeRunningProcesses{version}')",
        "status = call(handle(0), ctypes.byref(count), entries)",
    )
    assert listed[0] == 0
    assert dict(listed[1]) == dict.fromkeys(pids, CONTEXT + GIB)


@pytest.mark.parametrize("kind", ["Graphics", "MPSCompute"])
def test_nobody_draws_and_no_mps_server_runs(virtual_gpu: VirtualGpu, hold: Hold, kind: str) -> None:
    hold(virtual_gpu)
    assert ask(virtual_gpu, f"n.nvmlDeviceGet{kind}RunningProcesses_v3(handle(0))") == []


@pytest.mark.parametrize(("room", "array"), [(0, "None"), (1, "entries")])
def test_too_little_room_is_said_with_how_much_is_needed(
    virtual_gpu: VirtualGpu, hold: Hold, room: int, array: str
) -> None:
    hold(virtual_gpu), hold(virtual_gpu)
    answer = ask(
        virtual_gpu,
        f"[call(handle(0), ctypes.byref(count), {array}), count.value, entries[1].pid]",
        f"entries, count = (n.c_nvmlProcessInfo_v2_t * 2)(), ctypes.c_uint({room})",
        "call = n._nvmlGetFunctionPointer('nvmlDeviceGetComputeRunningProcesses_v3')",
    )
    assert answer == [INSUFFICIENT_SIZE, 2, 0]


def test_the_detailed_list_agrees_with_the_plain_one(virtual_gpu: VirtualGpu, hold: Hold) -> None:
    holder = hold(virtual_gpu, GIB)
    listing = "n.nvmlDeviceGetRunningProcessDetailList(handle(0), n.nvmlProcessDetailList_v1, {})"
    told = ask(virtual_gpu, f"[[p.pid, p.usedGpuMemory] for p in {listing.format(0)}]")
    assert told == [[holder.pid, CONTEXT + GIB]]
    assert ask(virtual_gpu, f"[len({listing.format(1)}), len({listing.format(2)})]") == [0, 0]
    wrong = "n.nvmlDeviceGetRunningProcessDetailList, handle(0), 0x2000018, 0"
    assert ask(virtual_gpu, f"code({wrong})") == VERSION_MISMATCH


def test_a_dead_parent_stays_listed_while_its_forked_child_lives(virtual_gpu: VirtualGpu, hold: Hold) -> None:
    """Measured on an H200: the bytes stay, under the pid of a process that is gone."""
    orphan = hold(virtual_gpu, 4 * GIB, 0, "fork")
    assert orphan.process.wait() == 0
    assert orphan.living_pid != orphan.pid
    assert ask(virtual_gpu, "processes()") == [[orphan.pid, CONTEXT + 4 * GIB]]
    orphan.end()
    assert ask(virtual_gpu, "processes()") == []


def test_a_killed_process_is_gone_from_the_list_once_it_is_reaped(
    virtual_gpu: VirtualGpu, hold: Hold
) -> None:
    holder = hold(virtual_gpu, GIB)
    holder.process.kill()
    holder.process.wait()
    assert ask(virtual_gpu, "[processes(), memory()['v2'][3]]") == [[], 0]


def test_bytes_that_are_not_available_are_none(virtual_gpu: VirtualGpu, hold: Hold) -> None:
    holder = hold(virtual_gpu)
    virtual_gpu.fail("nvmlDeviceGetComputeRunningProcesses*", sentinel=True)
    assert ask(virtual_gpu, "processes()") == [[holder.pid, None]]


def test_there_are_no_utilization_samples(virtual_gpu: VirtualGpu, hold: Hold) -> None:
    hold(virtual_gpu)
    assert ask(virtual_gpu, "code(n.nvmlDeviceGetProcessUtilization, handle(0), 0)") == NOT_FOUND


UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def test_a_pid_namespace_shows_its_own_processes_and_hides_the_others(
    virtual_gpu: VirtualGpu, hold: Hold
) -> None:
    """Inside: only its own, with their pids there. Outside: all, with the pids seen there."""
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no PID namespace may be made here")
    outsider = hold(virtual_gpu, GIB)
    program = "; ".join(
        [
            "import subprocess, sys",
            f"a = [sys.executable, {str(HOLDER)!r}, '0', '0']",
            "p = subprocess.Popen(a, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)",
            "inside = p.stdout.readline().strip()",
            "q = subprocess.run([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE, text=True)",
            "print(inside, q.stdout.strip(), flush=True)",
            "sys.stdin.read()",
        ]
    )
    asking = f"{PREAMBLE}\nprint(json.dumps(processes()))"
    room = virtual_gpu.popen(
        [*UNSHARE, sys.executable, "-c", program, asking],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with room:
        assert room.stdin is not None
        assert room.stdout is not None
        inside_pid, listed = room.stdout.readline().split(" ", 1)
        assert listed.strip() == f"[[{inside_pid}, {CONTEXT}]]"
        seen_outside = dict(ask(virtual_gpu, "processes()"))
        room.stdin.close()
    assert seen_outside.pop(outsider.pid) == CONTEXT + GIB
    (insider,) = seen_outside
    assert seen_outside == {insider: CONTEXT}
    assert insider != int(inside_pid)
