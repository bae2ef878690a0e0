"""VR301 Hidden by a PID namespace: the holder is outside it and not visible from here.

What it detects
---------------
vram runs inside a PID namespace (usually a container), and processes outside it hold memory on the
GPU.

Why it happens
--------------
A PID namespace shows only its own processes. The GPU's totals include all processes, but recent
drivers list only the processes of the caller's namespace. Older ones list host pids, which inside
the namespace do not exist or belong to a different process.

How to confirm
--------------
This shell is not in the host's namespace if its first process is not the system's init:

    cat /proc/1/comm
    grep NSpid /proc/self/status

Remedies and their risk
-----------------------
- Run vram on the host, or in a container started with the host's PID namespace
  (docker run --pid=host). No risk.
- Ask the administrator of the host. Do not kill anything from inside: a pid may mean a different
  process there.

Source
------
Measured on an H200, driver 580.159: inside a fresh namespace NVML listed only that namespace's
processes, by their pids there; outside it listed all, by host pids. That older drivers show host
pids inside containers is reported in nvidia-docker #1483.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis.held import finding_about, hidden_holds
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Ledger
from vram.units import size

CODE = "VR301"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu, holds in hidden_holds(ledger, "namespace"):
        nbytes = size(sum(hold.known_bytes for hold in holds))
        look = "Run vram on the host, or in a container started with --pid=host."
        yield finding_about(
            *holds,
            code=CODE,
            title=f"{nbytes} of GPU {gpu.index} held by processes outside this PID namespace",
            cause=f"{nbytes} of GPU {gpu.index} belongs to processes that are not visible from inside this"
            " container or namespace.",
            remedies=(Remedy(step="look", target=f"gpu {gpu.index}", text=look),),
            severity="warning",
        )
