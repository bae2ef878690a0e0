"""`vram oom --live` and `--from`: the message beside the ledger of its machine, and of no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import PROGRAM, Run, Write
from tests.ledger.world import CONTEXT, OVERHEAD, World
from tests.oom.test_corpus import CORPUS
from tests.virtualgpu.conftest import Hold
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

WORDS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU {gpu} has a total"
    " capacity of {total:.2f} GiB of which {free:.2f} GiB is free. {others}Including non-PyTorch memory,"
    " this process has {mine:.2f} GiB memory in use. Of the allocated memory {live:.2f} GiB is allocated"
    " by PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated.\n"
)


def message(folder: Path, **figures: Any) -> str:
    usual = {"asked": 3.0, "gpu": 0, "total": 99.4, "free": 1.0, "mine": 3.0, "live": 2.4, "others": ""}
    path = folder / "log"
    path.write_text(WORDS.format(**{**usual, **figures}))
    return str(path)


def joined(answer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    (case,) = json.loads(answer.out)["cases"]
    return case["judgement"], case["live"]


def test_processes_of_the_message_are_named(vram: Run, busy: str, tmp_path: Path) -> None:
    others = "Process 100 has 90.00 GiB memory in use. Process 99 has 5.00 GiB memory in use. "
    log = message(tmp_path, others=others)
    judgement, live = joined(vram("oom", "--json", "--from", busy, log))
    assert judgement["kind"] == "ghost"  # 4 GiB of a dead parent would have been enough
    assert live["gpu"] == 0
    named = {holding["pid"]: holding for holding in live["holdings"]}
    assert named[100]["named"]
    assert "python" in named[100]["who"]
    assert named[201]["finding"] == "VR101"
    assert live["gone"] == [99]


def test_the_answer_for_people_names_them_too(vram: Run, busy: str, tmp_path: Path) -> None:
    answer = vram("oom", "--from", busy, message(tmp_path, free=2.5))
    assert answer.code == 0
    assert "held by a ghost" in answer.out
    assert "Now on GPU 0" in answer.out
    assert "pid 201" in answer.out
    assert "VR101" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_a_ghost_that_would_not_have_been_enough_is_not_the_cause(
    vram: Run,
    busy: str,
    tmp_path: Path,
) -> None:
    log = message(tmp_path, asked=30.0, others="Process 100 has 90.00 GiB memory in use. ")
    judgement, _ = joined(vram("oom", "--json", "--from", busy, log))
    assert judgement["kind"] == "other-process"


def test_another_machine_is_not_joined(vram: Run, busy: str, tmp_path: Path) -> None:
    log = message(tmp_path, total=23.7, others="Process 100 has 19.00 GiB memory in use. ")
    judgement, live = joined(vram("oom", "--json", "--from", busy, log))
    assert live["gpu"] is None
    assert "another machine" in live["reason"]
    assert judgement["kind"] == "other-process"
    assert "Not joined" in vram("oom", "--from", busy, log).out


def test_a_gpu_that_is_numbered_differently_is_chosen(
    vram: Run,
    snapshot: Write,
    tmp_path: Path,
) -> None:
    world = World().gpu(0, total=24 * GIB).gpu(1, total=100 * GIB, used=60 * GIB + CONTEXT + OVERHEAD)
    world.cuda(300, 60 * GIB + CONTEXT, gpu=1)
    place = snapshot(world)
    log = message(tmp_path, others="Process 300 has 94.00 GiB memory in use. ")
    _, live = joined(vram("oom", "--json", "--from", place, log))
    assert (live["gpu"], "CUDA_VISIBLE_DEVICES" in live["reason"]) == (1, True)
    _, live = joined(vram("oom", "--json", "--from", place, "--gpu", "1", log))
    assert (live["gpu"], live["reason"]) == (1, "")
    _, live = joined(vram("oom", "--json", "--from", place, "--gpu", "0", log))
    assert live["gpu"] is None


def test_a_bare_message_gets_its_figures_from_the_machine(
    vram: Run,
    snapshot: Write,
) -> None:
    world = World().gpu(0, used=98 * GIB + CONTEXT + OVERHEAD).cuda(300, 98 * GIB + CONTEXT)
    answer = vram("oom", "--json", "--from", snapshot(world), str(CORPUS / "pycuda-alloc.txt"))
    judgement, live = joined(answer)
    assert answer.code == 0
    assert judgement["kind"] == "other-process"
    assert "pid 300" in judgement["cause"]
    assert live["free"] < GIB


def test_host_memory_is_not_joined(vram: Run, busy: str) -> None:
    judgement, live = joined(vram("oom", "--json", "--from", busy, str(CORPUS / "kernel-oom.txt")))
    assert judgement["kind"] == "host"
    assert live["gpu"] is None


def test_without_a_driver_the_message_is_judged_all_the_same(
    vram: Run,
    no_driver: str,
    tmp_path: Path,
) -> None:
    answer = vram("oom", "--from", no_driver, message(tmp_path))
    assert answer.code == 4
    assert "on the list" in answer.out
    assert "no NVIDIA driver" in answer.err


def test_a_living_process_is_named_on_the_same_machine(
    virtual_gpu: VirtualGpu,
    hold: Hold,
    tmp_path: Path,
) -> None:
    """Real processes on a virtual GPU: the message names one of them."""
    holder = hold(virtual_gpu, 2 * GIB)
    others = f"Process {holder.pid} has 2.51 GiB memory in use. "
    log = message(tmp_path, asked=139.0, total=139.8, free=135.0, mine=0.6, live=0.1, others=others)
    done = virtual_gpu.run([*PROGRAM, "oom", "--live", "--json", log], capture_output=True, text=True)
    (case,) = json.loads(done.stdout)["cases"]
    named = [holding for holding in case["live"]["holdings"] if holding["named"]]
    assert [holding["pid"] for holding in named] == [holder.pid]
    assert case["live"]["total"] > 139 * GIB


def test_a_real_ghost_is_told_apart_from_another_process(
    virtual_gpu: VirtualGpu, hold: Hold, tmp_path: Path
) -> None:
    """A forked child keeps 40 GiB of a parent that is gone: the driver still lists the dead pid."""
    ghost = hold(virtual_gpu, 40 * GIB, 0, "fork")
    others = f"Process {ghost.pid} has 40.51 GiB memory in use. "
    log = message(tmp_path, asked=100.0, total=139.8, free=98.0, mine=0.6, live=0.1, others=others)
    done = virtual_gpu.run([*PROGRAM, "oom", "--live", "--json", log], capture_output=True, text=True)
    (case,) = json.loads(done.stdout)["cases"]
    assert case["judgement"]["kind"] == "ghost"
    assert str(ghost.keeper_pid) in case["judgement"]["cause"]
    assert f"vram kill {ghost.keeper_pid}" in [remedy["command"] for remedy in case["judgement"]["remedies"]]
