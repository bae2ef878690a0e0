"""Who reads, and what of it that reader may see: never more than /proc would show without us.

Over TCP no reader is known: the command of a process is shown where every user of the machine could read
it in /proc; what only its owner could read (the executable, names from its environment) is not shown at all.
A reader whom the kernel names (SO_PEERCRED) sees everything of its own processes; root sees everything.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis.engine import diagnose
from vram.model.change import Change
from vram.model.finding import Finding
from vram.model.forecast import GrowingHold
from vram.model.history import Held, UserWaste
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger
from vram.model.process import ParkedProcess
from vram.policy.policy import PolicyTarget
from vram.serve.config import ShowConfig

Shown = Literal["everything", "commands", "users", "nothing"]
"""What all users see of the process of another user: all, command and user, the user, or its pid alone."""

_Named = TypeVar("_Named", Holder, Change, Held, ParkedProcess, PolicyTarget, GrowingHold)
_Working = TypeVar("_Working", Holder, Change, Held)


class Viewer(Struct, frozen=True):
    """A reader. ``uid`` is None over TCP; ``names`` are those under which its own processes are listed."""

    uid: int | None
    names: frozenset[str]
    others: Shown

    def ledger(self, ledger: Ledger) -> Ledger:
        """*ledger* as this reader may see it."""
        return ledger if self.others == "everything" else self._ledger(ledger, keeps_executables=False)

    def findings(self, ledger: Ledger, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """What *ledger* means, in sentences that name nothing which this reader may not see.

        The same rules judge a ledger without those names. Executables are left in it, since they tell what is
        protected; no rule writes them, but the one about those that were deleted.
        """
        if self.others == "everything":
            return findings
        shown = self._ledger(ledger, keeps_executables=True)
        # To judge thousands of processes again takes a while, and often there was no name to hide.
        return findings if shown == ledger else diagnose(shown)

    def change(self, change: Change) -> Change:
        return change if self._is_open(change.user) else self._strip(change)

    def held(self, held: Held) -> Held:
        """A row of the history as this reader may see it."""
        if self._is_open(held.user):
            return held
        return replace(self._strip(held), uid=held.uid if self.others in ("commands", "users") else None)

    def waste(self, user: UserWaste) -> UserWaste:
        """The same, for what a user wasted."""
        shown = replace(user, longest=tuple(map(self.held, user.longest)))
        if self._is_open(user.user) or self.others in ("commands", "users"):
            return shown
        return replace(shown, uid=None, user=None)

    @property
    def searched(self) -> tuple[str, ...]:
        """What of other users' processes this reader may search: no more than what is shown."""
        shown: dict[Shown, tuple[str, ...]] = {
            "everything": ("user", "command", "workload"),
            "commands": ("user", "command"),
            "users": ("user",),
            "nothing": (),
        }
        return shown[self.others]

    # ---- what is left of a process ----

    def _is_open(self, user: str | None) -> bool:
        return self.others == "everything" or (user is not None and user in self.names)

    def named(self, process: _Named) -> _Named:
        """*process* with the command and the user that this reader may see."""
        return process if self._is_open(process.user) else self._hide_names(process)

    def _hide_names(self, process: _Named) -> _Named:
        return replace(
            process,
            command=process.command if self.others == "commands" else None,
            user=process.user if self.others in ("commands", "users") else None,
        )

    def _strip(self, process: _Working) -> _Working:
        """Without the names that runtimes and environments give it either: what its cgroup shows stays."""
        workload = replace(
            process.workload,
            container_name=None,
            pod_name=None,
            claimed_job=None,
            job_name=None,
            notebook=None,
        )
        return replace(self._hide_names(process), workload=workload)

    def _holder(self, holder: Holder, keeps_executables: bool) -> Holder:
        # By number where it is known: two users of a machine and its containers may have one name.
        is_own = holder.uid == self.uid if holder.uid is not None else self._is_open(holder.user)
        if is_own or self.others == "everything":
            return holder
        # How it was launched is read from its environment.
        shown = replace(self._strip(holder), job=None)
        if self.others == "nothing":
            shown = replace(shown, uid=None)
        if keeps_executables:
            return replace(shown, executable="") if holder.executable_deleted and holder.executable else shown
        return replace(shown, executable=None, executable_trusted=None)

    def _ledger(self, ledger: Ledger, *, keeps_executables: bool) -> Ledger:
        shown = with_holders(ledger, lambda each: self._holder(each, keeps_executables))
        return replace(shown, parked=tuple(map(self.named, ledger.parked)))


def with_holders(ledger: Ledger, change: Callable[[Holder], Holder]) -> Ledger:
    """*ledger* with every process in it as *change* returns it."""

    def of_entry(entry: Entry) -> Entry:
        if not entry.holders:
            return entry
        holder = entry.holder and change(entry.holder)
        return replace(entry, holder=holder, co_holders=tuple(map(change, entry.co_holders)))

    def of_gpu(gpu: GpuLedger) -> GpuLedger:
        system = gpu.system
        return replace(
            gpu,
            entries=tuple(map(of_entry, gpu.entries)),
            open_only=tuple(replace(each, holder=change(each.holder)) for each in gpu.open_only),
            system=system and replace(system, entries=tuple(map(of_entry, system.entries))),
        )

    return replace(ledger, gpus=tuple(map(of_gpu, ledger.gpus)))


def aged(ledger: Ledger, seconds: float) -> Ledger:
    """*ledger* with its processes so much older."""
    if seconds < 1.0:
        return ledger

    def older(holder: Holder) -> Holder:
        return holder if holder.age_s is None else replace(holder, age_s=holder.age_s + seconds)

    return with_holders(ledger, older)


def viewer(uid: int | None, show: ShowConfig, proc_root: str = "/proc") -> Viewer:
    """The reader *uid*, as the kernel named it; None over TCP."""
    if uid is not None and uid in (0, os.geteuid()):
        return Viewer(uid, frozenset(), "everything")
    return Viewer(uid, _names(uid), _shown_to_others(uid, show, proc_root))


def _shown_to_others(uid: int | None, show: ShowConfig, proc_root: str) -> Shown:
    if show.commands == "always":
        return "everything" if uid is None else "commands"
    by_proc = shown_by_proc(proc_root)
    if show.commands == "never" and uid is None:
        return "users" if by_proc == "commands" else by_proc
    return by_proc


def _names(uid: int | None) -> frozenset[str]:
    if uid is None:
        return frozenset()
    try:
        return frozenset((pwd.getpwuid(uid).pw_name, str(uid)))
    except KeyError:
        return frozenset((str(uid),))


def shown_by_proc(proc_root: str = "/proc") -> Shown:
    """What /proc shows to all users, by its mount option hidepid; nothing where that cannot be told."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return "nothing"
    return hidepid_of(lines, os.path.normpath(proc_root))


def hidepid_of(mounts: list[str], mount_point: str) -> Shown:
    """The same, from the lines of mountinfo; the last mount over a folder is the one that is seen."""
    shown: Shown = "nothing"
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(kind) < 3 or fields[4] != mount_point or kind[0] != "proc":
            continue
        options = {*fields[5].split(","), *kind[2].split(",")}
        hidepid = next((each.partition("=")[2] for each in options if each.startswith("hidepid=")), "0")
        by_value: dict[str, Shown] = {"0": "commands", "off": "commands", "1": "users", "noaccess": "users"}
        shown = by_value.get(hidepid, "nothing")
    return shown
