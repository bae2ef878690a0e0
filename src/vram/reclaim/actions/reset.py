"""Reset a GPU by the vendor's tool: only one that was named, as root, with nobody left on it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from vram.errors import DeviceError, NotPermitted, UsageError
from vram.host.ports import Host
from vram.model.blocker import Blocker
from vram.model.plan import Plan, Step, StepKind
from vram.reclaim.blockers import blockers
from vram.reclaim.device_state import read_ledger
from vram.reclaim.plan_file import with_digest


class Readiness(Struct, frozen=True, kw_only=True):
    """Whether a GPU could be reset: who is in the way, what would run, and the plan for it."""

    gpu: int
    blockers: tuple[Blocker, ...]
    command: str
    plan: Plan


def readiness(host: Host, gpu: int, deadline_s: float) -> Readiness:
    """Read how *gpu* stands; nothing is touched by that. Raises where it cannot be reset from here."""
    if host.facts().wsl_facts is not None:
        raise _under_wsl()
    ledger = read_ledger(host, (gpu,), deadline_s)
    if ledger.gpus[0].driver != "nvidia":
        # Its number means another GPU, or none, to the vendor's tool.
        raise UsageError(
            f"GPU {gpu} is driven by {ledger.gpus[0].driver}: vram resets NVIDIA's GPUs only",
            hint="the kernel's driver resets it by itself when it hangs",
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
    return Readiness(
        gpu=gpu,
        blockers=blockers(ledger, ledger.gpus[0]),
        command=" ".join(host.vendor.reset_command(gpu)),
        plan=with_digest(ledger.taken_at, host.limits.boot_id(), None, (gpu,), (step,)),
    )


class Reset:
    """Runs ``nvidia-smi --gpu-reset``, which refuses too where somebody came back meanwhile."""

    kind: StepKind = "reset"

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> Step:
        _gpu(step)
        me = host.facts()
        if me.wsl_facts is not None:
            raise _under_wsl()
        if me.virtual:
            raise NotPermitted(
                "a virtual GPU has nothing to reset", hint="its processes end, and it is as new"
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
                hint="the kernel log tells more: sudo dmesg --ctime | grep -iE 'xid|nvrm'",
            )
        return answer.output or "done"

    def verify(self, host: Host, step: Step) -> bool:
        """The tool's own word counts: it answers only once the GPU is initialised again."""
        return True


def _under_wsl() -> NotPermitted:
    """Why no GPU is reset from inside WSL2."""
    return NotPermitted(
        "a GPU cannot be reset from inside WSL2: it is Windows', and Linux is a guest on it",
        hint="in Windows, Win+Ctrl+Shift+B restarts the graphics driver; a restart of Windows resets the GPU",
    )


def _gpu(step: Step) -> int:
    if len(step.gpus) != 1:
        raise UsageError("a reset needs one GPU, by its number")
    return step.gpus[0]
