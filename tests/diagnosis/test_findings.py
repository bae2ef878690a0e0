"""What findings say: the right bytes, pids and GPUs, in the right order."""

from __future__ import annotations

import pytest

from tests.diagnosis.ledgers import (
    CONTEXT,
    entry,
    forked_child,
    gpu,
    holder,
    host,
    job,
    ledger,
    memory,
    process,
    silent_gpu,
)
from tests.diagnosis.test_rules import found
from vram.diagnosis.engine import diagnose
from vram.model.process import Workload
from vram.units import GIB, MIB


def orphan(nbytes: int, charged: int = 50, pid: int = 51, **about):
    return entry("orphaned", nbytes, charged_pid=charged, holder=holder(pid), **about)


def test_gravest_first_then_largest():
    findings = diagnose(
        ledger(
            gpu(process(60, 30 * GIB), process(61, 20 * GIB, state="T"), orphan(GIB)),
            gpu(orphan(2 * GIB, charged=70, pid=71), index=1),
            silent_gpu("lost", index=2),
        )
    )
    assert [(f.code, f.nbytes) for f in findings] == [
        ("VR101", 2 * GIB),
        ("VR101", GIB),
        ("VR404", None),
        ("VR201", 20 * GIB),
        ("VR206", 30 * GIB),
    ]


def test_one_finding_for_one_holder_on_several_gpus():
    (finding,) = found("VR101", ledger(gpu(orphan(GIB)), gpu(orphan(2 * GIB), index=1)))
    assert (finding.nbytes, finding.gpus, finding.pids) == (3 * GIB, (0, 1), (51,))


def test_two_processes_that_had_one_pid_after_the_other_are_two():
    """A pid alone never joins entries."""
    first, second = process(60, GIB, started_at=1), process(60, 2 * GIB, started_at=2)
    assert [f.nbytes for f in found("VR206", ledger(gpu(first, second)))] == [2 * GIB, GIB]


def test_an_orphan_names_everyone_who_keeps_it():
    (finding,) = found("VR101", ledger(gpu(orphan(4 * GIB, co_holders=(holder(52), holder(53))))))
    assert finding.pids == (51, 52, 53)
    assert "50" in finding.title
    assert "4.0 GiB" in finding.cause


def test_an_uncertain_link_is_called_likely():
    (finding,) = found("VR101", ledger(gpu(orphan(4 * GIB, confidence="likely"))))
    assert "most likely" in finding.cause


def test_the_early_warning_puts_the_parents_bytes_at_stake():
    world = ledger(
        gpu(
            process(50, 4 * GIB),
            process(60, GIB),
            open_only=(forked_child(51, of=50), forked_child(52, of=50)),
        )
    )
    (finding,) = found("VR102", world)
    assert (finding.nbytes, finding.pids) == (4 * GIB, (50, 51, 52))


def test_small_processes_are_counted_per_gpu():
    """Two on each of two GPUs are not many on either."""
    pair = (process(60, CONTEXT), process(61, CONTEXT))
    assert found("VR205", ledger(gpu(*pair), gpu(*pair, index=1))) == []


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        ({}, "vram park 60 61 62"),
        ({"user": "bob"}, None),
        ({"lists": ("mps",)}, None),
        ({"executable": None}, None),
    ],
)
def test_small_processes_can_be_parked_together_where_all_of_them_can(facts, command):
    small = (process(60, CONTEXT), process(61, CONTEXT), process(62, CONTEXT, **facts))
    (finding,) = found("VR205", ledger(gpu(*small)))
    parks = [remedy.command for remedy in finding.remedies if remedy.step == "park"]
    assert parks == ([command] if command else [])


def test_orphans_are_not_parked_with_the_healthy():
    """They have a finding and a command of their own."""
    small = (process(200, CONTEXT, job=job()), *(process(pid, CONTEXT) for pid in (201, 202, 203)))
    (finding,) = found("VR205", ledger(gpu(*small)))
    assert finding.pids == (201, 202, 203)
    assert [each.command for each in finding.remedies if each.step == "park"] == ["vram park 201 202 203"]


def test_small_processes_under_mig_cannot_be_parked():
    small = [entry(nbytes=CONTEXT, holder=holder(pid), gpu_instance=1) for pid in (60, 61, 62)]
    (finding,) = found("VR205", ledger(gpu(*small)))
    assert not [remedy for remedy in finding.remedies if remedy.step == "park"]


def test_the_pieces_of_one_process_are_one_process():
    """A context and live bytes of the same process: no longer a bare context."""
    pieces = [
        piece
        for pid in (60, 61, 62)
        for piece in (entry("context", CONTEXT, holder=holder(pid)), entry("live", GIB, holder=holder(pid)))
    ]
    world = ledger(gpu(*pieces))
    assert found("VR205", world) == []
    assert [finding.nbytes for finding in found("VR206", world)] == [CONTEXT + GIB] * 3


def test_plain_use_tells_user_age_and_container():
    about = {"age_s": 7500.0, "workload": Workload(container="ab" * 32, runtime="docker")}
    (finding,) = found("VR206", ledger(gpu(process(**about))))
    for word in ("python train.py", "alice", "docker container abababababab", "2 h 5 min", "4.0 GiB"):
        assert word in finding.cause


@pytest.mark.fault(7)
def test_an_amount_that_the_driver_does_not_tell_is_unknown_not_zero():
    world = ledger(gpu(entry(nbytes=None, holder=holder(), confidence="unknown")))
    (finding,) = found("VR206", world)
    assert finding.nbytes is None
    assert "0 B" not in finding.cause


def test_unreadable_processes_are_counted_and_their_users_named():
    world = ledger(gpu(entry("hidden")), unreadable_processes=3, unreadable_users=("root", "bob"))
    (finding,) = found("VR302", world)
    assert "3 processes of root, bob" in finding.cause


def test_a_dead_pid_without_holder_points_to_where_the_holder_may_be():
    lost = entry("orphaned", charged_pid=50)
    assert (
        "PID namespace" in found("VR105", ledger(gpu(lost), host=host(initial_pid_namespace=False)))[0].cause
    )
    assert "7 processes" in found("VR105", ledger(gpu(lost), unreadable_processes=7))[0].cause
    assert "among 1 process whose" in found("VR105", ledger(gpu(lost), unreadable_processes=1))[0].cause


def test_unexplained_bytes_count_the_processes_that_may_not_be_read():
    for number, words in ((1, "files of 1 process."), (7, "files of 7 processes.")):
        world = ledger(gpu(entry("unattributed", GIB)), unreadable_processes=number)
        assert words in found("VR106", world)[0].cause


def test_reserved_memory_is_told_once_for_all_gpus():
    both = [
        gpu(entry("reserved", 615 * MIB), index=i, memory=memory(v1_used=615 * MIB, reserved=615 * MIB))
        for i in (0, 1)
    ]
    (finding,) = found("VR401", ledger(*both))
    assert (finding.nbytes, finding.gpus) == (1230 * MIB, (0, 1))


def test_a_zombies_likely_child_is_called_likely():
    world = ledger(gpu(orphan(4 * GIB, charged_state="Z", confidence="likely")))
    (finding,) = found("VR203", world)
    assert "most likely inherited by pid 51" in finding.cause


def test_of_several_possible_children_one_is_meant():
    for code, state in (("VR101", None), ("VR203", "Z")):
        about = {
            "charged_state": state,
            "co_holders": (holder(52),),
            "confidence": "likely",
            "sharing": "one",
        }
        (finding,) = found(code, ledger(gpu(orphan(4 * GIB, **about))))
        assert "one of pid 51" in finding.cause


def test_a_likely_holder_of_exported_memory_is_called_likely():
    for code, medium in (("VR103", "handle"), ("VR104", "dmabuf")):
        about = {"holder": holder(51), "medium": medium}
        (sure,) = found(code, ledger(gpu(entry("exported", **about))))
        (doubted,) = found(code, ledger(gpu(entry("exported", **about, confidence="likely"))))
        assert "Most likely" in doubted.cause
        assert "Most likely" not in sure.cause


def test_bytes_that_processes_have_together_are_explained():
    together = entry(
        "process", 4 * GIB, co_holders=(holder(50), holder(51)), sharing="together", confidence="unknown"
    )
    each = [entry("process", None, holder=holder(pid), confidence="unknown") for pid in (50, 51)]
    assert [finding.code for finding in diagnose(ledger(gpu(together, *each)))] == ["VR206", "VR206"]


def ranks(count: int, *, on: int = 0, **about):
    """A job with one rank a GPU; every rank but the first has a context on GPU *on*, too."""
    owned: dict[int, list] = {index: [] for index in range(count)}
    for rank in range(count):
        facts = {"job": job(is_orphan=False, launcher=7, rank=rank, size=count)} | about
        owned[rank].append(process(200 + rank, 9 * GIB, **facts))
        if rank != on:
            owned[on].append(process(200 + rank, CONTEXT, **facts))
    return ledger(*(gpu(*entries, index=index) for index, entries in owned.items()))


def test_ranks_with_a_context_on_gpu_0_are_named_and_told_to_choose_their_own():
    (finding,) = found("VR210", ranks(4))
    assert (finding.nbytes, finding.gpus, finding.pids) == (3 * CONTEXT, (0,), (201, 202, 203))
    assert "Ranks 1, 2, 3 of a torchrun job" in finding.cause
    assert any("torch.cuda.set_device(local_rank)" in remedy.text for remedy in finding.remedies)


def test_contexts_of_ranks_are_one_finding_and_contexts_of_others_another():
    """The same bytes are never in VR205 and VR210; three other small processes beside them are VR205's."""
    world = ranks(4)
    others = [process(pid, CONTEXT) for pid in (60, 61, 62)]
    both = ledger(gpu(*world.gpus[0].entries[:-1], *others), *world.gpus[1:])
    assert found("VR205", world) == []
    assert [each.pids for each in found("VR205", both)] == [(60, 61, 62)]
    assert [each.pids for each in found("VR210", both)] == [(201, 202, 203)]


def test_a_gpu_under_other_numbers_is_named_by_its_own():
    """CUDA_VISIBLE_DEVICES=2,3: what ranks call device 0 is GPU 2."""
    (finding,) = found("VR210", ranks(3, on=2))
    assert (finding.gpus, finding.pids) == ((2,), (200, 201))


def test_ranks_that_reach_into_each_others_memory_have_chosen_their_contexts():
    def charge(rank: int, index: int):
        nbytes = 9 * GIB if rank == index else CONTEXT
        return process(200 + rank, nbytes, job=job(is_orphan=False, rank=rank))

    world = ledger(*(gpu(*(charge(rank, at) for rank in range(3)), index=at) for at in range(3)))
    assert found("VR210", world) == []


def test_a_process_that_sigkill_does_not_end_is_told_with_the_function_it_is_in():
    about = {"state": "R", "kill_pending": True, "waits_in": "uvm_spin_loop"}
    (finding,) = found("VR209", ledger(gpu(process(**about))))
    assert "SIGKILL was sent" in finding.cause
    assert "uvm_spin_loop (state R)" in finding.cause
    assert [remedy.step for remedy in finding.remedies] == ["wait", "look", "look", "drain"]


@pytest.mark.parametrize(
    ("function", "steps"),
    [("request_wait_answer", ["wait", "look"]), ("__refrigerator", ["resume"]), (None, None)],
)
def test_a_gpu_is_reset_only_for_what_waits_in_its_driver(function, steps):
    """A file system that does not answer, or a container that is paused, is not the GPU's fault."""
    (finding,) = found("VR209", ledger(gpu(process(state="D", kill_pending=True, waits_in=function))))
    assert [remedy.step for remedy in finding.remedies] == (steps or ["wait", "look", "look", "drain"])


def test_a_stuck_process_is_told_with_the_function_it_waits_in():
    (finding,) = found("VR202", ledger(gpu(process(state="D", waits_in="request_wait_answer"))))
    assert "pid 1234 is in state D, in request_wait_answer" in finding.evidence
