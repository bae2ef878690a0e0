"""The command line: one file per command, and the one place that prints errors."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def entry() -> NoReturn:
    """Run as a program. Ctrl-C while Python still imports ends it as it does later, without a traceback."""
    try:
        from vram.interrupts import note_interrupts, was_interrupted
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    try:
        note_interrupts()
        # msgspec imports it too, ignores Ctrl-C meanwhile, and without it crashes at its first decoder.
        import datetime  # noqa: F401

        from vram.cli.app import entry as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception:
        if was_interrupted():
            raise SystemExit(130) from None
        raise
