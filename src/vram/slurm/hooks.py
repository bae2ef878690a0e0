"""The three programs for slurm.conf: what each frees, measures and answers; and how a node is drained."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis.words import where_to_look
from vram.errors import AuditUnavailable, UsageError, VramError
from vram.host.local.workload import RunningSteps, running_steps
from vram.host.ports import Host
from vram.model.ledger import Ledger
from vram.model.slurm import EndedProcess, Hook, HookResult, HookVerdict, JobHolder, SlurmJob, Whose
from vram.report.escape import inert
from vram.slurm import jobs
from vram.slurm.ending import Deadline, Ender
from vram.slurm.ownership import Inventory, Node, take
from vram.units import size

# A step that has just been started has no title yet.
NAMING_S = 1.0
ENDING_S = 2.0
CLARIFY_S = 4.0
_CLARIFY_PAUSE_S = 0.25
_PAUSE_S = 0.02
COMMAND_S = 5.0
SCONTROL = "/usr/bin/scontrol"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class HookOptions(Struct, frozen=True, kw_only=True):
    """How a hook was called."""

    deadline_s: float
    grace_s: float = 2.0
    all_gpus: bool = False
    cgroup_only: bool = False
    dry_run: bool = False
    require_bytes: int | None = None
    require_clean: bool = False
    allow_bytes: int = 0
    expect_gpus: int | None = None


OnEnded = Callable[[EndedProcess], None]


def epilog(host: Host, job: SlurmJob, options: HookOptions, on_ended: OnEnded) -> HookResult:
    """End what *job* left on its GPUs, and say whether memory of it is still held."""
    run = _Run(host, "epilog", job, options, on_ended)
    if job.gpu_words is None and not options.all_gpus:
        return run.result((), "clean", reasons=("the job had no GPU",))
    if run.still_has_a_step():
        return run.result((), "unknown", reasons=(f"a step of job {job.job} still runs here",))
    # At once, for hooks that meet its processes meanwhile; and again for those that appear until then.
    run.remember([])
    ledger = run.deadline.read(host)
    gpus, reasons = run.gpus(ledger)
    inventory = run.clarified(run.end(ledger, gpus, "job"))
    run.remember(reasons)
    reasons += inventory.unread
    return run.judge(reasons, inventory, inventory.of("job"), inventory.of("unknown", "user"))


def prolog(host: Host, job: SlurmJob, options: HookOptions, on_ended: OnEnded) -> HookResult:
    """End what jobs that ended before left on the job's GPUs; say whether these are as required.

    The verdict is "held" where a requirement is not met, "unknown" where that cannot be told.
    """
    run = _Run(host, "prolog", job, options, on_ended)
    if job.gpu_words is None and not options.all_gpus:
        return run.result((), "clean", reasons=("the job has no GPU",))
    ledger = run.deadline.read(host)
    gpus, reasons = run.gpus(ledger)
    inventory = run.end(ledger, gpus, "ended-job")
    held = inventory.of("job", "ended-job", "unknown", "user", "other")
    reasons += inventory.unread
    unmet: list[str] = []
    if options.require_bytes is not None:
        for gpu in gpus:
            free = inventory.free_bytes.get(gpu)
            if free is None:
                reasons.append(f"GPU {gpu} does not report its free memory")
            elif free < options.require_bytes:
                unmet.append(f"GPU {gpu} has {size(free)} free, {size(options.require_bytes)} are required")
    if options.require_clean and _matters(held, options.allow_bytes):
        unmet.append("memory is held on the job's GPUs by no running job")
    verdict: HookVerdict = "held" if unmet else "unknown" if reasons else "clean"
    return run.result(gpus, verdict, [*unmet, *reasons], inventory, held)


def health(host: Host, options: HookOptions) -> HookResult:
    """Say whether memory is held on any GPU that no running job accounts for; nothing is touched."""
    run = _Run(host, "health", None, replace(options, dry_run=True, all_gpus=True))
    ledger = run.deadline.read(host)
    gpus, reasons = run.gpus(ledger)
    if options.expect_gpus is not None and len(gpus) != options.expect_gpus:
        reasons.append(f"{len(gpus)} GPUs answer, {options.expect_gpus} are expected")
    inventory = take(host, ledger, gpus, None, run.node)
    reasons += inventory.unread
    return run.judge(reasons, inventory, inventory.of("ended-job"), inventory.of("unknown"))


class _Run:
    """One run of a hook: its job, its time, and what it ended."""

    def __init__(
        self,
        host: Host,
        hook: Hook,
        job: SlurmJob | None,
        options: HookOptions,
        on_ended: OnEnded = lambda each: None,
    ) -> None:
        self._host, self._hook, self._job, self._options = host, hook, job, options
        self._on_ended = on_ended
        self._began = time.monotonic()
        self.deadline = Deadline(options.deadline_s)
        self._boot_id = host.limits.boot_id()
        own = host.proc.facts(os.getpid())
        self._own_cgroup = own[1].cgroup if own else None
        self.node = self.read_node()
        self._ender: Ender | None = None

    def read_node(self) -> Node:
        return Node(
            steps=_named_steps(),
            own_cgroup=self._own_cgroup,
            job_ended=self._hook == "epilog",
            ended=jobs.ended_jobs(self._boot_id),
            cgroup_only=self._options.cgroup_only,
        )

    def still_has_a_step(self) -> bool:
        """Whether the job runs; a step whose end slurmd has seen may still be exiting."""
        deadline = time.monotonic() + min(ENDING_S, self.deadline.left_s() / 4)
        while self._job is not None and self._job.job in self.node.steps.jobs:
            if time.monotonic() > deadline:
                return True
            time.sleep(_PAUSE_S)
            self.node = self.read_node()
        return False

    def gpus(self, ledger: Ledger) -> tuple[tuple[int, ...], list[str]]:
        """The GPUs in question, and what is wrong with them."""
        reasons = [] if ledger.gpus else [_no_gpu(ledger)]
        if self._options.all_gpus or self._job is None:
            return tuple(gpu.index for gpu in ledger.gpus), reasons
        found, missing = jobs.gpus_of(self._job, ledger)
        if ledger.gpus and missing:
            reasons.append(f"the driver knows no GPU {', '.join(missing)}, which the job was given")
        return found, reasons

    def end(self, ledger: Ledger, gpus: tuple[int, ...], whose: Whose) -> Inventory:
        """End the processes of *whose*, unless this is a dry run; return what is held then."""
        if self._options.dry_run:
            return take(self._host, ledger, gpus, self._job, self.node)
        self._ender = Ender(
            self._host,
            self._job,
            whose,
            self.read_node,
            grace_s=self._options.grace_s,
            deadline=self.deadline,
            on_ended=self._on_ended,
        )
        return self._ender.run(ledger, gpus)

    def clarified(self, inventory: Inventory) -> Inventory:
        """*inventory*, read again while another job may be ending: its own epilog says so in a moment."""
        deadline = time.monotonic() + min(CLARIFY_S, self.deadline.left_s() / 4)
        while any(each.job_of_process for each in inventory.of("unknown")) and time.monotonic() < deadline:
            time.sleep(_CLARIFY_PAUSE_S)
            ledger = self.deadline.read(self._host)
            inventory = take(self._host, ledger, inventory.gpus, self._job, self.read_node())
        return inventory

    def remember(self, reasons: list[str]) -> None:
        """Write down that the job has ended, for prologs and health checks to come."""
        if self._job is None or self._options.dry_run:
            return
        try:
            jobs.record(
                jobs.EndedJob(
                    job=self._job.job, uid=self._job.uid, ended_s=jobs.since_boot_s(), boot_id=self._boot_id
                )
            )
        except AuditUnavailable as error:
            reasons.append(str(error))

    def judge(
        self,
        reasons: Sequence[str],
        inventory: Inventory,
        held: tuple[JobHolder, ...],
        unknown: tuple[JobHolder, ...],
    ) -> HookResult:
        """Held where memory of ended jobs is; unknown where that cannot be told of all memory."""
        verdict: HookVerdict = "clean"
        if _matters(held, self._options.allow_bytes):
            verdict = "held"
        elif reasons or _matters(unknown, self._options.allow_bytes):
            verdict = "unknown"
        return self.result(inventory.gpus, verdict, reasons, inventory, (*held, *unknown))

    def result(
        self,
        gpus: tuple[int, ...],
        verdict: HookVerdict,
        reasons: Iterable[str] = (),
        inventory: Inventory | None = None,
        held: Iterable[JobHolder] = (),
    ) -> HookResult:
        ender = self._ender
        if ender is not None and inventory is not None:
            held = [replace(each, note=ender.annotate(each, inventory)) for each in held]
        return HookResult(
            hook=self._hook,
            job=self._job,
            gpus=gpus,
            verdict=verdict,
            reasons=tuple(reasons),
            ended=tuple(ender.result.ended) if ender else (),
            held=tuple(held),
            freed_bytes=ender.result.freed_bytes if ender else 0,
            free_bytes=inventory.free_bytes if inventory else {},
            took_s=round(time.monotonic() - self._began, 3),
            dry_run=self._options.dry_run,
        )


def _named_steps() -> RunningSteps:
    """Which jobs run here; a step that has no title yet is waited for, for a moment."""
    deadline = time.monotonic() + NAMING_S
    while (steps := running_steps()).unnamed and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    return steps


def _matters(pieces: Iterable[JobHolder], allow_bytes: int) -> bool:
    """Whether more than *allow_bytes* are held on one GPU, or an unknown size."""
    sums: dict[int, int] = {}
    for piece in pieces:
        if piece.nbytes is None:
            return True
        sums[piece.gpu] = sums.get(piece.gpu, 0) + piece.nbytes
    return any(nbytes > allow_bytes for nbytes in sums.values())


def _no_gpu(ledger: Ledger) -> str:
    nvml = next((probe for probe in ledger.probes if probe.name == "nvml"), None)
    reason = (nvml and nvml.message) or "none was found"
    return f"no GPU answers: {reason}; {where_to_look(ledger.driver)}"


# ---- a node is taken out of service by Slurm's own command ----


def require_drainable(node: str, scontrol: str) -> None:
    """Raise UsageError where *node* is no name, or *scontrol* no absolute path."""
    if not _NODE.fullmatch(node):
        hint = "slurmd sets SLURMD_NODENAME; or use --node"
        raise UsageError(f"{node!r} is not the name of a node", hint=hint)
    if not os.path.isabs(scontrol):
        raise UsageError(f"{scontrol} is not an absolute path", hint=f"write --scontrol {SCONTROL}")


def drain(node: str, reason: str, scontrol: str = SCONTROL) -> bool:
    """Set *node* to DRAIN, unless it is so already; return whether that was done. Raises where it fails."""
    require_drainable(node, scontrol)
    shown = _run_scontrol(scontrol, "show", "node", "-o", node)
    state = re.search(r"\bState=(\S+)", shown)
    # An administrator who drained it has said why, and that stays.
    if state and ("DRAIN" in state[1] or "DOWN" in state[1]):
        return False
    _run_scontrol(scontrol, "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
    return True


def _run_scontrol(*words: str) -> str:
    kept = {name: os.environ[name] for name in ("SLURM_CONF", "SLURM_CONF_SERVER") if name in os.environ}
    try:
        done = subprocess.run(
            words,
            env={"PATH": "/usr/bin:/bin", **kept},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VramError(f"{words[0]} {words[1]} failed: {inert(str(error))}") from error
    if done.returncode:
        said = inert(done.stderr.decode("utf-8", "backslashreplace").strip())[:200]
        raise VramError(f"{words[0]} {words[1]} failed: {said or f'exit code {done.returncode}'}")
    return done.stdout.decode("utf-8", "backslashreplace")
