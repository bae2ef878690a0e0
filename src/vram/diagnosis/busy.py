"""A GPU that works without a process: how one is told, and for how long, over several readings."""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.model.finding import Finding, Remedy
from vram.model.gpu import GpuFacts
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.units import MIB, counted, duration

CODE = "VR211"
LASTS_S = 180.0
"""After so long, in every reading, it is a warning."""

# In a single reading. Utilization is an average over up to a second: a process that just ended is in it.
_MIN_PERCENT = 50
_MIN_UNATTRIBUTED = 64 * MIB  # as much as the finding about unattributed memory needs
_UNREAD = ("failed", "timeout", "lost")
_RESTARTS = ("node-reboot", "system-reboot")
_DRAINS = ("drain-p2p", "drain-and-reset", "recover-imex-domain")


def busy_alone(ledger: Ledger) -> Iterator[tuple[GpuLedger, GpuFacts]]:
    """The GPUs that report work, while no process is on them: where the lists may hide a process, none is.

    A process whose files may not be read is listed all the same, if it uses the GPU.
    """
    host = ledger.host
    hides = not host.initial_pid_namespace or host.hides_processes or host.wsl_facts is not None
    if hides or any(probe.status in _UNREAD for probe in ledger.probes):
        return
    for gpu in ledger.gpus:
        facts = gpu.facts
        if facts is None or not facts.utilization or gpu.driver != "nvidia" or gpu.status != "ok":
            continue
        # Without persistence mode the driver starts the GPU for a reading, and reports its own work.
        if facts.persistence is False:
            continue
        is_divided = bool(gpu.instances) or gpu.mig is not None or facts.mig_enabled
        if gpu.total_bytes and not is_divided and not gpu.open_only and not any(map(_is_held, gpu.entries)):
            yield gpu, facts


def _is_held(entry: Entry) -> bool:
    if entry.kind == "unattributed":
        return (entry.nbytes or 0) >= _MIN_UNATTRIBUTED
    return entry.kind_facts.held


def in_one_reading(ledger: Ledger) -> Iterator[Finding]:
    """What a single reading may say of it."""
    for gpu, facts in busy_alone(ledger):
        if (facts.utilization or 0) >= _MIN_PERCENT:
            yield _finding(ledger, gpu, facts, lasts=False)


class BusyTime:
    """Since when each GPU has been busy without a process, in all readings."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._last: tuple[Ledger, tuple[Finding, ...], tuple[str, ...]] | None = None
        self._judged: tuple[Finding, ...] = ()

    def judge(self, ledger: Ledger, findings: tuple[Finding, ...], now_s: float) -> tuple[Finding, ...]:
        """*findings* of *ledger*, read at *now_s* of a clock that never jumps, and what has lasted by then.

        Where nothing new has lasted long enough, the same ledger and findings have the same answer.
        """
        alone = {gpu.uuid or str(gpu.index): (gpu, facts) for gpu, facts in busy_alone(ledger)}
        # A GPU that does not answer proves nothing.
        silent = {gpu.uuid or str(gpu.index) for gpu in ledger.gpus if gpu.status in _UNREAD}
        before = self._since
        self._since = {key: before.get(key, now_s) for key in alone}
        self._since |= {key: since for key, since in before.items() if key in silent}
        lasting = tuple(key for key in alone if now_s - self._since[key] >= LASTS_S)
        if not lasting:
            self._last = None
            return findings
        last = self._last
        is_same = last is not None and last[0] is ledger and last[1] is findings and last[2] == lasting
        if not is_same:
            told = {alone[key][0].index for key in lasting}
            others = (each for each in findings if each.code != CODE or told.isdisjoint(each.gpus))
            warnings = (_finding(ledger, *alone[key], lasts=True) for key in lasting)
            self._judged = (*warnings, *others)
            self._last = (ledger, findings, lasting)
        return self._judged


def _finding(ledger: Ledger, gpu: GpuLedger, facts: GpuFacts, *, lasts: bool) -> Finding:
    advice = words.RECOVERY_ADVICE.get(facts.recovery_action or "")
    unreadable = ledger.unreadable_processes
    unused = "no process is listed there" + ("" if unreadable else " and none has its files open")
    percent = f"{facts.utilization} %"
    if lasts:
        title = f"GPU {gpu.index} has been busy for {duration(LASTS_S)} without a process"
        cause = f"GPU {gpu.index} reports work in every reading (now {percent}), and {unused}."
    else:
        title = f"GPU {gpu.index} is {percent} busy without a process"
        cause = f"GPU {gpu.index} reports that it is {percent} busy, and {unused}."
        if not advice:
            cause += " That is so for a moment after a program has ended; `vram watch` says whether it stays."
    if advice:
        cause += f" The driver's own advice is: {advice}."
    return Finding(
        code=CODE,
        title=title,
        nbytes=None,
        cause=cause,
        gpus=(gpu.index,),
        evidence=words.evidence(_told(facts, unreadable)),
        remedies=_remedies(gpu, facts),
        severity="warning" if lasts or advice else "info",
    )


def _told(facts: GpuFacts, unreadable: int) -> Iterator[str]:
    yield f"the driver reports a utilization of {facts.utilization} %"
    yield "the driver's lists name no process, and no memory is held"
    unread = f", as far as can be read: not those of {counted(unreadable, 'process')}"
    yield f"no process has the GPU's files open{unread if unreadable else ''}"
    if facts.recovery_action is not None:
        yield f"the driver's recovery action: {facts.recovery_action}"


def _remedies(gpu: GpuLedger, facts: GpuFacts) -> tuple[Remedy, ...]:
    target, action = f"gpu {gpu.index}", facts.recovery_action
    log = remedies.kernel_log(target)
    if action in _RESTARTS:
        text = "Restart the machine, as the driver advises: everything on it ends."
        return (log, Remedy(step="service", target="host", text=text, harm="affects-others"))
    if action in _DRAINS:
        advised = words.RECOVERY_ADVICE[action]
        text = f"Do what the driver advises: {advised}. Programs on other GPUs are affected."
        return (log, Remedy(step="drain", target=target, text=text, harm="affects-others"))
    return (log, remedies.reset(gpu, "A reset ends what runs there."))
