"""Exactly the plan, until the goal is met; every step checked again, written down and measured."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest
from msgspec.structs import replace

from tests.diagnosis.ledgers import entry, gpu, holder, job, ledger, process
from tests.patience import PATIENCE_S
from tests.reclaim.town import PidHandle, Town
from vram.diagnosis.engine import diagnose
from vram.errors import AuditUnavailable, NotPermitted, NotReachable, UsageError, WorldChanged
from vram.host.local.system_info import LocalVendor
from vram.model.ledger import Ledger
from vram.model.plan import Plan, PlanRequest, Receipt, Step
from vram.reclaim import audit
from vram.reclaim.actions import ACTIONS
from vram.reclaim.executor import execute, revalidate
from vram.reclaim.planner import plan
from vram.units import GIB

PATIENCE = {"trim": 0.0, "park": 0.0, "kill": 0.0, "reset": 1.0}


def orphans(*pids: int) -> Ledger:
    return ledger(gpu(*(entry("orphaned", 2 * GIB, charged_pid=1, holder=holder(pid)) for pid in pids)))


def made(town: Town, **request) -> Plan:
    return plan(town, town.ledger, diagnose(town.ledger), PlanRequest(only="kill", **request)).plan


def ran(town: Town, what: Plan) -> Receipt:
    return execute(town, what, timeout_s=PATIENCE)


def statuses(receipt: Receipt) -> list[str]:
    return [outcome.status for outcome in receipt.outcomes]


def records(state: Path) -> list[dict]:
    return [json.loads(line) for line in (state / "audit.jsonl").read_text().splitlines()]


def test_it_stops_as_soon_as_the_goal_is_met(state: Path):
    town = Town(orphans(51, 52, 53), returns={51: 4 * GIB, 52: 4 * GIB, 53: 4 * GIB})
    receipt = ran(town, made(town, goal_bytes=3 * GIB))
    assert statuses(receipt) == ["done", "not-needed"]
    assert (receipt.goal_bytes, receipt.promised_bytes, receipt.returned_bytes) == (3 * GIB, 4 * GIB, 4 * GIB)
    assert len(town.signals_sent) == 1


def test_a_size_that_others_made_available_meanwhile_ends_nobody(state: Path):
    town = Town(orphans(51, 52))
    receipt = execute(town, made(town, goal_bytes=3 * GIB), timeout_s=PATIENCE, goal_now=0)
    assert statuses(receipt) == ["not-needed", "not-needed"]
    assert receipt.goal_bytes == 0
    assert not town.signals_sent


def test_harm_that_cannot_reach_the_goal_is_not_done(state: Path):
    """The first gives nothing back; the second alone would not do: it lives."""
    town = Town(orphans(51, 52), returns={52: 2 * GIB})
    receipt = ran(town, made(town, goal_bytes=4 * GIB))
    assert statuses(receipt) == ["done", "refused"]
    assert receipt.returned_bytes == 0
    assert len(town.living) == 1


def test_a_plan_whose_target_is_gone_is_refused_whole(state: Path):
    town = Town(orphans(51, 52))
    what = made(town)
    town.die(52)
    with pytest.raises(WorldChanged):
        ran(town, what)
    assert not town.signals_sent
    assert not state.exists()


def test_a_plan_for_a_pid_that_was_given_to_another_process_no_longer_holds(state: Path):
    """The new one holds memory here too, and is found by the same rule: only its start time differs."""
    town = Town(orphans(51))
    what = made(town)
    revalidate(what, town.ledger, diagnose(town.ledger))
    other = replace(holder(51), started_at=(holder(51).started_at or 0) + 1)
    now = ledger(gpu(entry("orphaned", 2 * GIB, charged_pid=1, holder=other)))
    with pytest.raises(WorldChanged):
        revalidate(what, now, diagnose(now))


@pytest.mark.parametrize("request_words", [{}, {"pids": (51,)}], ids=["leftover", "named"])
def test_who_released_it_is_not_meant_although_it_starts_a_job(state: Path, request_words: dict[str, object]):
    """It holds nothing any more, as what starts a job's processes holds nothing."""
    town = Town(orphans(51))
    what = made(town, **request_words)
    now = ledger(gpu(process(60, job=job(is_orphan=False, head=51))))
    with pytest.raises(WorldChanged):
        revalidate(what, now, diagnose(now))


def test_who_ends_by_himself_meanwhile_needs_no_signal(state: Path):
    """Two are planned; the second dies with the first."""

    class Family(Town):
        def die(self, pid: int) -> None:
            for each in tuple(self.living):
                super().die(each)

    town = Family(orphans(51, 52), returns={51: GIB, 52: GIB})
    receipt = ran(town, made(town))
    assert statuses(receipt) == ["done", "not-needed"]
    assert receipt.returned_bytes == 2 * GIB


@pytest.mark.fault(13)
def test_who_changes_between_two_steps_is_left_alone_and_so_is_the_rest(state: Path):
    class Restless(Town):
        def die(self, pid: int) -> None:
            super().die(pid)
            self.living = {k: replace(v, executable="/home/alice/other") for k, v in self.living.items()}

    town = Restless(orphans(51, 52, 53))
    receipt = ran(town, made(town))
    assert statuses(receipt) == ["done", "refused", "refused"]
    assert len(town.living) == 2
    assert [each["event"] for each in records(state)] == ["intend", "outcome", "intend", "outcome"]


def test_where_the_device_no_longer_tells_promises_count(state: Path):
    """Nobody more is ended than the plan needed."""

    class Dark(Town):
        def read(self, deadline_s: float):
            return iter(())

    town = Dark(orphans(51, 52, 53))
    receipt = ran(town, replace(made(town), goal_bytes=3 * GIB))
    assert statuses(receipt) == ["done", "done", "not-needed"]
    assert receipt.returned_bytes is None


@pytest.mark.fault(21)
def test_no_log_no_signal(state: Path):
    state.parent.mkdir()
    state.touch()
    town = Town(orphans(51))
    with pytest.raises(AuditUnavailable):
        ran(town, made(town))
    assert not town.signals_sent


@pytest.mark.fault(21)
def test_a_log_that_breaks_half_way_stops_the_rest(state: Path):
    class Vandal(Town):
        def die(self, pid: int) -> None:
            super().die(pid)
            (state / "audit.jsonl").unlink()
            (state / "audit.jsonl").mkdir()

    town = Vandal(orphans(51, 52))
    receipt = ran(town, made(town))
    assert statuses(receipt) == ["done", "refused"]
    assert len(town.living) == 1


def test_an_interruption_is_written_down(state: Path):
    class Impatient(Town):
        def open(self, pid: int) -> PidHandle | None:
            handle = super().open(pid)
            if handle is not None and (state / "audit.jsonl").exists():
                handle.send = _interrupted  # type: ignore[method-assign]
            return handle

    def _interrupted(number: int) -> str:
        raise KeyboardInterrupt

    town = Impatient(orphans(51))
    with pytest.raises(KeyboardInterrupt):
        ran(town, made(town))
    before, after = records(state)
    assert (after["token"], after["status"]) == (before["token"], "failed")
    assert "KeyboardInterrupt" in after["message"]


def test_a_stopped_process_is_asked_first_and_only_then_continued(state: Path):
    class Stopped(Town):
        def die(self, pid: int) -> None:
            if (pid, SIGCONT) in self.signals_sent:
                super().die(pid)

    class Deaf(PidHandle):
        def send(self, number: int):
            self.town.signals_sent.append((self.pid, number))
            if number in (SIGCONT, SIGKILL):
                Town.die(self.town, self.pid)
            return "sent"

    town = Stopped(ledger(gpu(process(51, state="T"))))
    town.open = lambda pid: Deaf(town, pid) if pid in town.living else None  # type: ignore[method-assign]
    assert statuses(ran(town, made(town, pids=(51,)))) == ["done"]
    assert town.signals_sent == [(51, SIGTERM), (51, SIGCONT)]


class Changing(Town):
    """SIGTERM changes the only process as *changes* say; SIGKILL ends it, unless it is *endless*."""

    def __init__(self, *, endless: bool = False, image: str | None = "code-stack", **changes) -> None:
        super().__init__(orphans(51), returns={51: 2 * GIB})
        self.endless, self.changes, self.image_after = endless, changes, image

    def die(self, pid: int) -> None:
        if self.signals_sent[-1] == (pid, SIGTERM):
            self.living[pid] = replace(self.living[pid], **self.changes)
        elif not self.endless:
            super().die(pid)

    def image(self, pid: int) -> str | None:
        return self.image_after if self.signals_sent else super().image(pid)


LEAVING = {"executable": None, "image": None}


@pytest.mark.parametrize("how", [{"state": "Z"}, {"exiting": True}], ids=["its leader left", "exiting"])
def test_who_is_on_its_way_out_after_sigterm_is_the_one_that_was_asked(state: Path, how):
    """Its program cannot be read any more; that is no reason to leave its threads alive."""
    town = Changing(**LEAVING, **how)
    receipt = ran(town, made(town))
    assert statuses(receipt) == ["done"]
    assert receipt.outcomes[0].message == "it was still exiting 0 s after SIGTERM, and was killed (SIGKILL)"
    assert town.signals_sent == [(51, SIGTERM), (51, SIGKILL)]


@pytest.mark.fault(4)
def test_who_never_gets_through_with_exiting_is_told_where_it_hangs(state: Path):
    town = Changing(**LEAVING, exiting=True, endless=True)
    receipt = ran(town, made(town))
    assert statuses(receipt) == ["unkillable"]
    assert "it is exiting; its memory is freed when it has exited" in receipt.outcomes[0].message


@pytest.mark.fault(13)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"image": "other"}, "is a different program now"),
        ({"executable": "/home/alice/other"}, "is a different program now"),
        ({"user": "bob"}, "its user changed"),
        ({**LEAVING, "state": "Z", "user": "bob"}, "its user changed"),
        ({**LEAVING, "state": "Z", "started_at": 101}, "it was started later"),
        ({"state": "Z", "image": "other"}, "is a different program now"),
        ({"executable": "/usr/bin/Xorg"}, "is a different program now"),
    ],
)
def test_once_asked_nothing_is_called_a_refusal_and_who_changed_is_left_alone(state: Path, changes, says):
    town = Changing(**changes)
    receipt = ran(town, made(town))
    assert statuses(receipt) == ["failed"]
    message = receipt.outcomes[0].message
    assert message.startswith("pid 51 was sent SIGTERM and nothing more: ")
    assert says in message
    assert town.signals_sent == [(51, SIGTERM)]
    before, after = records(state)
    assert (after["token"], after["status"], after["message"]) == (before["token"], "failed", message)


def test_who_ends_right_before_it_is_asked_was_not_ended_by_that(state: Path):
    class Brief(PidHandle):
        def send(self, number: int):
            del self.town.living[self.pid]
            return "gone"

    town = Town(orphans(51))
    town.open = lambda pid: Brief(town, pid) if pid in town.living else None  # type: ignore[method-assign]
    assert statuses(ran(town, made(town))) == ["not-needed"]


def test_together_each_is_ended_for_itself(state: Path):
    """One that has changed or ended meanwhile does not keep the others, and all intents come first."""
    town = Town(orphans(51, 52, 53, 54), returns={51: 2 * GIB, 54: 2 * GIB})
    what = made(town)
    town.living[52] = replace(town.living[52], executable="/usr/bin/another")
    del town.living[53]
    receipt = execute(town, what, timeout_s=PATIENCE, together=True)
    assert statuses(receipt) == ["done", "refused", "not-needed", "done"]
    assert town.signals_sent == [(51, SIGTERM), (54, SIGTERM)]
    assert receipt.returned_bytes == 4 * GIB
    assert [each["event"] for each in records(state)] == ["intend"] * 4 + ["outcome"] * 4
    tokens = [each["token"] for each in records(state)]
    assert tokens[:4] == tokens[4:]


def test_those_that_start_each_other_are_stopped_before_the_first_is_killed(state: Path):
    town = Town(orphans(51, 52, 53, 54), returns={51: 2 * GIB, 54: 2 * GIB})
    what = made(town)
    town.living[52] = replace(town.living[52], executable="/usr/bin/another")
    del town.living[53]
    receipt = execute(town, what, timeout_s=PATIENCE, together=True, stop_first=True)
    assert statuses(receipt) == ["done", "refused", "not-needed", "done"]
    assert town.signals_sent == [(51, SIGSTOP), (54, SIGSTOP), (51, SIGKILL), (54, SIGKILL)]
    assert receipt.outcomes[0].message == "it was killed (SIGKILL)"


def test_who_was_stopped_and_must_not_be_killed_runs_on(state: Path):
    class Moved(PidHandle):
        def send(self, number: int):
            self.town.living[self.pid] = replace(self.town.living[self.pid], executable="/usr/bin/another")
            return super().send(number)

    town = Town(orphans(51))
    what = made(town)
    town.open = lambda pid: Moved(town, pid) if pid in town.living else None  # type: ignore[method-assign]
    receipt = execute(town, what, timeout_s=PATIENCE, together=True, stop_first=True)
    assert statuses(receipt) == ["failed"]
    assert receipt.outcomes[0].message.startswith("pid 51 was sent SIGSTOP and nothing more: ")
    assert town.signals_sent == [(51, SIGSTOP), (51, SIGCONT)]


def test_together_without_a_log_nobody_is_signalled(state: Path):
    town = Town(orphans(51, 52))
    what = made(town)
    state.mkdir(mode=0o755, parents=True)
    state.chmod(0o755)
    with pytest.raises(AuditUnavailable):
        execute(town, what, timeout_s=PATIENCE, together=True)
    assert town.signals_sent == []


def test_only_kills_without_a_goal_are_done_together(state: Path):
    town = Town(orphans(51, 52))
    with pytest.raises(UsageError):
        execute(town, made(town, goal_bytes=GIB), timeout_s=PATIENCE, together=True)
    assert town.signals_sent == []


def test_the_reset_runs_the_vendors_command_for_the_gpu_that_was_named(state: Path):
    town = Town(ledger(gpu(index=3)))
    town.me = replace(town.me, uid=0, user="root")
    receipt = ran(town, reset_plan(3))
    assert town.commands == [("/usr/bin/nvidia-smi", "--gpu-reset", "-i", "3")]
    assert statuses(receipt) == ["done"]
    assert [each["event"] for each in records(state)] == ["intend", "outcome"]


@pytest.mark.parametrize("me", [{"uid": 1000}, {"uid": 0, "virtual": True}], ids=["no root", "virtual"])
def test_the_reset_is_refused_to_others_and_for_virtual_gpus(state: Path, me):
    town = Town(ledger(gpu()))
    town.me = replace(town.me, **me)
    with pytest.raises(NotPermitted):
        ran(town, reset_plan(0))
    assert not town.commands


def test_a_reset_that_the_vendor_refuses_is_told(state: Path):
    town = Town(ledger(gpu()))
    town.me = replace(town.me, uid=0)
    town.answer = replace(town.answer, code=255, output="The following GPUs could not be reset")
    receipt = ran(town, reset_plan(0))
    assert statuses(receipt) == ["failed"]
    assert "could not be reset" in (receipt.outcomes[0].message or "")


def test_the_vendors_tool_is_not_taken_from_the_callers_path(monkeypatch, tmp_path: Path):
    """It runs as root: whoever set PATH must not choose it."""
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not LocalVendor().reset_command(2)[0].startswith(str(tmp_path))
    assert LocalVendor().reset_command(2)[1:] == ("--gpu-reset", "-i", "2")


def test_a_missing_or_hanging_tool_is_an_answer():
    assert LocalVendor().run(("/nonexistent/nvidia-smi",), 1.0).code is None
    assert (
        LocalVendor().run(("/bin/sh", "-c", "read x < /dev/tty || exec cat /dev/zero >/dev/null"), 0.2).code
        is None
    )
    assert LocalVendor().run(("/bin/sh", "-c", "echo no; exit 3"), 5.0).code == 3


def reset_plan(index: int) -> Plan:
    from vram.model.plan import Step
    from vram.reclaim.plan_file import with_digest

    step = Step(
        kind="reset",
        target=None,
        gpus=(index,),
        predicted_bytes=None,
        loses="",
        reversible=False,
        reason="test",
    )
    return with_digest("now", "boot", None, (index,), (step,))


def test_nothing_here_writes_to_the_users_own_log(state: Path):
    audit.log_intent({})
    assert audit.path().startswith(str(state))


# ---- many trims ----

AT_ONCE = 4


class MeetingTrim:
    """Comes back only when all are asked at the same time; pid 52 refuses."""

    kind = "trim"
    meeting = threading.Barrier(AT_ONCE)

    def check(self, host: Town, step: Step, before: Sequence[Step] = ()) -> Step:
        return step

    def apply(self, host: Town, step: Step, timeout_s: float) -> str:
        self.meeting.wait(PATIENCE_S)
        if step.target.process.pid == 52:
            raise NotReachable("pid 52 keeps the interpreter's lock")
        return "trimmed"

    def verify(self, host: Town, step: Step) -> bool:
        return True


def test_trims_run_at_once_after_the_leftovers_and_one_that_refuses_keeps_nobody(
    state: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(ACTIONS, "trim", f"{__name__}:MeetingTrim")
    people = [process(pid) for pid in range(51, 51 + AT_ONCE)]
    town = Town(ledger(gpu(*people, entry("orphaned", 2 * GIB, charged_pid=1, holder=holder(90)))))
    request = PlanRequest(caches=True)
    receipt = ran(town, plan(town, town.ledger, diagnose(town.ledger), request).plan)
    assert [(each.step.kind, each.status) for each in receipt.outcomes] == [
        ("kill", "done"),
        ("trim", "done"),
        ("trim", "refused"),
        ("trim", "done"),
        ("trim", "done"),
    ]
    assert sum(each.returned_bytes is not None for each in receipt.outcomes if each.step.kind == "trim") == 1
    written = [each["event"] for each in records(state)]
    assert written == ["intend", "outcome", *["intend"] * AT_ONCE, *["outcome"] * AT_ONCE]
