"""vram.jupyter  Is the extra installed that speaks to Jupyter kernels?

What is looked at
-----------------
Whether pyzmq can be imported beside vram.

What it means
-------------
`vram trim` and `vram why --deep` reach Jupyter kernels through it. Nothing else needs it.

What to do
----------
`pip install 'vram[jupyter]'`, into the environment that vram runs in.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb

ID = "vram.jupyter"
TOPIC: Topic = "vram"
VERBS: tuple[Verb, ...] = ("trim", "deep")
OPTIONAL = True


def judge(sight: Sight) -> Answer:
    version = sight.program.packages.get("pyzmq")
    if version is not None:
        return ok(f"pyzmq {version}")
    return Answer(
        state="missing",
        seen="pyzmq is not installed",
        means="vram trim and why --deep do not reach Jupyter kernels.",
        fix="Install the extra, if you use notebooks.",
        command="pip install 'vram[jupyter]'",
    )
