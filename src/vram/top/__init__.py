"""``vram top``: the processes that hold GPU memory, live, and what can be done about each."""
