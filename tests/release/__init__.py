"""``vram release``: servers that are asked to release their memory."""
