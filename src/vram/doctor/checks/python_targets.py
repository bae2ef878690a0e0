"""reaching.python  Which Python processes on the GPUs can be asked to trim, and by which way?

What is looked at
-----------------
Every Python process with GPU memory: an agent's socket, a Jupyter connection file, Python 3.14's
interface for debuggers, ptrace. Nobody is asked anything, and nobody is stopped.

What it means
-------------
`vram trim PID` takes the safest way that is open.

What to do
----------
CPython from 3.9 on needs nothing but the permission to attach. Other programs can call `vram.agent()`,
or be started with VRAM_AGENT=1; notebooks are also reached with `vram[jupyter]`.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, not_applicable, ok
from vram.doctor.sight import PythonTarget, Sight
from vram.model.doctor import Topic, Verb
from vram.units import counted, size

ID = "reaching.python"
TOPIC: Topic = "reaching"
VERBS: tuple[Verb, ...] = ("trim", "deep", "free")
OPTIONAL = False

_MOST_NAMED = 4


def judge(sight: Sight) -> Answer:
    if sight.targets is None:
        return Answer(
            state="unknown",
            seen="the files of a process on the GPUs do not answer",
            means="vram trim would wait for them as well.",
            fix="See whether its program lies on a server that is gone.",
        )
    if not sight.targets:
        return not_applicable("no Python process is on a GPU")
    willing = [target for target in sight.targets if target.open]
    details = tuple(_told(target) for target in sight.targets)
    whole = counted(len(sight.targets), "Python process")
    if len(willing) == len(sight.targets):
        return ok(f"{whole} on the GPUs can be asked to trim", *details)
    stuck = [target for target in sight.targets if target not in willing]
    return Answer(
        state="limited",
        seen=f"{_named(stuck, whole)} cannot be asked to trim",
        details=details,
        means="vram trim refuses them, and vram why --deep does not see inside.",
        fix=_fix(stuck),
        command="pip install 'vram[jupyter]'" if _wants_zmq(stuck) else "",
    )


def _named(stuck: list[PythonTarget], whole: str) -> str:
    if len(stuck) > _MOST_NAMED:
        return f"{len(stuck)} of {whole}"
    return f"Python pid{'s' * (len(stuck) > 1)} {', '.join(str(target.pid) for target in stuck)}"


def _fix(stuck: list[PythonTarget]) -> str:
    if _wants_zmq(stuck):
        return "Install what speaks to Jupyter kernels."
    return "Have them call vram.agent() at their next start, or start them with VRAM_AGENT=1."


def _wants_zmq(stuck: list[PythonTarget]) -> bool:
    return any("pyzmq" in reason for target in stuck for reason in target.closed.values())


def _told(target: PythonTarget) -> str:
    held = f", {size(target.nbytes)}" if target.nbytes is not None else ""
    ways = f"by {', '.join(target.open)}" if target.open else "by no way"
    reasons = "; ".join(f"{name}: {reason}" for name, reason in target.closed.items())
    return f"pid {target.pid} ({target.user or 'unknown user'}{held}): {ways}" + (
        f" ({reasons})" if reasons else ""
    )
