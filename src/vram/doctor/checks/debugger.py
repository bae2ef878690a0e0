"""permissions.debugger  Is there a debugger that starts?

What is looked at
-----------------
gdb, lldb and cuda-gdb on the PATH and in the CUDA toolkit (VRAM_DEBUGGER names another one); the one
that would be taken is asked for its version.

What it means
-------------
`vram trim PID --via debugger` reaches Pythons older than 3.14 that run no agent. Nothing else needs it.

What to do
----------
Install gdb, or have the program call `vram.agent()`.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb

ID = "permissions.debugger"
TOPIC: Topic = "permissions"
VERBS: tuple[Verb, ...] = ("trim",)
OPTIONAL = True

_MEANS = "vram trim --via debugger does not work; the safer ways do."


def judge(sight: Sight) -> Answer:
    trial = sight.kernel_trial
    if sight.debugger is None:
        return Answer(
            state="missing",
            seen="no gdb, lldb or cuda-gdb",
            means=_MEANS,
            fix="Install one, if you want that way.",
            command="sudo apt-get install gdb",
        )
    name = sight.debugger.rpartition("/")[2]
    if trial.debugger_error:
        return Answer(
            state="broken",
            seen=f"{name} does not start: {trial.debugger_error}",
            details=(f"it is {sight.debugger}",),
            means=_MEANS,
            fix="Install it again, or name another one in VRAM_DEBUGGER.",
        )
    if trial.debugger is None:
        # cuda-gdb takes seconds to say its version: that is slow, and no fault.
        return ok(f"{name} is here, and has not told its version in time", f"it is {sight.debugger}")
    return ok(f"{name} works", trial.debugger, f"it is {sight.debugger}")
