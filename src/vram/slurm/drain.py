"""Takes this node out of service with Slurm's own command, once, and with a reason that people can read."""

from __future__ import annotations

import os
import re
import subprocess

from vram.errors import UsageError, VramError
from vram.report.escape import inert

COMMAND_S = 5.0
SCONTROL = "/usr/bin/scontrol"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


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
    shown = _run(scontrol, "show", "node", "-o", node)
    state = re.search(r"\bState=(\S+)", shown)
    # Whoever drained it has said why, and that stays.
    if state and ("DRAIN" in state[1] or "DOWN" in state[1]):
        return False
    _run(scontrol, "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
    return True


def _run(*words: str) -> str:
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
