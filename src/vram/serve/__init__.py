"""``vram serve``: one service a machine that reads at an interval, remembers, and answers."""
