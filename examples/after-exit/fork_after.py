"""The same trainer, whose worker is started by spawn: it inherits nothing, and nothing is left.

vram virtual -- python examples/after-exit/fork_after.py
"""

from __future__ import annotations

from fork_before import trained_and_killed

if __name__ == "__main__":
    trained_and_killed("spawn")
