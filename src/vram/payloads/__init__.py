"""Files of the standard library only, run inside other processes. They import nothing of vram."""
