"""A program that reads the driver again and again while it fails at its first, second, third ... call.

    python sweep.py FAULT PID [ROUNDS]

FAULT is a line of faults in which {n} stands for the number of the call, which goes up to ROUNDS, or
until a fault comes too late to matter. Now and then a round without a fault is read by the same reader.
Prints one JSON line: what a round saw without a fault, what each saw with one, and how many of those
without one that followed were whole again. "held" is what the process PID holds.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vram.host.local import LocalHost
from vram.ledger.build import build_ledger
from vram.model.ledger import known_bytes
from vram.probes.survey import survey
from vram.virtualgpu import VirtualGpu

DEADLINE_S = 30.0
MAX_CALLS = 400
AGAIN_EVERY = 4


def read(host: LocalHost, pid: int) -> dict[str, Any]:
    ledger = build_ledger(survey(host, deadline_s=DEADLINE_S))
    held = sum(
        entry.nbytes
        for gpu in ledger.gpus
        for entry in gpu.entries
        if entry.holder is not None and entry.holder.pid == pid
    )
    return {
        "gpus": [
            {
                "index": gpu.index,
                "status": gpu.status,
                "message": gpu.message,
                "total": gpu.total_bytes,
                "sum": known_bytes(gpu.entries),
                "negative": any(entry.nbytes < 0 for entry in gpu.entries),
            }
            for gpu in ledger.gpus
        ],
        "probes": {probe.name: [probe.status, probe.message] for probe in ledger.probes},
        "held": held,
    }


def main() -> None:
    fault, pid, *count = sys.argv[1], *map(int, sys.argv[2:])
    gpu, host = VirtualGpu.inside(), LocalHost()
    whole = read(host, pid)
    rounds: list[dict[str, Any]] = []
    checks = again = 0
    for n in range(1, (count[0] + 1) if count else MAX_CALLS):
        gpu.add_fault(fault.format(n=n))
        seen = read(host, pid)
        gpu.clear_faults()
        unharmed = seen["gpus"] == whole["gpus"] and seen["probes"]["nvml"] == whole["probes"]["nvml"]
        if unharmed and not count:
            break
        rounds.append(seen)
        if n % AGAIN_EVERY == 0:
            checks, again = checks + 1, again + (read(host, pid)["gpus"] == whole["gpus"])
    print(json.dumps({"whole": whole, "rounds": rounds, "checks": checks, "again": again}), flush=True)


if __name__ == "__main__":
    main()
