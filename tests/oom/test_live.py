"""`vram oom --live` and `--from`: the message beside the ledger of its machine, and of no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAM, Run, Write
from tests.ledger.world import CONTEXT, OVERHEAD, World
from tests.oom.conftest import Log
from tests.oom.corpus import MESSAGES
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


def test_nobody_is_told_to_end_a_pid_that_holds_nothing_now(vram: Run, busy: str, tmp_path: Path) -> None:
    """Another program may have that number by now."""
    others = "Process 100 has 90.00 GiB memory in use. Process 99 has 5.00 GiB memory in use. "
    log = message(tmp_path, asked=60.0, live=2.4, others=others)
    judgement, live = joined(vram("oom", "--json", "--from", busy, log))
    assert (judgement["kind"], live["gone"]) == ("other-process", [99])
    ends = [each["command"] for each in judgement["remedies"] if each["step"] == "end"]
    assert ends == ["vram kill 100"]


def test_pids_of_a_container_are_those_that_it_knows(vram: Run, snapshot: Write, tmp_path: Path) -> None:
    """Its log says 7, and the host has another process of that number, or none."""
    world = World().gpu(total=100 * GIB, used=90 * GIB + 2 * (CONTEXT + OVERHEAD))
    for pid in (100, 101):
        world.charge(pid, 45 * GIB + CONTEXT).process(pid, namespace_pids=(pid, pid - 93)).files(pid)
    others = "Process 7 has 45.00 GiB memory in use. Process 9 has 5.00 GiB memory in use. "
    log = message(tmp_path, asked=30.0, live=2.4, others=others)
    judgement, live = joined(vram("oom", "--json", "--from", snapshot(world), log))
    assert {each["pid"] for each in live["holdings"] if each["named"]} == {100}
    assert live["gone"] == [9]
    assert "vram kill 100" in [each["command"] for each in judgement["remedies"]]


def test_the_answer_for_people_names_them_too(vram: Run, busy: str, tmp_path: Path) -> None:
    answer = vram("oom", "--from", busy, message(tmp_path, free=2.5))
    assert answer.code == 0
    assert "held by an unlisted process" in answer.out
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
    assert "Not compared" in vram("oom", "--from", busy, log).out


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


def test_what_a_ghost_holds_on_another_gpu_explains_nothing(
    vram: Run, snapshot: Write, tmp_path: Path
) -> None:
    """One child holds memory of its dead parent on both: 20 GiB there, and too little here."""
    world = World()
    world.gpu(0, used=91 * GIB + 2 * CONTEXT + 2 * OVERHEAD).gpu(1, used=20 * GIB + CONTEXT + OVERHEAD)
    world.cuda(100, 90 * GIB + CONTEXT)
    world.charge(200, GIB + CONTEXT).charge(200, 20 * GIB + CONTEXT, gpu=1)
    world.process(201).files(201, minors=(0, 1), family=200)
    place = snapshot(world)
    log = message(tmp_path, asked=3.0, free=0.5, others="Process 100 has 90.00 GiB memory in use. ")
    judgement, live = joined(vram("oom", "--json", "--from", place, log))
    assert (judgement["kind"], live["gpu"]) == ("other-process", 0)
    log = message(tmp_path, asked=1.5, free=0.5, others="Process 100 has 90.00 GiB memory in use. ")
    judgement, _ = joined(vram("oom", "--json", "--from", place, log))
    assert judgement["kind"] == "ghost"
    assert "1.5 GiB on this GPU" in judgement["cause"]


def test_workers_of_a_healthy_process_are_no_ghosts(vram: Run, snapshot: Write, tmp_path: Path) -> None:
    """Its memory is on the driver's list; that its forked workers would keep it is another matter."""
    world = World().gpu(0, used=90 * GIB + CONTEXT + OVERHEAD).cuda(100, 90 * GIB + CONTEXT, family=100)
    world.process(101, parent=100).files(101, family=100)
    log = message(tmp_path, others="Process 100 has 90.00 GiB memory in use. ")
    judgement, _ = joined(vram("oom", "--json", "--from", snapshot(world), log))
    assert judgement["kind"] == "other-process"


def test_a_bare_message_gets_its_figures_from_the_machine(vram: Run, snapshot: Write, log_of: Log) -> None:
    world = World().gpu(0, used=98 * GIB + CONTEXT + OVERHEAD).cuda(300, 98 * GIB + CONTEXT)
    answer = vram("oom", "--json", "--from", snapshot(world), log_of("pycuda-alloc"))
    judgement, live = joined(answer)
    assert answer.code == 0
    assert judgement["kind"] == "other-process"
    assert [holding["pid"] for holding in live["holdings"]] == [300]
    assert "pid 300" in judgement["cause"]
    assert live["free"] < GIB


def test_host_memory_is_not_joined(vram: Run, busy: str, log_of: Log) -> None:
    judgement, live = joined(vram("oom", "--json", "--from", busy, log_of("kernel-oom")))
    assert judgement["kind"] == "host"
    assert live["gpu"] is None


def test_without_a_driver_the_message_is_judged_all_the_same(
    vram: Run,
    no_driver: str,
    tmp_path: Path,
) -> None:
    answer = vram("oom", "--from", no_driver, message(tmp_path))
    assert answer.code == 4
    assert "by an unlisted process" in answer.out
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
    assert [each["pid"] for each in case["live"]["holdings"] if each["finding"]] == [ghost.living_pid]
    assert str(ghost.living_pid) in case["judgement"]["cause"]
    assert "vram free" in [remedy["command"] for remedy in case["judgement"]["remedies"]]


@pytest.fixture
def divided(snapshot: Write) -> str:
    """A GPU under MIG: two instances of 40 GiB, one of 20, and 38 GiB that nobody was given."""
    world = World().divided(devices=3, total=140 * GIB, used=30 * GIB)
    world.mig(0, 1, total=40 * GIB, used=30 * GIB).mig(1, 2, total=20 * GIB).mig(2, 3, total=40 * GIB)
    return snapshot(world.process(300).files(300).charge(300, 30 * GIB, instance=1, compute=0))


def test_the_instance_that_the_message_speaks_of_is_joined(vram: Run, divided: str, tmp_path: Path) -> None:
    """Programs see a MIG device as GPU 0 of its own size."""
    _, live = joined(vram("oom", "--json", "--from", divided, message(tmp_path, total=19.9)))
    assert (live["gpu"], live["mig"], live["total"], live["holdings"]) == (0, "0:1", 20 * GIB, [])
    assert "Now on MIG 0:1" in vram("oom", "--from", divided, message(tmp_path, total=19.9)).out


def test_of_instances_alike_one_is_chosen(vram: Run, divided: str, tmp_path: Path) -> None:
    log = message(tmp_path, total=39.9, others="Process 300 has 30.00 GiB memory in use. ")
    _, live = joined(vram("oom", "--json", "--from", divided, log))
    assert (live["gpu"], live["mig"]) == (None, None)
    assert "--gpu 0:0 or 0:2" in live["reason"]
    _, live = joined(vram("oom", "--json", "--from", divided, "--gpu", "0:0", log))
    assert (live["mig"], [each["pid"] for each in live["holdings"]]) == ("0:0", [300])
    _, live = joined(vram("oom", "--json", "--from", divided, "--gpu", "MIG-0-3-0", log))
    assert (live["mig"], live["holdings"], live["gone"]) == ("0:2", [], [300])


def test_a_message_of_no_instance_s_size_is_another_machine_s(
    vram: Run, divided: str, tmp_path: Path
) -> None:
    """Under MIG no program has the whole GPU."""
    _, live = joined(vram("oom", "--json", "--from", divided, message(tmp_path, total=139.8)))
    assert live["gpu"] is None
    assert "MIG 0:1 has 20.0 GiB" in live["reason"]


def test_what_no_instance_was_given_is_nobody_s(vram: Run, snapshot: Write, log_of: Log) -> None:
    world = World().divided(devices=0, total=140 * GIB)
    _, live = joined(vram("oom", "--json", "--from", snapshot(world), "--gpu", "0", log_of("pycuda-alloc")))
    assert (live["total"], live["holdings"]) == (140 * GIB, [])


def test_advice_names_the_gpu_that_it_was_joined_with(vram: Run, snapshot: Write, tmp_path: Path) -> None:
    """The message calls it GPU 0, as CUDA_VISIBLE_DEVICES numbered it."""
    world = World().gpu(0, total=24 * GIB).gpu(1, total=100 * GIB, used=60 * GIB + CONTEXT + OVERHEAD)
    world.cuda(300, 60 * GIB + CONTEXT, gpu=1)
    log = message(tmp_path, others="Process 300 has 94.00 GiB memory in use. ")
    judgement, _ = joined(vram("oom", "--json", "--from", snapshot(world), log))
    commands = [remedy["command"] for remedy in judgement["remedies"]]
    assert "vram why --gpu 1" in commands
    assert not [command for command in commands if "--gpu 0" in command]


def test_a_ghost_on_a_gpu_with_room_explains_no_bare_message(vram: Run, busy: str, log_of: Log) -> None:
    judgement, live = joined(vram("oom", "--json", "--from", busy, "--gpu", "0", log_of("pycuda-alloc")))
    assert live["free"] > 90 * GIB
    assert judgement["kind"] == "unknown"


def test_a_ghost_on_a_full_gpu_explains_one(vram: Run, snapshot: Write, log_of: Log) -> None:
    world = World().gpu(0, used=98 * GIB + CONTEXT + OVERHEAD)
    world.charge(200, 98 * GIB + CONTEXT).process(201).files(201, family=200)
    judgement, _ = joined(vram("oom", "--json", "--from", snapshot(world), log_of("torch-no-context")))
    assert (judgement["kind"], judgement["certainty"]) == ("ghost", "likely")


def test_what_was_looked_at_is_neither_missing_nor_advised_again(vram: Run, busy: str, log_of: Log) -> None:
    answer = vram("oom", "--json", "--from", busy, "--gpu", "0", log_of("pycuda-alloc"))
    judgement, _ = joined(answer)
    assert answer.code == 3
    assert "the size of the GPU" not in judgement["missing"]
    assert "how much of it was free" in judgement["missing"]
    assert not [remedy for remedy in judgement["remedies"] if "--live" in remedy["command"]]


def test_where_nothing_was_joined_the_right_machine_is_still_advised(
    vram: Run, no_driver: str, tmp_path: Path
) -> None:
    log = tmp_path / "my log"
    log.write_bytes(MESSAGES["pycuda-alloc"].log)
    judgement, live = joined(vram("oom", "--json", "--from", no_driver, str(log)))
    assert live["gpu"] is None
    assert f"vram oom --live '{log}'" in [remedy["command"] for remedy in judgement["remedies"]]
