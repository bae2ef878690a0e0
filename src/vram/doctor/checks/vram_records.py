"""vram.records  Can vram write down what it does?

What is looked at
-----------------
The folder $XDG_STATE_HOME/vram (or ~/.local/state/vram): whether it is ours alone, whether others could
change the way to it, whether it can be written, and has room; the audit log in it. Nothing is made or
written by asking.

What it means
-------------
No log, no action: without it `vram free`, `trim`, `park`, `borrow`, `kill` and `reset` refuse. Looking works.

What to do
----------
Make it a folder of your own with mode 0700, or set XDG_STATE_HOME to one.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.units import MIB, size

ID = "vram.records"
TOPIC: Topic = "vram"
VERBS: tuple[Verb, ...] = ("free", "trim", "park", "borrow", "kill", "reset")
OPTIONAL = False

_LITTLE = 1 * MIB
_MEANS = "Nothing is done without a log: free, trim, park, borrow, kill and reset refuse."


def judge(sight: Sight) -> Answer:
    records = sight.records
    if records.error is not None:
        return Answer(
            state="broken",
            seen=records.error,
            means=_MEANS,
            fix=f"{records.hint[:1].upper()}{records.hint[1:]}.",
            command="export XDG_STATE_HOME=$(mktemp -d)",
        )
    if records.free_bytes is not None and records.free_bytes < _LITTLE:
        return Answer(
            state="broken",
            seen=f"the disk of {records.path} is full ({size(records.free_bytes)} left)",
            means=_MEANS,
            fix="Make room on it, or set XDG_STATE_HOME to a folder on another disk.",
            command=f"df -h {records.path if records.exists else '~'}",
        )
    there = records.path if records.exists else f"{records.path}, made when it is first needed"
    return ok("audit log can be written", there)
