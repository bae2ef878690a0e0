"""Traces: every allocation of a program, recorded by `vram run` or `vram attach`, read by `vram report`."""
