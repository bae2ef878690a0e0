"""What is suggested: gentle first, nothing that hits the wrong process, nothing a process wrote."""

from __future__ import annotations

import re

import pytest

from tests.diagnosis.ledgers import dead, entry, facts, forked_child, gpu, holder, host, ledger, process
from tests.diagnosis.test_rules import found
from vram.diagnosis.engine import diagnose
from vram.model.finding import Remedy
from vram.model.ledger import Ledger
from vram.model.process import Workload
from vram.units import GIB


def commands(code: str, world: Ledger) -> list[str]:
    return [remedy.command for finding in found(code, world) for remedy in finding.remedies if remedy.command]


def every_remedy(world: Ledger) -> list[Remedy]:
    return [remedy for finding in diagnose(world) for remedy in finding.remedies]


def orphan(**about) -> Ledger:
    return ledger(gpu(entry("orphaned", charged_pid=50, **({"holder": holder(51)} | about))))


def test_memory_of_a_dead_owner_comes_back_by_one_command():
    assert commands("VR101", orphan())[0] == "vram free"
    assert commands("VR101", orphan(co_holders=(holder(52),)))[0] == "vram free"


def test_where_free_would_leave_it_the_holders_are_named():
    likely = orphan(co_holders=(holder(52),), confidence="likely")
    assert "vram kill 51 52" in commands("VR101", likely)
    foreign = orphan(holder=holder(51, user="bob"))
    assert 'sudo "$(command -v vram)" kill 51' in commands("VR101", foreign)


def test_a_stopped_holder_is_resumed_rather_than_ended():
    assert commands("VR101", orphan(holder=holder(51, state="T")))[0] == "kill -CONT 51"


def test_a_holder_with_work_of_its_own_is_ended_only_by_name():
    world = ledger(gpu(entry("orphaned", charged_pid=50, holder=holder(51)), process(51)))
    assert "vram free" not in commands("VR101", world)
    assert "vram kill 51" in commands("VR101", world)


def test_nobody_is_ended_where_only_one_of_several_keeps_the_memory():
    world = orphan(co_holders=(holder(52),), confidence="likely", sharing="one")
    assert not any("kill" in command for command in commands("VR101", world))


def test_ends_parent_and_children_together():
    world = ledger(gpu(process(50), open_only=(forked_child(51, of=50),)))
    assert "vram kill 50 51" in commands("VR102", world)


def test_a_stopped_process_may_go_on_or_end():
    assert commands("VR201", ledger(gpu(process(state="T")))) == [
        "kill -CONT 1234",
        "vram kill 1234",
    ]


def test_someone_elses_process_needs_sudo_and_a_word_first():
    (finding,) = found("VR206", ledger(gpu(process(user="bob"))))
    assert [remedy.step for remedy in finding.remedies] == ["ask", "end"]
    assert finding.remedies[1].command == 'sudo "$(command -v vram)" kill 1234'


def test_root_needs_no_sudo():
    world = ledger(gpu(process(user="bob")), host=host("root", 0))
    assert commands("VR206", world) == ["vram trim 1234", "vram park 1234", "vram kill 1234"]


@pytest.mark.parametrize(
    "system",
    [
        {"executable": "/usr/lib/xorg/Xorg"},
        {"executable": "/usr/lib/xorg/Xorg (deleted)", "executable_deleted": True},
        {"executable": "/usr/bin/nvidia-persistenced"},
        {"executable": "/usr/bin/nvidia-cuda-mps-server"},
        {"executable": "/usr/bin/containerd"},
        {"executable": "/usr/sbin/sshd"},
        {"pid": 1, "executable": "/usr/lib/systemd/systemd"},
        {"parent": 2, "executable": None},
    ],
)
def test_a_part_of_the_system_is_never_ended(system):
    shared = entry(holder=holder(60), co_holders=(holder(**system),))
    for world in (ledger(gpu(process(**system))), ledger(gpu(shared)), orphan(holder=holder(**system))):
        assert not [remedy for remedy in every_remedy(world) if "kill" in remedy.command]
        assert [remedy for remedy in every_remedy(world) if remedy.step == "keep"]


@pytest.mark.parametrize("executable", ["/home/alice/Xorg", "/tmp/usr/bin/sshd", "/usr/bin/python3.12"])
def test_a_name_alone_protects_nobody(executable):
    world = ledger(gpu(process(executable=executable, command="Xorg")))
    assert "vram kill 1234" in commands("VR206", world)


def test_an_unknown_program_is_looked_at_first():
    """Without its executable nobody can tell whether it is a part of the system."""
    assert commands("VR206", ledger(gpu(process(executable=None)))) == ['sudo "$(command -v vram)" why']
    as_root = ledger(gpu(process(executable=None)), host=host("root", 0))
    assert commands("VR206", as_root) == ["ps -o pid,ppid,user,stat,lstart,args -p 1234"]


def test_no_command_is_given_twice():
    world = ledger(
        gpu(entry("orphaned", charged_pid=50, holder=holder(51, executable=None))), host=host("root", 0)
    )
    assert commands("VR101", world) == ["ps -o pid,ppid,user,stat,lstart,args -p 51"]


def test_a_doubtful_pid_in_a_namespace_is_never_signalled():
    """There the driver's pid may be another process's number."""
    doubtful = entry(holder=holder(), confidence="likely")
    inside = ledger(gpu(doubtful), host=host(initial_pid_namespace=False))
    assert not [command for command in commands("VR206", inside) if "kill" in command]
    assert "vram kill 1234" in commands("VR206", ledger(gpu(doubtful)))


def test_the_charged_pid_itself_is_never_signalled():
    """Whoever has a dead process's pid now is somebody else."""
    newcomer = entry("orphaned", charged_pid=50, holder=holder(50))
    for world in (ledger(gpu(newcomer)), orphan(holder=dead(50)), orphan(), orphan(charged_state="Z")):
        assert not [c for r in every_remedy(world) if (c := r.command) and re.search(r"kill.*\b50\b", c)]


@pytest.mark.parametrize("state", [{"state": "D"}, {"exiting": True}])
def test_nobody_signals_what_cannot_hear(state):
    for world in (ledger(gpu(process(**state))), orphan(holder=holder(51, **state))):
        assert not [remedy for remedy in every_remedy(world) if "kill" in remedy.command]


@pytest.mark.fault(2)
def test_a_reset_is_suggested_for_an_empty_gpu_alone():
    pending = facts(remap_pending=True)
    reset = 'sudo "$(command -v vram)" reset 0 --yes'
    assert reset in commands("VR403", ledger(gpu(entry("reserved", GIB), facts=pending)))
    for busy in (
        gpu(process(), facts=pending),
        gpu(entry("hidden"), facts=pending),
        gpu(entry("unattributed"), facts=pending),
        gpu(open_only=(forked_child(51, of=None),), facts=pending),
    ):
        assert not [command for command in commands("VR403", ledger(busy)) if "reset" in command]


@pytest.mark.parametrize(
    ("workload", "command"),
    [
        (Workload(slurm_job="4711"), "scancel 4711"),
        (Workload(container="ab" * 32, runtime="docker"), f"docker stop {'ab' * 32}"),
        (Workload(slurm_job="4711; reboot"), None),
        (Workload(slurm_job="٤٧"), None),
        (Workload(container="$(reboot)", runtime="docker"), None),
        (Workload(container="ab" * 32, runtime="docker; reboot"), None),
        (Workload(container="ab" * 32, runtime="containerd", pod="uid"), None),
        (Workload(unit="cron.service"), None),
    ],
)
def test_a_whole_job_is_ended_only_by_an_id_of_the_right_form(workload, command):
    world = ledger(gpu(process(workload=workload)))
    assert commands("VR206", world)[3:] == ([command] if command else [])


def test_the_most_harmful_way_comes_last():
    world = ledger(gpu(process(user="bob", workload=Workload(slurm_job="4711"))))
    (finding,) = found("VR206", world)
    assert [remedy.harm for remedy in finding.remedies] == ["none", "loses-work", "affects-others"]
    mine = ledger(gpu(process(workload=Workload(slurm_job="4711"))))
    (finding,) = found("VR206", mine)
    steps = [(remedy.step, remedy.harm) for remedy in finding.remedies]
    assert steps == [
        *(("trim", "none"), ("park", "interrupts")),
        *(("end", "loses-work"), ("end", "affects-others")),
    ]


@pytest.mark.parametrize("who", [{"user": "bob"}, {"executable": None}, {"executable": "/usr/bin/dockerd"}])
def test_nobody_elses_and_no_unknown_process_is_trimmed_or_parked(who):
    steps = [remedy.step for remedy in every_remedy(ledger(gpu(process(**who))))]
    assert not {"trim", "park"} & set(steps)


def test_text_of_others_is_shown_inert_and_stays_out_of_commands():
    hostile = "\x1b[2J\u202ereboot\n$(reboot)"
    world = orphan(
        holder=holder(51, command=hostile, user="bob\x07", executable=f"/home/{hostile}"),
        evidence=(hostile,),
    )
    for finding in diagnose(world):
        texts = (finding.title, finding.cause, *finding.evidence, *(r.text for r in finding.remedies))
        assert all(text.isprintable() for text in texts)
        assert not [r.command for r in finding.remedies if "reboot" in r.command or "bob" in r.command]
