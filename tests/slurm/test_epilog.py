"""``vram slurm epilog`` as slurmd runs it: whatever a job left is freed, and nobody else notices."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.slurm.cluster import SHARED, Left, Running
from tests.slurm.conftest import Site
from vram.units import MIB

NOBODY, DAEMON = 65534, 1
SHARD = ("--gres=shard:1",)
KINDS = ("daemon", "stubborn", "stopped", "family", "forked", "exported", "dmabuf")


def test_every_kind_of_leftover_is_freed_and_the_job_is_told(site: Site) -> None:
    """Escaped daemons, alone and with children, stopped and stubborn ones, forked children whose parent is
    dead, exported handles and dma-bufs."""
    program = f"{site.python} {SHARED}/tests/leave.py"
    job = site.sbatch("#!/bin/sh\n" + "".join(f"{program} {kind} 128 3\n" for kind in KINDS), *SHARD)
    assert site.wait(job) == "COMPLETED"
    printed = site.output(job).splitlines()
    left = [Left(**json.loads(line)) for line in printed[: len(KINDS)]]
    pids = {pid for each in left for pid in each.pids}
    assert len(pids) == len(KINDS) + 3 + 2
    result, ended = site.result(job), site.ended(job)
    assert (result["verdict"], result["exit_code"]) == ("clean", 0)
    assert ended.keys() == pids
    assert not [pid for each in left for pid in each.living()]
    assert result["freed_bytes"] > len(KINDS) * 128 * MIB
    assert result["free_bytes"] == site.result(job, "prolog")["free_bytes"]
    assert site.state() == "idle"
    # Each was logged before and after, and the job's own output tells of it.
    logged = [each for each in site.audit() if each["event"] == "intend"]
    assert pids <= {each["step"]["target"]["process"]["pid"] for each in logged}
    assert {each["by"] for each in ended.values()} == {"environment"}
    stubborn = left[KINDS.index("stubborn")].pids[0]
    assert "SIGKILL" in ended[stubborn]["message"]


def test_the_jobs_output_tells_what_was_done(site: Site) -> None:
    """With --job-output, in the job's own file and with its user's rights alone."""
    site.options("epilog", "--job-output")
    job = site.sbatch(f"#!/bin/sh\n{site.python} {SHARED}/tests/leave.py daemon 64\n", *SHARD)
    site.wait(job)
    victim = site.folder / "secret"
    victim.write_text("of root\n")
    # The path is the user's word: one that leads to another's file is not written to.
    other = site.sbatch(
        f"#!/bin/sh\n{site.python} {SHARED}/tests/leave.py daemon 64\n"
        f"rm {site.folder}/out/$SLURM_JOB_ID; ln -s {victim} {site.folder}/out/$SLURM_JOB_ID\n",
        *SHARD,
    )
    site.wait(other)
    assert site.result(job)["verdict"] == "clean", site.events(job)
    said = f"vram: job {job}: nothing of the job is held"
    site.until(lambda: said in site.output(job), "the job's output tells of it")
    assert len(site.ended(other)) == 1
    assert victim.read_text() == "of root\n"


def test_neighbours_on_the_same_gpu_do_not_notice(site: Site, beside: list[Running]) -> None:
    """Jobs of the same user and of another, their escaped daemons, and what runs outside all jobs."""
    works, daemon = site.program("works", 64), site.program("daemon", 64)
    stays = ["sh", "-c", f"{' '.join(daemon)}; exec sleep 1000"]
    beside.append(site.background(*works, options=SHARD))
    beside.append(site.background(*works, options=SHARD, user=DAEMON))
    # A daemon of a job that still runs: no step is its ancestor.
    beside.append(site.background(*stays, options=SHARD))
    # An allocation without a step: its shell is no child of slurmd.
    salloc = site.background(*works, options=(*SHARD, "-Q"), command="salloc", CUDA_VISIBLE_DEVICES="0")
    beside.append(salloc)
    assert {each.gpus for each in beside} == {"0"}
    left = Left(**json.loads(site.srun(*site.program("forked", 128, 5), options=SHARD).stdout))
    job = int(left.job)
    assert left.gpus == "0"
    # Outside every job: a login of the same user, and one of another who claims to be the job.
    beside.append(site.background(*works, command="env"))
    beside.append(site.background(*works, command="env", user=DAEMON, SLURM_JOB_ID=str(job)))
    site.wait(job)
    assert site.ended(job).keys() == set(left.pids)
    assert not left.living()
    assert [each.living() == each.pids for each in beside] == [True] * len(beside)
    assert site.state() != "drain"


@pytest.mark.parametrize("kind", ["respawns", "restarts", "pair"])
def test_who_starts_workers_again_and_again_is_ended_with_them(
    site: Site, beside: list[Running], kind: str
) -> None:
    """It holds no memory itself, and all that it starts does, whether they are its children or not."""
    beside.append(site.background(*site.program("works", 64), options=SHARD))
    beside.append(site.background("sh", "-c", SHELL, command="env"))
    left = site.leave(kind, 64, options=SHARD)
    result = site.result(left.job)
    assert (result["verdict"], result["exit_code"]) == ("clean", 0), site.events(left.job)
    assert not left.living()
    assert left.pids[0] in site.ended(left.job)
    assert not list(processes_of(left.job))
    assert "drain" not in site.state()
    assert [each.living() == each.pids for each in beside] == [True, True]


@pytest.mark.parametrize("kind", ["executed", "handed"])
def test_who_keeps_the_files_of_a_dead_process_is_ended(site: Site, beside: list[Running], kind: str) -> None:
    """Without mapping them, so that the driver's memory has no visible holder."""
    beside.append(site.background(*site.program("works", 64), options=SHARD))
    beside.append(site.background(*site.program("works", 64), command="env"))
    left = site.leave(kind, 128, options=SHARD)
    result = site.result(left.job)
    assert site.ended(left.job).keys() == set(left.pids), site.events(left.job)
    assert (result["exit_code"], not left.living()) == (0, True)
    assert not [each for each in site.events(left.job) if each["event"] == "held" and each["pid"] is None]
    assert result["freed_bytes"] > 128 * MIB
    assert [each.living() == each.pids for each in beside] == [True, True]


def processes_of(job: str) -> Iterator[int]:
    """Those whose environment names *job*."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"SLURM_JOB_ID={job}".encode() in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)


SHELL = """echo '{"pids": ['$$'], "job": "0", "gpus": null}'; exec sleep 1000"""


def test_who_holds_nothing_is_ended_only_if_it_is_surely_of_the_job(
    site: Site, beside: list[Running]
) -> None:
    """Shells that name the job in their environment, below a login or another process of the user, live."""
    job = site.first_job + 8_000
    names = {"SLURM_JOB_ID": str(job)}
    inner = f"SLURM_JOB_ID={job} sh -c {shlex.quote(SHELL)}; true"
    shell = ("sh", "-c", SHELL)
    shells = {
        "a login": site.background("nobody", "-s", "/bin/sh", "-c", SHELL, command="su", user=0, **names),
        "below the user's": site.background("sh", "-c", inner, command="env"),
        "another job's": site.background(*shell, command="env", SLURM_JOB_ID=str(job + 1)),
        "another user's": site.background(*shell, command="env", user=DAEMON, **names),
        "nobody's": site.background(*shell, command="env"),
    }
    beside += shells.values()
    idle = site.background(*shell, command="env", **names)
    restarts = site.background(*site.program("restarts", 64), command="env", **names)
    beside += (idle, restarts)
    done = by_hand(site, "epilog", site.hook_environment(job, NOBODY, "0"), "--json")
    result = json.loads(done.stdout)
    if result["verdict"] != "clean":  # workers that are nobody's children would outlive the test
        Left(list(processes_of(str(job))), None, None).signal(signal.SIGKILL)
    assert (done.returncode, result["verdict"]) == (0, "clean"), done.stdout
    assert {*restarts.pids, *idle.pids} <= {each["pid"] for each in result["ended"]}
    assert not restarts.living() + idle.living()
    assert {name for name, each in shells.items() if each.living()} == shells.keys()


def test_a_job_array_is_many_jobs(site: Site) -> None:
    """Each task ends with its own leftovers, while the others go on."""
    script = f"#!/bin/sh\n{' '.join(site.program('daemon', 64))}\n[ $SLURM_ARRAY_TASK_ID = 2 ] && sleep 3\n"
    first = site.sbatch(script + "exit 0\n", *SHARD, "--array=1-3", f"--output={site.folder}/out/array-%a")
    site.until(lambda: not site.run("squeue", "-h").stdout.strip(), "the array is over")
    told = [json.loads((site.folder / "out" / f"array-{at}").read_text().splitlines()[0]) for at in (1, 2, 3)]
    assert len({each["job"] for each in told}) == 3
    assert str(first) in {each["job"] for each in told}
    for each in told:
        assert list(site.ended(each["job"])) == each["pids"]
    assert "drain" not in site.state()


def test_memory_that_cannot_be_freed_drains_the_node(site: Site) -> None:
    """No audit log, no action: the memory stays, and Slurm takes the node out of service."""
    folder = site.state_folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o755)
    try:
        left = site.leave("daemon", options=SHARD)
        site.until(lambda: "drain" in site.state(), "the node is drained")
        assert left.living() == left.pids
        assert "pilog" in site.reason()
        failed = site.events(left.job)[-1]
        assert failed["exit_code"] == 1
    finally:
        folder.chmod(0o700)
    # By hand it works again, and names what it was called for.
    done = by_hand(site, "epilog", site.hook_environment(int(left.job), NOBODY, "0"))
    assert done.returncode == 0, done.stderr
    assert not left.living()


def test_unknown_drains_the_node_only_where_the_site_says_so(site: Site) -> None:
    site.gpu.fail("nvmlInit*", error="UNKNOWN")
    job = json.loads(site.srun(*site.program("daemon", 64), options=SHARD).stdout)["job"]
    site.wait(int(job))
    assert site.result(job)["verdict"] == "unknown"
    assert "drain" not in site.state()
    site.options("epilog", "--unknown-counts")
    job = json.loads(site.srun(*site.program("daemon", 64), options=SHARD).stdout)["job"]
    site.until(lambda: "drain" in site.state(), "the node is drained")
    assert site.result(job)["exit_code"] == 3


def test_a_crowd_ends_within_one_grace(site: Site) -> None:
    """A dozen that ignore SIGTERM wait together, not one after the other."""
    script = "for i in $(seq 12); do " + " ".join(site.program("stubborn", 16)) + " & done; wait"
    done = site.srun("sh", "-c", script, options=SHARD)
    left = [Left(**json.loads(line)) for line in done.stdout.splitlines()]
    assert len(left) == 12
    site.wait(int(left[0].job))
    result = site.result(left[0].job)
    assert result["verdict"] == "clean", site.events(left[0].job)
    assert not [pid for each in left for pid in each.living()]
    # Each alone would have waited for its own.
    outcomes = [each for each in site.audit() if each["event"] == "outcome" and "SIGKILL" in each["message"]]
    assert len({each["took_s"] for each in outcomes[-12:]}) == 1


def test_a_job_that_still_runs_is_left_alone(site: Site, beside: list[Running]) -> None:
    """An epilog that comes late, of a job that was requeued, say: its number is in use again."""
    beside.append(site.background(*site.program("works", 64), options=SHARD))
    (running,) = beside
    done = by_hand(site, "epilog", site.hook_environment(int(running.job), NOBODY, "0"), "--unknown-counts")
    assert done.returncode == 3
    assert f"a step of job {running.job} still runs here" in done.stdout
    assert running.living()


def test_a_job_without_gpus_is_answered_without_the_driver(site: Site) -> None:
    site.gpu.fail("nvmlInit*", hang=True)
    job = json.loads(site.srun(site.python, "-c", PRINT_JOB).stdout)["job"]
    site.wait(int(job))
    result = site.result(job)
    assert (result["verdict"], result["gpus"], result["exit_code"]) == ("clean", [], 0)


def test_a_driver_that_hangs_is_given_up_by_the_deadline(site: Site) -> None:
    site.gpu.fail("nvmlDeviceGetCount*", hang=True)
    done = by_hand(
        site, "epilog", site.hook_environment(7, NOBODY, "0"), "--unknown-counts", "--deadline", "4s"
    )
    assert done.returncode == 3


PRINT_JOB = 'import os; print(\'{"job": "%s"}\' % os.environ["SLURM_JOB_ID"])'


def by_hand(
    site: Site, hook: str, variables: dict[str, str], *words: str, user: int = 0
) -> subprocess.CompletedProcess[str]:
    """Call a hook as slurmd does: with its variables, and with nothing else."""
    environment = site.gpu.environment({}) | variables
    return subprocess.run(
        [sys.executable, "-m", "vram", "slurm", hook, "--deadline", f"{PATIENCE_S:g}s", *words],
        env={
            **environment,
            "XDG_STATE_HOME": str(site.state_folder.parent),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(("kind", "number"), [("stopped", signal.SIGKILL)])
def test_what_ends_by_itself_needs_nothing(site: Site, kind: str, number: int) -> None:
    """A leftover that is gone before the epilog acts is no failure."""
    left = Left(**json.loads(site.srun(*site.program(kind, 64), options=SHARD).stdout))
    left.signal(number)
    site.wait(int(left.job))
    assert site.result(left.job)["verdict"] == "clean"
