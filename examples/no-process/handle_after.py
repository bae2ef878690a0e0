"""The same two programs; this broker closes a descriptor when its maker leaves, and nothing is left.

vram virtual -- python examples/no-process/handle_after.py
"""

from __future__ import annotations

from handle_before import handed_over_and_crashed

if __name__ == "__main__":
    handed_over_and_crashed("releases")
