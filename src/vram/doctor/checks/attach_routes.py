"""reaching.routes  By which routes can a CPython be visited here?

What is looked at
-----------------
Three Pythons that the doctor starts itself, of the version that runs vram: one at work, one at rest in a
system call, one that waits for a lock. Each is stopped for a moment by ptrace, asked, and ended. Nobody
else's process is stopped.

What it means
-------------
`vram trim` reaches any CPython from 3.9 to 3.14 by these routes, without an agent and without a debugger. A
3.14 is asked through its own interface for debuggers first.
Where the route for a program at rest is closed (shadow stacks), such a program answers when it wakes up.

What to do
----------
See permissions.ptrace for what the kernel forbids. Programs that call `vram.agent()` need none of it.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, not_applicable, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb

ID = "reaching.routes"
TOPIC: Topic = "reaching"
VERBS: tuple[Verb, ...] = ("trim", "deep", "free")
OPTIONAL = True

_LAST_MINOR = 14


def judge(sight: Sight) -> Answer:
    trial = sight.attach_trial
    if trial is None:
        return Answer(state="unknown", seen="the trial did not end", fix="Run it again.")
    if int(trial.version.partition(".")[2]) > _LAST_MINOR:
        return not_applicable(f"vram's own Python {trial.version} is newer than those that can be visited")
    if not trial.errors:
        longest = max(trial.routes.values())
        return ok(
            "a Python at work, at rest or waiting for a lock can be visited",
            f"stopped for at most {longest:.1f} ms (Python {trial.version})",
        )
    failed = ", ".join(trial.errors)
    return Answer(
        state="limited",
        seen=f"a Python {failed} cannot be visited",
        details=tuple(f"{state}: {reason}" for state, reason in trial.errors.items()),
        means="vram trim reaches such processes by an agent or Jupyter only.",
        fix="Have programs call vram.agent(), or be started with VRAM_AGENT=1.",
    )
