"""vram: where every byte of GPU memory is, who holds it, and how to free it.

Importing it does no work, loads no framework and touches no driver: each name below is
fetched when it is first used.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, whose import takes longer than everything here
__version__ = "0.1.0"

# name: the module that defines it, or that it is
_PUBLIC = {
    # scopes
    "scope": "vram.guard.scope",
    "scoped": "vram.guard.scoped",
    "retry_on_oom": "vram.guard.retry",
    "on_oom": "vram.guard.oom",
    "Thread": "vram.guard.scoped",
    "ThreadPoolExecutor": "vram.guard.scoped",
    "LeakDetected": "vram.errors",
    "LeakWarning": "vram.errors",
    "LimitExceeded": "vram.errors",
    "VramError": "vram.errors",
    # the machine: who holds what
    "account": "vram.accounting",
    "why": "vram.accounting",
    # this process: what holds it
    "flush": "vram.guard.flush",
    "live": "vram.guard.live",
    "holders": "vram.guard.live",
    # a trace: what this program says in it
    "mark": "vram.trace.mark",
    # owner objects
    "Buffer": "vram.guard.buffer",
    "scrub": "vram.guard.erase",
    "remanence_test": "vram.guard.remanence",
    # sizes: vram.scope(limit=8 * vram.GiB)
    "GiB": "vram.units",
    "MiB": "vram.units",
    # let `vram trim` and `vram why --deep` in; plan as `vram free` does
    "agent": "vram.agent",
    "reclaim": "vram.reclaim",
    # %load_ext vram
    "load_ipython_extension": "vram.notebook",
    "unload_ipython_extension": "vram.notebook",
}

# A type checker reads these lines, Python never does; a test holds the two lists equal.
if TYPE_CHECKING:
    from vram import reclaim as reclaim
    from vram.accounting import account as account
    from vram.accounting import why as why
    from vram.agent import start as agent  # noqa: F401
    from vram.errors import LeakDetected as LeakDetected
    from vram.errors import LeakWarning as LeakWarning
    from vram.errors import LimitExceeded as LimitExceeded
    from vram.errors import VramError as VramError
    from vram.guard.buffer import Buffer as Buffer
    from vram.guard.erase import scrub as scrub
    from vram.guard.flush import flush as flush
    from vram.guard.live import holders as holders
    from vram.guard.live import live as live
    from vram.guard.oom import on_oom as on_oom
    from vram.guard.remanence import remanence_test as remanence_test
    from vram.guard.retry import retry_on_oom as retry_on_oom
    from vram.guard.scope import scope as scope
    from vram.guard.scoped import Thread as Thread
    from vram.guard.scoped import ThreadPoolExecutor as ThreadPoolExecutor
    from vram.guard.scoped import scoped as scoped
    from vram.notebook import load_ipython_extension as load_ipython_extension
    from vram.notebook import unload_ipython_extension as unload_ipython_extension
    from vram.trace.mark import mark as mark
    from vram.units import GiB as GiB
    from vram.units import MiB as MiB


def __getattr__(name: str) -> object:
    home = _PUBLIC.get(name)
    if home is None:
        raise AttributeError(f"module 'vram' has no attribute {name!r}")
    from importlib import import_module

    if home != "vram.errors":  # nothing else could be imported there
        from vram.errors import require_linux

        require_linux(sys.platform)
    module = import_module(home)
    value = globals()[name] = module if home == f"vram.{name}" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


if os.environ.get("VRAM_AGENT", "0") not in ("", "0") and sys.platform != "win32":
    from vram.agent import start_as_asked

    start_as_asked()
