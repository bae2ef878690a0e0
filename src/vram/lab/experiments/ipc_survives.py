"""Memory opened by IPC survives the process that allocated it

Source
------
Folklore.

Method
------
A process allocates 256 MiB and makes an IPC handle. Another opens it. The first is killed, and
the device is read.

Reading
-------
Every process that opened the handle keeps the memory. It goes when the last of them closes it.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES, contexts=2)


def measure(bench: Bench) -> Answer:
    importer, exporter = bench.actor(), bench.actor()
    importer.context()
    base = bench.look("importer's context")
    exporter.context()
    importer.ipc_open(exporter.ipc_handle(exporter.alloc(NBYTES)))
    bench.must_show(bench.look("opened"), NBYTES, since=base)
    exporter.kill()
    kept = bench.look("exporter killed").used - base.used
    return weighed(kept, NBYTES, "still used after the exporter was killed")
