"""permissions.processes  Can we see who holds files of the GPU, also when it is somebody else?

What is looked at
-----------------
Whether we have CAP_SYS_PTRACE, as root has outside of containers and user namespaces, how /proc is mounted
(hidepid), and how many processes' open files could not be read.

What it means
-------------
The driver's list names everybody's processes. Who keeps memory through inherited files, an exported
handle or a dma-buf is seen by open files alone, and those of others only root may read: such memory
stays "hidden" or "unattributed" in the ledger.

What to do
----------
Run vram with sudo. Where hidepid hides whole processes, the group that /proc's `gid=` names sees them.
"""

from __future__ import annotations

from vram.diagnosis.remedies import SUDO_VRAM
from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.model.files import UnreadableFacts
from vram.model.surroundings import Confinement
from vram.units import counted

ID = "permissions.processes"
TOPIC: Topic = "permissions"
VERBS: tuple[Verb, ...] = ("why", "who", "check", "free", "kill", "reset")
OPTIONAL = False

_MOST_USERS = 4


def judge(sight: Sight) -> Answer:
    confinement, host = sight.premises.confinement, sight.survey.host
    unreadable = [each.facts for each in sight.survey.observations if isinstance(each.facts, UnreadableFacts)]
    count = sum(facts.processes for facts in unreadable)
    hidden = confinement.hidepid is not None
    if confinement.sees_everybody or (not count and not hidden):
        # Some are always about to end, or closed to everybody by a security module.
        rest = f" but those of {counted(count, 'process')}" if count else ""
        return ok(f"{host.user} sees everybody's files{rest}")
    users = [user for facts in unreadable for user in facts.users]
    return Answer(
        state="limited",
        seen=_seen(host.user, count, confinement.hidepid),
        details=(f"their users: {_some(users)}",) if users else (),
        means="Memory that others keep by inherited or exported files cannot be told to whom it belongs.",
        fix=_fix(host.uid, confinement),
        command=f"{SUDO_VRAM} doctor" if host.uid else "",
    )


def _fix(uid: int, confinement: Confinement) -> str:
    if uid:
        return "Look as root."
    if not confinement.first_user_namespace:
        return "Look from the host: this root is one of a user namespace only."
    return "Give this container CAP_SYS_PTRACE, or look from the host."


def _seen(user: str, count: int, hidepid: str | None) -> str:
    parts = [f"hidepid={hidepid} hides others' processes"] if hidepid else []
    if count:
        parts.append(f"{user} may not read the files of {counted(count, 'process')}")
    return "; ".join(parts)


def _some(users: list[str]) -> str:
    more = f" and {len(users) - _MOST_USERS} more" if len(users) > _MOST_USERS else ""
    return ", ".join(users[:_MOST_USERS]) + more
