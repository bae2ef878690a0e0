"""Old spellings of public names: they work, and warn."""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of the caller that *old* is now spelled *new*."""
    warnings.warn(f"{old!r} is now {new!r}", DeprecationWarning, stacklevel=3)
