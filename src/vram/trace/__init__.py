"""Traces: every allocation of a program, recorded by `vram run` or `vram attach`, read by `vram report`.

``reader.py`` opens trace files, ``analysis.py`` makes the view that reports show, ``follow.py`` reads a trace
that is still written, ``native.py`` calls the library that does the reading (``native/tracereader``).
"""
