"""vram: where every byte of GPU memory is, who keeps it there, and how to get it back.

Importing it does no work, loads no framework and touches no driver: each name below is
fetched when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

# name: where it is defined
_PUBLIC = {
    # scopes
    "scope": "vram.guard.scope",
    "scoped": "vram.guard.scope",
    "retry_on_oom": "vram.guard.retry",
    "on_oom": "vram.guard.oom",
    "Thread": "vram.guard.threads",
    "ThreadPoolExecutor": "vram.guard.threads",
    "LeakDetected": "vram.errors",
    "LimitExceeded": "vram.errors",
    "VramError": "vram.errors",
    # who keeps it
    "flush": "vram.guard.flush",
    "live": "vram.guard.live",
    "holders": "vram.guard.holders",
    # owner objects
    "Buffer": "vram.guard.buffer",
    "scrub": "vram.guard.scrub",
    "remanence_test": "vram.guard.remanence",
    # %load_ext vram
    "load_ipython_extension": "vram.notebook",
    "unload_ipython_extension": "vram.notebook",
}

# A checker reads these lines, Python never does: both lists are held equal by a test.
if TYPE_CHECKING:
    from vram.errors import LeakDetected as LeakDetected
    from vram.errors import LimitExceeded as LimitExceeded
    from vram.errors import VramError as VramError


def __getattr__(name: str) -> object:
    home = _PUBLIC.get(name)
    if home is None:
        raise AttributeError(f"module 'vram' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
