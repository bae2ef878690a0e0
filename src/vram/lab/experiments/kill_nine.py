"""kill -9 leaves GPU memory behind that stays used

Source
------
Folklore; and question 1, where memory is said to stay after the program has ended.

Method
------
A process allocates 256 MiB and never frees them. It is ended by SIGKILL, and the device is read
again the moment the kernel reports it dead.

Reading
-------
Whatever kills a process, the kernel closes its files, and the driver gives back what belonged to
them. Where this is true, somebody else still has those files open: `vram why` names who.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    holder, held = bench.holding(NBYTES)
    gone_s = holder.kill()
    left = bench.grown(bench.look("killed"))
    answer = weighed(left, held, f"still used {gone_s * 1000:.0f} ms after the signal")
    figures = (figure("still used", left), figure("until it was gone", round(gone_s, 4), "seconds"))
    return Answer(answer.holds, answer.because, figures)
