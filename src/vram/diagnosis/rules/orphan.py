"""VR208 Orphaned job: its launcher is dead, and its workers still hold GPU memory.

What it detects
---------------
Processes that a launcher started as its direct children hold GPU memory, and that launcher is
dead: the ranks of torchrun, accelerate, deepspeed or mpirun, workers of Python's multiprocessing
(spawn and forkserver), the engine and worker processes of vLLM and SGLang, Ray's workers,
Jupyter's kernels, a program that an editor debugs with debugpy.

Why it happens
--------------
The launcher was killed: by hand, by the out-of-memory killer, with its terminal, or by a
scheduler that ended one process and not its children. A killed launcher cannot end those it
started. They wait for peers, for requests or for a result that nobody will ask for, and keep
their context and all their memory.

What proves it: the process shows what only the launcher's own child has (its command line or
title, or its environment together with the session or group that the launcher gave it), and its
parent is the process that adopts those whose parents died. Or, whoever has adopted them: at least
two ranks of one torchrun, deepspeed or mpirun have a parent that is no launcher and no shell, other
ranks that it started on this machine are dead, and those that live, with all that they started,
have used less than 1% of a CPU for ten minutes or longer, nor do their GPUs work.

`nohup`, `setsid`, tmux, services, a container's first process and daemons are none of this, nor are
ranks that were started by hand; in doubt, a process is healthy. A program
that a rank started with `python -u` in a session of its own, and that outlived both the rank and
the launcher, cannot be told from the rank.

How to confirm
--------------
The parent is pid 1, `systemd --user`, or the init of the container:

    ps -o pid,ppid,sid,etime,args -p PID

Remedies and their risk
-----------------------
- `vram free --orphans` shows every orphaned job, and what its processes did in the last second;
  it ends them after you agree. Unsaved work of a rank that still computes is lost.
- `vram kill --job PID` ends one job, whole.
- In the launcher: let workers die with it (prctl PR_SET_PDEATHSIG), or run it as a systemd unit
  or in a container, which end together.

Source
------
Seen on an H200, driver 580.159: torchrun's agent killed by SIGKILL left two ranks with 4.5 GiB,
whose parent was pid 1, and which ran on. Reported for vLLM and SGLang in vllm#34816 and
sglang#23627, for torchrun in pytorch#76287.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import finding_about
from vram.ledger.jobs import HeldByJob, find_held_jobs
from vram.ledger.processes import is_healthy
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.units import size

CODE = "VR208"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for each in find_held_jobs(ledger):
        if each.job.is_orphan and all(map(is_healthy, each.holders)):
            yield _finding(ledger, each)


def _finding(ledger: Ledger, held: HeldByJob) -> Finding:
    people = held.holders
    what = words.members(held.job, len(people))
    return finding_about(
        *held.holds,
        code=CODE,
        title=f"{size(held.known_bytes)} held by {what}, launcher dead",
        cause=(
            f"{words.processes(people)}: {what}, started by a process that is dead now. What is left of the"
            f" job runs on and holds {size(held.known_bytes)} of {words.gpus(held.gpus)}."
        ),
        pids=held.pids,
        evidence=(
            *words.orphan_evidence(held),
            *(line for hold in held.holds for line in hold.evidence),
        ),
        remedies=remedies.ordered(remedies.end_job(ledger.host, people)),
    )
