"""Which state a process is in, in the words that matter for its memory."""

from __future__ import annotations

from vram.model.ledger import Holder


def is_stopped(holder: Holder) -> bool:
    """Stopped by a signal (T) or by a debugger (t): it runs nothing and keeps everything."""
    return holder.alive and holder.state in ("T", "t")


def is_stuck(holder: Holder) -> bool:
    """Waiting inside the kernel (D) or already exiting: no signal changes anything now."""
    return holder.alive and (holder.state == "D" or holder.exiting)


def is_healthy(holder: Holder) -> bool:
    """Alive, running from a file that still exists, and able to answer a signal."""
    return holder.alive and not holder.executable_deleted and not is_stopped(holder) and not is_stuck(holder)
