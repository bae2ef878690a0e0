"""Whose a process is, case by case; and what slurmd's variables, Slurm's titles and old records are worth."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.diagnosis.ledgers import holder
from tests.slurm import fake_proc
from vram.errors import UsageError
from vram.host.local.workload import RunningSteps, running_steps
from vram.ledger.processes import ProcessMemory
from vram.model.ledger import Entry
from vram.model.process import ProcessFacts, ProcessRef, Workload
from vram.model.slurm import HookResult, JobClaim, JobHolder, SlurmJob, Whose
from vram.report.slurm import drain_reason, text
from vram.slurm import jobs
from vram.slurm.jobs import EndedJob, job_of
from vram.slurm.log import HookLog
from vram.slurm.ownership import Inventory, Judged, Node, claim, is_of_earlier_job, is_of_job

SLURMD = "/system.slice/slurmd.service"
V1 = "/slurm/uid_1000/job_42/step_0/task_0"
V2 = "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"
JOB = SlurmJob(job="42", uid=1000, gpu_words=("0",))
NONE_RUN = RunningSteps(frozenset(), {})


def process(
    cgroup: str, *, uid: int = 1000, job: str | None = None, claimed: str | None = None
) -> ProcessFacts:
    origin = Workload(slurm_job=job, claimed_job=claimed)
    return ProcessFacts(command="python", uid=uid, cgroup=cgroup, workload=origin)


CASES = {
    "its control group, version 1": (process(V1, job="42"), True),
    "its control group, version 2": (process(V2, job="42"), True),
    "in the job's group as another user": (process(V2, job="42", uid=100_000), True),
    "in the group of a job of that number of another user": (process("/slurm/uid_7/job_42", job="42"), False),
    "in another job's group, claiming this one": (process("/slurm/uid_1000/job_43", job="43"), False),
    "a group that a user made": (process("/user.slice/user@1000.service/slurm/job_42", job="42"), False),
    "its environment, in slurmd's group": (process(SLURMD, claimed="42"), True),
    "its environment with zeros before": (process(SLURMD, claimed="0042"), True),
    "another user's word": (process(SLURMD, claimed="42", uid=1001), False),
    "root's word": (process(SLURMD, claimed="42", uid=0), False),
    "its environment, in a login": (
        process("/user.slice/user-1000.slice/session-3.scope", claimed="42"),
        False,
    ),
    "its environment, in a container": (process("/docker/4f1c", claimed="42"), False),
    "another job's environment": (process(SLURMD, claimed="43"), False),
    "no word at all": (process(SLURMD), False),
}


@pytest.mark.parametrize("case", CASES)
def test_whether_a_process_is_the_ended_jobs(case: str) -> None:
    facts, answer = CASES[case]
    node = Node(steps=NONE_RUN, own_cgroup=SLURMD)
    assert is_of_job(facts, claim(7, facts, node), JOB, node) is answer


def test_a_job_that_runs_has_left_nothing() -> None:
    """Whatever names it: its own steps, the steps of another, or only its number."""
    for steps in (RunningSteps(frozenset(("42",)), {}), RunningSteps(frozenset(("43",)), {7: "43"})):
        node = Node(steps=steps, own_cgroup=SLURMD)
        for facts in (process(V1, job="42"), process(SLURMD, claimed="42")):
            assert not is_of_job(facts, claim(7, facts, node), JOB, node)


def test_naming_a_running_job_of_somebody_else_hides_nothing() -> None:
    steps = RunningSteps(frozenset(("43",)), {99: "43"}, users={"43": frozenset((1001,))})
    node = Node(steps=steps, own_cgroup=SLURMD)
    assert claim(7, process(SLURMD, claimed="43"), node).job is None
    assert claim(7, process(SLURMD, claimed="43", uid=1001), node).job == "43"


def test_only_what_was_there_when_a_job_ended_was_left_by_it() -> None:
    ended = {"42": EndedJob(job="42", uid=1000, ended_s=100.0, boot_id="b")}
    node = Node(steps=NONE_RUN, own_cgroup=SLURMD, job_ended=False, ended=ended)
    facts = process(SLURMD, claimed="42")
    ticks = os.sysconf("SC_CLK_TCK")
    for started_s, answer in ((99.0, True), (101.0, False)):
        who = ProcessRef(7, int(started_s * ticks))
        assert is_of_earlier_job(who, facts, claim(7, facts, node), node) is answer
    stranger = process(SLURMD, claimed="42", uid=1001)
    assert not is_of_earlier_job(ProcessRef(7, 1), stranger, claim(7, stranger, node), node)


def mps_client(pid: int, whose: Whose, server: int | None, *, lists: tuple[str, ...] = ("mps",)) -> Judged:
    owner = holder(pid, lists=lists)
    entry = Entry(kind="process", nbytes=1, holder=owner, mps_server=server)
    memory = ProcessMemory(holder=owner, charged=(entry,), gpus=(0,))
    return Judged(memory=memory, whose=whose, claim=JobClaim(), command="python")


@pytest.mark.parametrize(
    ("other", "beside"),
    [
        (mps_client(8, "running-job", 5), 8),
        (mps_client(8, "running-job", None), 8),
        (mps_client(8, "user", 5), 8),
        (mps_client(8, "running-job", 6), None),
        (mps_client(8, "running-job", None, lists=("compute",)), None),
        (mps_client(8, "job", 5), None),
        (mps_client(5, "system", None), None),
    ],
)
def test_an_mps_client_is_not_ended_beside_somebody_elses(other: Judged, beside: int | None) -> None:
    """They share a server, and fail together."""
    mine = mps_client(7, "job", 5)
    here = {7: mine, other.memory.pid: other}
    found = Inventory(gpus=(0,), processes=here, held=(), unread=(), free_bytes={})
    assert found.mps_client_beside(mine) == beside


# ---- what slurmd says ----


@pytest.mark.parametrize(
    ("variables", "gpus", "by_uuid"),
    [
        ({}, None, False),
        ({"SLURM_JOB_GPUS": "0,3"}, ("0", "3"), False),
        ({"SLURM_JOB_GPUS": "0-2,7"}, ("0", "1", "2", "7"), False),
        ({"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}, ("3",), False),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("1",), False),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-abc"}, ("MIG-abc",), True),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, None, False),
    ],
)
def test_the_jobs_gpus(variables: dict[str, str], gpus: tuple[str, ...] | None, by_uuid: bool) -> None:
    job = job_of({"SLURM_JOB_ID": "42", "SLURM_JOB_UID": "1000", **variables})
    assert (job.gpu_words, job.by_uuid) == (gpus, by_uuid)


@pytest.mark.parametrize("word", ["", "x", "-1", "42; rm", "4" * 11, "４２"])
def test_a_call_without_a_job_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        job_of({"SLURM_JOB_ID": word, "SLURM_JOB_UID": "1000"})
    with pytest.raises(UsageError):
        job_of({"SLURM_JOB_ID": "42", "SLURM_JOB_UID": word})


# ---- what runs on the node ----


def test_running_steps_are_told_by_their_titles(tmp_path: Path) -> None:
    """And only where root or we ourselves run them: anybody can call a program so."""
    world = fake_proc.Tree(tmp_path)
    world.add(10, name="slurmstepd", argv="slurmstepd: [42.batch]", parent=1, uid=0)
    world.add(11, name="bash", argv="bash", parent=10, uid=1000)
    world.add(12, name="python", argv="python", parent=11, uid=1000)
    world.add(20, name="slurmstepd", argv="slurmstepd: [43.extern]", parent=1, uid=4242)
    world.add(30, name="slurmstepd", argv="/usr/sbin/slurmstepd", parent=1, uid=0)
    world.add(31, name="python", argv="python", parent=30, uid=1000)
    world.add(40, name="slurmstepd", argv="/usr/sbin/slurmstepd\0infinity", parent=1, uid=0)
    steps = running_steps(str(tmp_path))
    assert steps.jobs == {"42"}
    assert steps.below == {10: "42", 11: "42", 12: "42", 30: "?", 31: "?"}
    assert steps.unnamed == (30,)
    assert steps.users["42"] == {1000}


def test_records_of_ended_jobs_survive_damage_and_other_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for at in range(3):
        jobs.record(EndedJob(job=str(at), uid=1000, ended_s=float(at), boot_id="b" if at else "a"))
    file = tmp_path / "state" / "vram" / jobs.FILE
    file.write_bytes(file.read_bytes() + b'{"job": 7\n\xff\n')
    assert set(jobs.ended_jobs("b")) == {"1", "2"}
    file.write_bytes(b"{}\n" * (jobs.MAX_BYTES // 2))
    jobs.record(EndedJob(job="9", uid=1000, ended_s=1.0, boot_id="b"))
    assert set(jobs.ended_jobs("b")) == {"9"}
    assert file.stat().st_size < jobs.MAX_BYTES


# ---- what is shown and logged ----

HOSTILE = 'a\x1b[2J"\n\\\u202e'


def result(**more: object) -> HookResult:
    piece = JobHolder(gpu=0, nbytes=1 << 30, pid=7, user=HOSTILE, command=HOSTILE, whose="job")
    return HookResult(hook="epilog", job=JOB, gpus=(0,), verdict="held", held=(piece,), **more)  # type: ignore[arg-type]


def test_foreign_names_steer_nothing(tmp_path: Path) -> None:
    shown = text(result())
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert shown.count("\n") == 2
    HookLog("epilog", JOB, path=str(tmp_path / "log-%j"), syslog=False).result(result(), 1)
    raw = (tmp_path / "log-42").read_bytes()
    assert raw.isascii()
    lines = [json.loads(line) for line in raw.splitlines()]
    assert [line["event"] for line in lines] == ["held", "result"]
    assert lines[0]["command"] == HOSTILE
    reason = drain_reason(result(reasons=(HOSTILE,)))
    assert reason.isascii()
    assert set('"\n\x1b\\=') & set(reason) == set()


def test_a_log_that_cannot_be_written_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    for path in (tmp_path / "link", tmp_path, tmp_path / "missing" / "log"):
        HookLog("epilog", JOB, path=str(path), syslog=False).result(result(), 1)
        assert capsys.readouterr().err.count("cannot write") == 1
