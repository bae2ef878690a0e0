"""Is a GPU ready to be reset? Its blockers, the command that would run, and the plan for it."""

from __future__ import annotations

from msgspec import Struct

from vram.errors import UsageError
from vram.host.ports import Host
from vram.model.plan import Blocker, Plan, Step
from vram.reclaim.blockers import blockers
from vram.reclaim.looking import look
from vram.reclaim.plan_file import seal
from vram.reclaim.steps.reset import unreachable


class Readiness(Struct, frozen=True, kw_only=True):
    """``command`` is what would run, ready to be shown."""

    gpu: int
    blockers: tuple[Blocker, ...]
    command: str
    plan: Plan


def readiness(host: Host, gpu: int, deadline_s: float) -> Readiness:
    """Look at *gpu*; nothing is touched by that. Raises where it is out of reach from here."""
    if host.facts().wsl_facts is not None:
        raise unreachable()
    ledger, _ = look(host, (gpu,), deadline_s)
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
        plan=seal(ledger.taken_at, host.limits.boot_id(), None, (gpu,), (step,)),
    )
