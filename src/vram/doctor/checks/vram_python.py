"""vram.python  Which vram is this, on which Python, beside what?

What is looked at
-----------------
The versions of vram, of Python, and of the packages that vram imports.

What it means
-------------
It needs Python 3.11 or later, msgspec, nvidia-ml-py and rich. Any nvidia-ml-py since 12.535 does, also
one that is older or newer than the driver.

What to do
----------
`pip install --upgrade vram` brings what is missing.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb

ID = "vram.python"
TOPIC: Topic = "vram"
VERBS: tuple[Verb, ...] = ("why", "who", "check", "free", "trim", "park", "borrow", "kill", "reset", "deep")
OPTIONAL = False

_NEEDED = ("msgspec", "nvidia-ml-py", "rich")


def judge(sight: Sight) -> Answer:
    program = sight.program
    missing = [name for name in _NEEDED if program.packages.get(name) is None]
    if missing:
        return Answer(
            state="broken",
            seen=f"not installed: {', '.join(missing)}",
            means="vram cannot read the driver." if "nvidia-ml-py" in missing else "Commands fail.",
            fix="Install what vram needs.",
            command=f"pip install {' '.join(missing)}",
        )
    versions = tuple(f"{name} {program.packages[name]}" for name in _NEEDED)
    return ok(f"vram {program.vram} on {program.python}", *versions)
