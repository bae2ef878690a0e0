"""How Windows can be brought to tell of its own programs, where it did not."""

from __future__ import annotations

from vram.model.observation import Status
from vram.model.wsl import WslFacts

_PATIENCE = "vram why --deadline 20"
_REGISTER = "winmgmt /resyncperf"


def way_to_ask(facts: WslFacts, status: Status | None) -> tuple[str, str]:
    """What to do and, where there is one, the command for it; *status* is how asking ended."""
    if facts.container:
        return "Run vram in the distribution itself: from a container Windows cannot be asked.", ""
    if not facts.interop:
        return "Let vram ask Windows: enabled=true under [interop] in /etc/wsl.conf, then start WSL anew.", ""
    if status in ("failed", "unsupported"):
        return "In an administrator's shell of Windows, have it register its counters anew.", _REGISTER
    return "Look again, with more patience for Windows.", _PATIENCE
