"""permissions.ptrace  May one process of ours attach to another?

What is looked at
-----------------
Yama's setting (kernel.yama.ptrace_scope), our capabilities, and a trial on a child of vram's own, which
Yama always allows: what fails there, a seccomp filter or a security module forbids.

What it means
-------------
`vram trim` gets into a Python process by remote-exec or by ptrace only where it may attach. An
agent (`vram.agent()`) and Jupyter need no such right.

What to do
----------
- Scope 1 or 2: use sudo for that one command, or have the program call `vram.agent()`.
- Scope 3: nobody may, until the next boot.
- A container: CAP_SYS_PTRACE.
"""

from __future__ import annotations

import errno

from vram.diagnosis.remedies import SUDO_VRAM
from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb

ID = "permissions.ptrace"
TOPIC: Topic = "permissions"
VERBS: tuple[Verb, ...] = ("trim",)
OPTIONAL = True

_SCOPES = {
    1: "only a parent may attach (ptrace_scope is 1)",
    2: "only root may attach (ptrace_scope is 2)",
    3: "nobody may attach until the next boot (ptrace_scope is 3)",
}
_MEANS = "vram trim cannot use remote-exec or ptrace; agents and Jupyter kernels are not affected."
_AGENT = "Have programs call vram.agent(), or be started with VRAM_AGENT=1"


def judge(sight: Sight) -> Answer:
    refused, yama = sight.kernel_trial.ptrace, sight.premises.confinement.yama or 0
    if refused:
        return Answer(
            state="limited",
            seen=f"attaching is refused even to a child of our own ({errno.errorcode.get(refused, refused)})",
            means=_MEANS,
            fix=f"{_AGENT}; a container needs CAP_SYS_PTRACE for it.",
            command="docker run --cap-add SYS_PTRACE …" if sight.premises.container else "",
        )
    confinement = sight.premises.confinement
    if yama == 3 or (yama in _SCOPES and not confinement.may_trace):
        return Answer(
            state="limited",
            seen=_SCOPES[yama],
            means=_MEANS,
            fix=f"{_AGENT}." if yama == 3 else f"{_AGENT}; or run that one trim with sudo.",
            command="" if yama == 3 else f"{SUDO_VRAM} trim PID",
        )
    if refused is None:
        return Answer(state="unknown", seen="the trial did not end", fix="Run it again.")
    return ok(f"may attach to {'any process' if confinement.sees_everybody else 'processes of ours'}")
