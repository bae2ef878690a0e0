"""Memory shared by IPC is counted twice

Source
------
Folklore: the sums of process lists look too large wherever processes share memory.

Method
------
A process allocates 256 MiB and makes an IPC handle, another opens it. What the device has in use
more, and what the driver's list charges the importer more, is read before and after.

Reading
-------
False means that the importer pays nothing while the exporter lives. It takes the whole charge
over when the exporter ends.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure, mostly, of
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES, contexts=2)


def measure(bench: Bench) -> Answer:
    importer, exporter = bench.actor(), bench.actor()
    importer.context()
    exporter.context()
    handle = exporter.ipc_handle(exporter.alloc(NBYTES))
    before = bench.look("allocated")
    if importer.pid not in before.charges:
        raise CannotTell("the driver's list does not name processes by the pids that we know")
    importer.ipc_open(handle)
    after = bench.look("opened")
    used = after.used - before.used
    charged = after.charges.get(importer.pid, 0) - before.charges[importer.pid]
    because = f"opening it took {of(used, NBYTES)} and charged the importer {of(charged, NBYTES)}"
    figures = (figure("used more", used), figure("charged to the importer", charged))
    return Answer(mostly(max(used, charged), NBYTES), because, figures)
