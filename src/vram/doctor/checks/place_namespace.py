"""place.namespace  Do we see the host's processes, or those of a PID namespace?

What is looked at
-----------------
The number of our PID namespace, and whether the pids that the driver lists are known to our /proc.

What it means
-------------
From inside a namespace nobody outside can be seen, named or touched, though their memory counts in the
totals: it is "hidden" in the ledger. Drivers from about 560 translate and list only our own; older ones
list host pids, which mean nothing or somebody else here: vram reports those and never acts on them.

What to do
----------
Run vram on the host, or in a container that shares its PID namespace.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.units import counted

ID = "place.namespace"
TOPIC: Topic = "place"
VERBS: tuple[Verb, ...] = ("why", "who", "check", "free", "kill", "reset")
OPTIONAL = False


def judge(sight: Sight) -> Answer:
    host = sight.survey.host
    strangers = [
        each.process.pid
        for each in sight.charges
        if each.process is not None and each.process.started_at is None
    ]
    if host.initial_pid_namespace:
        return ok("the host's PID namespace")
    words = f"a PID namespace of its own ({host.pid_namespace})"
    if strangers:
        words += f"; the driver lists {counted(len(strangers), 'pid')} that nobody has here"
    return Answer(
        state="limited",
        seen=words,
        details=tuple(f"listed, and not here: pid {pid}" for pid in strangers),
        means="Processes outside are neither seen nor touched; their memory is “hidden” in the ledger.",
        fix="Look from the host, or share its PID namespace.",
        command="docker run --pid=host …" if sight.premises.container else "",
    )
