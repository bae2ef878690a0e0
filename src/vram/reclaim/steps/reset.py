"""The vendor's reset: only for a GPU that was named, as root, with nobody left on it."""

from __future__ import annotations

from collections.abc import Sequence

from vram.errors import DeviceError, NotPermitted, UsageError
from vram.host.ports import Host
from vram.model.plan import Step, StepKind


class Reset:
    """Runs ``nvidia-smi --gpu-reset``, which refuses too where somebody came back meanwhile."""

    kind: StepKind = "reset"

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> None:
        _gpu(step)
        me = host.facts()
        if me.wsl_facts is not None:
            raise unreachable()
        if me.virtual:
            raise NotPermitted(
                "a virtual GPU has nothing to reset", hint="its processes end, and it is as new"
            )
        if me.uid != 0:
            raise NotPermitted("only root may reset a GPU", hint='sudo "$(command -v vram)" reset N --yes')

    def describe(self, step: Step) -> str:
        return f"the vendor's reset of GPU {_gpu(step)}"

    def apply(self, host: Host, step: Step, deadline_s: float) -> str:
        command = host.vendor.reset_command(_gpu(step))
        answer = host.vendor.run(command, deadline_s)
        if answer.code != 0:
            raise DeviceError(
                f"{' '.join(command)} did not succeed: {answer.output}",
                hint="the kernel log tells more: sudo dmesg --ctime | grep -iE 'xid|nvrm'",
            )
        return answer.output or "done"

    def verify(self, host: Host, step: Step) -> bool:
        """The tool's own word counts: it answers only once the GPU is initialised again."""
        return True


def unreachable() -> NotPermitted:
    """Why no GPU is reset from inside WSL2."""
    return NotPermitted(
        "a GPU cannot be reset from inside WSL2: it is Windows', and Linux is a guest on it",
        hint="in Windows, Win+Ctrl+Shift+B restarts the graphics driver; a restart of Windows resets the GPU",
    )


def _gpu(step: Step) -> int:
    if len(step.gpus) != 1:
        raise UsageError("a reset needs one GPU, by its number")
    return step.gpus[0]
