"""Reset a GPU by the vendor's tool: only one that was named, as root, with no process left on it.

A GPU that does not answer is never free of blockers: who has its files open is known without the driver, who
uses it otherwise is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from vram.errors import DeviceError, NotPermitted, UsageError
from vram.host.ports import Host
from vram.ledger.holds import find_holds, in_ledger_order
from vram.ledger.processes import ProcessMemory, is_silent, processes
from vram.model.ledger import GpuLedger, Holder, Ledger
from vram.model.plan import Blocker, Plan, Step, StepKind
from vram.protected import is_display
from vram.reclaim.device_state import read_ledger
from vram.reclaim.plan_file import with_digest


class Readiness(Struct, frozen=True, kw_only=True):
    """Whether a GPU could be reset: who is in the way, what would run, and the plan for it."""

    gpu: int
    blockers: tuple[Blocker, ...]
    command: str
    plan: Plan
    advice: str | None = None
    """What the driver itself advises for the GPU, by its word: "none", "gpu-reset"; None: it says nothing."""


def readiness(host: Host, gpu: int, deadline_s: float) -> Readiness:
    """Read how *gpu* stands; nothing is touched by that. Raises where it cannot be reset from here."""
    if host.facts().wsl_facts is not None:
        raise _under_wsl()
    ledger = read_ledger(host, (gpu,), deadline_s)
    if ledger.gpus[0].driver != "nvidia":
        # Its number means another GPU, or none, to the vendor's tool.
        raise UsageError(
            f"GPU {gpu} uses the driver {ledger.gpus[0].driver}: vram resets NVIDIA GPUs only",
            hint="the kernel's driver resets it automatically when it hangs",
        )
    step = Step(
        kind="reset",
        target=None,
        gpus=(gpu,),
        predicted_bytes=None,
        loses="nothing, once nobody uses the GPU",
        reversible=False,
        reason="you named it",
    )
    facts = ledger.gpus[0].facts
    return Readiness(
        gpu=gpu,
        advice=facts.recovery_action if facts else None,
        blockers=blockers(ledger, ledger.gpus[0]),
        command=" ".join(host.vendor.reset_command(gpu)),
        plan=with_digest(ledger.taken_at, host.limits.boot_id(), None, (gpu,), (step,)),
    )


class Reset:
    """Runs ``nvidia-smi --gpu-reset``, which refuses too where a process came back meanwhile."""

    kind: StepKind = "reset"

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> Step:
        _gpu(step)
        me = host.facts()
        if me.wsl_facts is not None:
            raise _under_wsl()
        if me.virtual:
            raise NotPermitted(
                "a virtual GPU has nothing to reset", hint="end its processes, and it is as new"
            )
        if me.uid != 0:
            raise NotPermitted("only root may reset a GPU", hint='sudo "$(command -v vram)" reset N --yes')
        return step

    def apply(self, host: Host, step: Step, timeout_s: float) -> str:
        command = host.vendor.reset_command(_gpu(step))
        answer = host.vendor.run(command, timeout_s)
        if answer.code != 0:
            raise DeviceError(
                f"{' '.join(command)} did not succeed: {answer.output}",
                hint="read the kernel log: sudo dmesg --ctime | grep -iE 'xid|nvrm'",
            )
        return answer.output or "done"

    def verify(self, host: Host, step: Step) -> bool:
        """The tool's own answer counts: it answers only once the GPU is initialised again."""
        return True


def _under_wsl() -> NotPermitted:
    """Why no GPU is reset from inside WSL2."""
    return NotPermitted(
        "a GPU cannot be reset from inside WSL2: it belongs to Windows",
        hint="in Windows, Win+Ctrl+Shift+B restarts the graphics driver; restarting Windows resets the GPU",
    )


def _gpu(step: Step) -> int:
    if len(step.gpus) != 1:
        raise UsageError("a reset needs one GPU, by its number")
    return step.gpus[0]


# ---- what prevents a reset: the processes on the GPU, and the command that removes each ----

# How the parts of the system release a GPU: each by its own command.
_OWN_COMMANDS = {
    "nvidia-persistenced": "sudo systemctl stop nvidia-persistenced",
    "nv-fabricmanager": "sudo systemctl stop nvidia-fabricmanager",
    "nvidia-fabricmanager": "sudo systemctl stop nvidia-fabricmanager",
    "nv-hostengine": "sudo systemctl stop nvidia-dcgm",
    "dcgm-exporter": "sudo systemctl stop dcgm-exporter",
    "nvidia-cuda-mps-control": "echo quit | nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server": "echo quit | nvidia-cuda-mps-control",
}
_DISPLAY = "sudo systemctl isolate multi-user.target"


def blockers(ledger: Ledger, gpu: GpuLedger) -> tuple[Blocker, ...]:
    """Every process on *gpu*, and memory whose holder has no name, the largest first."""
    found = [_block_by(each, gpu) for each in processes(ledger).values() if gpu.index in each.gpus]
    sized = sorted((*found, *_find_unnamed(ledger, gpu)), key=lambda each: -(each.nbytes or 0))
    if not is_silent(gpu):
        return tuple(sized)
    why = "the GPU does not answer: who uses it is unknown"
    return (Blocker(pid=None, name=None, user=None, nbytes=None, why=why), *sized)


def _block_by(process: ProcessMemory, gpu: GpuLedger) -> Blocker:
    holder, part = process.holder, process.protected
    why = "it uses the GPU" if process.charged else "it has the GPU's files open"
    return Blocker(
        pid=holder.pid,
        name=holder.command,
        user=holder.user,
        nbytes=None if is_silent(gpu) else process.nbytes,
        why=f"it is {part}" if part else why,
        command=_removal(holder, part),
    )


def _removal(holder: Holder, part: str | None) -> str:
    if part is None:
        return f"vram kill {holder.pid}"
    if is_display(holder):
        return _DISPLAY
    name = (holder.executable or "").removesuffix(" (deleted)").rpartition("/")[2]
    return _OWN_COMMANDS.get(name, "")


def _find_unnamed(ledger: Ledger, gpu: GpuLedger) -> Iterator[Blocker]:
    # What contexts cost beyond their charge is no hold: it goes with the contexts.
    for part in in_ledger_order(find_holds(ledger)):
        entry = part.entry
        if part.gpu == gpu.index and (entry.holder is None or not entry.holder.alive):
            why = {
                "hidden": "a process that is not visible from here holds it",
                "orphaned": "the driver charges it to a dead process",
            }.get(entry.kind, "its holder is unknown")
            if entry.hidden_by == "end":
                why = "the process that held it exited during the read: try again"
            command = "sudo vram why" if entry.hidden_by == "permission" else ""
            yield Blocker(pid=None, name=None, user=None, nbytes=entry.nbytes, why=why, command=command)
