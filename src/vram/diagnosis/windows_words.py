"""How Windows can be brought to tell of its own programs, where it did not."""

from __future__ import annotations

from vram.model.observation import ProbeRun
from vram.model.windows import NO_INTEROP, NO_POWERSHELL
from vram.model.wsl import WslFacts

_PATIENCE = "vram why --deadline 20"
_REGISTER = "winmgmt /resyncperf"
_INTEROP = "Let vram ask Windows: enabled=true under [interop] in /etc/wsl.conf, then start WSL anew."
_AUTOMOUNT = (
    "Let vram find powershell.exe: enabled=true under [automount] in /etc/wsl.conf, then start WSL anew; or"
    " put its folder on PATH."
)


def way_to_ask(facts: WslFacts, asked: ProbeRun | None) -> tuple[str, str]:
    """What to do and, where there is one, the command for it; *asked* is how asking ended."""
    status, why = (asked.status, asked.message or "") if asked else (None, "")
    if facts.container:
        return "Run vram in the distribution itself: from a container Windows cannot be asked.", ""
    if not facts.interop or why.startswith(NO_INTEROP):
        return _INTEROP, ""
    if why.startswith(NO_POWERSHELL):
        return _AUTOMOUNT, ""
    if status == "denied":
        return "Look as a user who may start powershell.exe: the mount of drive C decides who may.", ""
    if status in ("failed", "unsupported"):
        return "In an administrator's shell of Windows, have it register its counters anew.", _REGISTER
    return "Look again, with more patience for Windows.", _PATIENCE
