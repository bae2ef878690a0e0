"""permissions.pidfd  Does the kernel let us hold processes and compare their files?

What is looked at
-----------------
`pidfd_open`, `pidfd_getfd` and `kcmp`, each called once on a process of vram's own.

What it means
-------------
Without pidfd_open nothing is ever signalled or parked: a pid alone can name somebody else a moment
later. Without pidfd_getfd exported memory cannot be proved, without kcmp files that were inherited
cannot be told from files of a process's own.

What to do
----------
They need Linux 5.3, 5.6 and a kernel with kcmp. Inside a container an old seccomp profile may forbid
them: a newer runtime has a newer one.
"""

from __future__ import annotations

import errno

from vram.doctor.answers import Answer, not_tried, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb

ID = "permissions.pidfd"
TOPIC: Topic = "permissions"
VERBS: tuple[Verb, ...] = ("why", "free", "park", "borrow", "kill")
OPTIONAL = False

_NEEDS = {"pidfd_open": "5.3", "pidfd_getfd": "5.6", "kcmp": "3.5 with CONFIG_KCMP"}
_COSTS = {
    "pidfd_open": "vram signals and parks nobody without it.",
    "pidfd_getfd": "Exported memory cannot be proved: it stays without a name in vram why.",
    "kcmp": "Inherited files cannot be told from a process's own: vram why names fewer keepers.",
}


def judge(sight: Sight) -> Answer:
    trial = sight.kernel_trial
    if trial.not_tried is not None:
        return not_tried(trial.not_tried)
    codes = {"pidfd_open": trial.pidfd_open, "pidfd_getfd": trial.pidfd_getfd, "kcmp": trial.kcmp}
    failed = {name: code for name, code in codes.items() if code}
    if failed:
        return _failed(sight, failed)
    if None in codes.values():
        stuck = trial.hung_in or trial.died_in or "the trial"
        return Answer(state="unknown", seen=f"{stuck} did not end well, nothing is known")
    return ok("pidfd and kcmp work")


def _failed(sight: Sight, failed: dict[str, int]) -> Answer:
    first, code = next(iter(failed.items()))
    names = ", ".join(f"{name} ({errno.errorcode.get(code, code)})" for name, code in failed.items())
    absent = code == errno.ENOSYS and not sight.premises.confinement.seccomp
    return Answer(
        state="broken" if "pidfd_open" in failed else "limited",
        seen=f"refused: {names}",
        means=_COSTS[first],
        fix=f"It needs Linux {_NEEDS[first]}; here it is {sight.survey.host.kernel}."
        if absent
        else "A seccomp profile forbids it: use a newer container runtime, or allow the call.",
        command="" if absent else "docker run --security-opt seccomp=unconfined …",
    )
