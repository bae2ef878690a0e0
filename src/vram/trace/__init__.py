"""Traces: every allocation of a program, recorded by `vram run` or `vram attach`, read by `vram report`.

Recording
    launch.py    a command and its children
    attach.py    a process that already runs
    here.py      this process, for tests and notebooks
    output.py    the files that they write
    cupti.py     where libcupti may be
    mark.py      a program's own words in its trace
    pretend.py   a GPU that looks smaller

Reading
    native.py    calls the library that reads files (native/tracereader)
    reader.py    opens traces; follow.py one that is still written
    analysis.py  makes the view that reports show, with growth.py (is it a leak?) and damage.py
    frameworks/  adds what PyTorch and JAX say of their memory
    naming.py    adds the names of native functions (symbols.py)

Using a view
    checks.py    for CI; fit.py for other cards; exports/ for other tools
"""
