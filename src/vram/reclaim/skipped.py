"""What a plan leaves alone: each piece of memory once, why, and the command that would change that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from vram.diagnosis.held import ONLY_THE_CONTEXT, is_bare_context
from vram.diagnosis.leftover import doubt, leftover_parts
from vram.diagnosis.remedies import AS_ROOT, SUDO_VRAM
from vram.errors import AttachDenied, CallsGivenUp, CannotPark, NotPermitted, NotReachable, Protected, Refused
from vram.host.ports import Host
from vram.ledger.holds import find_holds, in_ledger_order
from vram.ledger.processes import ProcessMemory, is_stopped, is_stuck, living_holders
from vram.ledger.remainder import pids_of
from vram.model.hold import HeldPart
from vram.model.ledger import Entry, Holder, known_bytes
from vram.model.plan import Plan, Skipped
from vram.reclaim.actions import GENTLE
from vram.reclaim.candidates import PlanContext

MAX_CHECKED = 8
"""For so many of the largest it is checked whether they can be parked; a longer list is not read."""


def skipped(
    host: Host, context: PlanContext, plan: Plan, refusals: Mapping[int, Refused]
) -> tuple[Skipped, ...]:
    """Everything that is held on the GPUs meant, and gets no step; the largest first."""
    planned = {step.target.process.pid for step in plan.steps if step.target}
    ended = {step.target.process.pid for step in plan.steps if step.target and step.kind not in GENTLE}
    gpus = plan.gpus or context.gpus
    rest = [*_leftovers(context, gpus, ended, refusals), *_hidden(context, gpus)]
    found = [(each, False) for each in rest] + list(_in_use(context, gpus, planned, refusals))
    found.sort(key=lambda each: (-each[0].nbytes, each[0].pid or 0))
    parkable = _parkable(host, context, [each.pid for each, ours in found[:MAX_CHECKED] if ours])
    return tuple(
        replace(each, command=f"vram park {each.pid}") if ours and each.pid in parkable else each
        for each, ours in found
    )


def leftovers_left(context: PlanContext) -> tuple[Skipped, ...]:
    """Memory of dead owners that is there now, the largest first."""
    hidden = (each for each in _hidden(context, context.gpus) if each.leftover)
    found = [*_leftovers(context, context.gpus, set(), {}), *hidden]
    return tuple(sorted(found, key=lambda each: (-each.nbytes, each.pid or 0)))


def _leftovers(
    context: PlanContext, gpus: tuple[int, ...], ended: set[int], refusals: Mapping[int, Refused]
) -> Iterator[Skipped]:
    """Memory of dead owners whose holders are not all ended by the plan."""
    chosen = {process.holder.pid for process in context.chosen()}
    pieces: dict[tuple[int, ...], list[tuple[int, Entry]]] = {}
    for part in leftover_parts(context.ledger):
        pids = tuple(holder.pid for holder in living_holders(part.entry))
        if part.gpu in gpus and chosen & set(pids) and not set(pids) <= ended:
            pieces.setdefault(pids, []).append((part.gpu, part.entry))
    for pids, held in pieces.items():
        entry = max((each for _, each in held), key=lambda each: each.nbytes or 0)
        holder = living_holders(entry)[0]
        why, command = _why_left(context, entry, refusals)
        yield Skipped(
            pid=holder.pid,
            nbytes=known_bytes(each for _, each in held),
            user=holder.user,
            name=holder.command,
            why=why,
            command=command,
            others=pids[1:],
            gpus=tuple(sorted({gpu for gpu, _ in held})),
            leftover=True,
        )


def _why_left(context: PlanContext, entry: Entry, refusals: Mapping[int, Refused]) -> tuple[str, str]:
    people = living_holders(entry)
    what = _owner(entry)
    stopped = [holder for holder in people if is_stopped(holder)]
    if stopped and stopped[0].state == "T":
        return f"{what}; pid {stopped[0].pid} is stopped (Ctrl-Z)", f"kill -CONT {stopped[0].pid}"
    unsure = doubt(entry, context.works)
    if any(_is_foreign(context, holder) for holder in people):
        others = ", ".join(dict.fromkeys(holder.user or "another user" for holder in people))
        # Root sees more, and judges for itself who may be ended.
        helps = unsure is None or unsure.code == "likely"
        return f"{what}; held by a process of {others}", f"{SUDO_VRAM} free" if helps else ""
    refused = [refusals[holder.pid] for holder in people if holder.pid in refusals]
    if refused and not isinstance(refused[0], NotReachable | AttachDenied):
        return f"{what}; {refused[0]}", ""
    if unsure is None:
        return f"{what}; this plan does not need it", "vram free"
    # Who also works, or may have nothing to do with it, is not offered for ending.
    return f"{what}; {unsure.text}", ""


def _owner(entry: Entry) -> str:
    if entry.kind == "exported":
        return (
            f"held by {'a dma-buf' if entry.medium == 'dmabuf' else 'an exported handle'}; its owner is dead"
        )
    return f"memory of dead pid {entry.charged_pid}"


def _is_foreign(context: PlanContext, holder: Holder) -> bool:
    host = context.ledger.host
    return host.uid != 0 and holder.user != host.user


def _in_use(
    context: PlanContext, gpus: tuple[int, ...], planned: set[int], refusals: Mapping[int, Refused]
) -> Iterator[tuple[Skipped, bool]]:
    """Live processes with who else has their files open, and whether each is this user's to park."""
    for process in context.chosen():
        pid = process.holder.pid
        nbytes = process.charged_on(gpus)
        if pid in planned or not nbytes:
            continue
        others = _co_holders(process)
        why, command, may_park = _why_used(context, process, refusals.get(pid))
        piece = Skipped(
            pid=pid,
            nbytes=nbytes,
            user=process.holder.user,
            name=process.holder.command,
            why=why,
            command=command,
            others=others,
            gpus=tuple(sorted(set(process.charged_by_gpu) & set(gpus))),
        )
        yield piece, may_park


def _co_holders(process: ProcessMemory) -> tuple[int, ...]:
    """Who else holds what it is charged with: all of them must end before that is freed."""
    named = (holder.pid for entry in process.charged for holder in living_holders(entry))
    return tuple(dict.fromkeys(pid for pid in named if pid != process.pid))


def _why_used(context: PlanContext, process: ProcessMemory, refusal: Refused | None) -> tuple[str, str, bool]:
    """Why it is left alone, a command that helps and ends none, and whether it is the user's to park."""
    holder = process.holder
    if process.protected:
        return f"it is {process.protected}", "", False
    if is_stuck(holder):
        return "it is waiting in the kernel or exiting; signals have no effect now", "", False
    if is_stopped(holder):
        if holder.state == "t":
            return "it is stopped by a debugger", f"grep TracerPid /proc/{holder.pid}/status", False
        sudo = "sudo " if _is_foreign(context, holder) else ""
        return "it is stopped (Ctrl-Z) and may be resumed", f"{sudo}kill -CONT {holder.pid}", False
    if _is_foreign(context, holder):
        return f"in use by {holder.user or 'another user'}", "", False
    if isinstance(refusal, Protected):
        return str(refusal), "", False
    if isinstance(refusal, CallsGivenUp):
        return f"in use; {_WOULD_DIE}", "", False
    # That it cannot be attached to, or that its driver cannot park, is usual: it is in use nevertheless.
    usual = NotReachable | AttachDenied | CannotPark | NotPermitted
    if refusal is not None and not isinstance(refusal, usual):
        return "; ".join(filter(None, (str(refusal), refusal.hint))), "", False
    if holder.job is not None and holder.job.is_orphan:
        return f"its launcher ({holder.job.by}) is dead, and it still runs", "vram free --orphans", False
    what = f"in use: {ONLY_THE_CONTEXT}" if is_bare_context(process.charged) else "in use"
    return what, "", True


def _hidden(context: PlanContext, gpus: tuple[int, ...]) -> Iterator[Skipped]:
    """Memory whose holder cannot be named here."""
    if context.request.pids or context.request.findings:
        return
    as_user = context.ledger.host.uid != 0
    for part in in_ledger_order(hold for hold in find_holds(context.ledger) if hold.what in _UNNAMED):
        entry = part.entry
        lost = entry.kind == "orphaned" and not living_holders(entry)
        shared = _is_shared(entry)
        if part.gpu in gpus and entry.nbytes and (lost or shared or entry.kind in ("hidden", "unattributed")):
            why = f"{_owner(entry)}; {_UNSEEN}" if lost else "no visible process holds it"
            yield Skipped(
                pid=None,
                nbytes=entry.nbytes,
                user=None,
                name=None,
                why=_several(context, part) if shared else why,
                command=AS_ROOT if as_user and not shared else "vram why",
                gpus=(part.gpu,),
                leftover=not shared,
            )


def _is_shared(entry: Entry) -> bool:
    """Whether several have it together, and the driver reports no figure for each; some may be visible."""
    under_windows = entry.kind == "guest" or entry.hidden_by == "windows"
    return under_windows or (entry.sharing == "together" and bool(entry.co_holders))


def _several(context: PlanContext, part: HeldPart) -> str:
    """Who has such memory together, as far as visible: under WSL2, the processes without a figure."""
    unsized = (each for each in context.ledger.gpus[part.at].entries if each.nbytes is None)
    entries = (part.entry,) if part.entry.co_holders else unsized
    pids = sorted({holder.pid for each in entries for holder in living_holders(each)})
    more = f" and {len(pids) - _MAX_NAMED} more" if len(pids) > _MAX_NAMED else ""
    linux = f"{pids_of(pids[:_MAX_NAMED])}{more}" if pids else "processes of other distributions"
    or_windows = " or Windows programs" if part.entry.hidden_by == "windows" else ""
    return f"held by {linux}{or_windows}; the driver reports no figure for each"


_UNNAMED = ("ghost", "hidden", "unattributed", "together")
_MAX_NAMED = 4
_WOULD_DIE = "it has given up system calls (seccomp), and may be killed when it is reached"
_UNSEEN = "its holder is not visible"


def _parkable(host: Host, context: PlanContext, pids: Sequence[int | None]) -> set[int]:
    """Those of *pids* that the driver can park: that is offered, and nothing that ends them."""
    from vram.errors import VramError
    from vram.reclaim.identity import identify
    from vram.reclaim.preflight import read_driver, require_parkable

    found: set[int] = set()
    if not pids or context.ledger.host.wsl_facts is not None:
        return found
    with suppress(VramError):
        report = read_driver(host)
        for pid in pids:
            with suppress(VramError):
                if pid is not None and require_parkable(host, report, identify(host, pid)):
                    found.add(pid)
    return found
