"""Let ``vram trim`` into this program, because the program itself says so.

    import vram
    vram.agent()                             in a program, as early as you like

    VRAM_AGENT=1 python train.py             the same, for a program that imports vram anyway

    python -m vram.agent train.py --epochs 3     around one that is left as it is

The module can be called, so that ``vram.agent()`` works whether or not it was imported by name.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from vram.payloads.agent import start
from vram.python_310 import add_note

__all__ = ["start"]


def start_as_asked() -> None:
    """Start because $VRAM_AGENT says so: in every program that imports vram but vram's own command."""
    words = [os.path.basename(word) for word in getattr(sys, "orig_argv", sys.argv)]  # since Python 3.10
    if "vram" in words[:2] or words[1:3] == ["-m", "vram"]:
        # What the command starts is no program of the user's either.
        os.environ.pop("VRAM_AGENT", None)
        return
    try:
        start()
    except OSError as error:
        import warnings

        warnings.warn(f"no vram agent was started: {error}", RuntimeWarning, stacklevel=3)


class _Callable(ModuleType):
    """A module that starts the agent when it is called."""

    def __call__(self) -> str:
        try:
            return start()
        except OSError as error:
            add_note(error, "vram: its socket needs a folder that is yours alone: set XDG_RUNTIME_DIR to one")
            raise


sys.modules[__name__].__class__ = _Callable


def main() -> None:
    """Start the agent, then run the program named on the command line in this process."""
    import runpy

    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit("usage: python -m vram.agent PROGRAM.py [ARGUMENTS...]")
    start()
    del sys.argv[0]
    # As `python PROGRAM.py` would have it: modules beside the program can be imported.
    sys.path[0] = sys.argv[0].rpartition("/")[0] or "."
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
