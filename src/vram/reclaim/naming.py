"""Whom a pid on the command line means: a dead one its holders, and with ``--tree`` a family."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from vram.diagnosis.held import living_holders
from vram.diagnosis.remedies import AS_ROOT, SUDO_VRAM
from vram.errors import NoSuchProcess
from vram.host.ports import Host
from vram.model.ledger import Entry, Ledger, known_bytes
from vram.model.plan import Request
from vram.reclaim.accounts import accounts
from vram.units import size


def with_holders(host: Host, ledger: Ledger, request: Request) -> tuple[Request, dict[int, int]]:
    """*request* with dead pids replaced by who holds their memory, and families by their members.

    Also, which of the pids stand for which dead one. Raises NoSuchProcess where a dead pid's holders
    are not certain, or cannot be seen.
    """
    if not request.pids:
        return request, {}
    meant = {pid: tuple(_meant(host, ledger, pid, request)) for pid in request.pids}
    pids = tuple(dict.fromkeys(each for pid in request.pids for each in meant[pid]))
    dead = {each: pid for pid, people in meant.items() if pid not in people for each in people}
    return replace(request, pids=pids), {} if request.tree else dead


def _meant(host: Host, ledger: Ledger, pid: int, request: Request) -> Iterable[int]:
    left = [entry for gpu in ledger.gpus for entry in gpu.accounted if entry.charged_pid == pid]
    known = accounts(ledger)
    if left and pid not in known and _is_dead(host, pid):
        return _holders(ledger, pid, left)
    if request.tree:
        family = [each for each in host.proc.descendants(pid) if each in known]
        return (pid, *family) if pid in known or not family else family
    return (pid,)


def _is_dead(host: Host, pid: int) -> bool:
    found = host.proc.facts(pid)
    return found is None or found[1].is_dead


def _holders(ledger: Ledger, pid: int, left: list[Entry]) -> tuple[int, ...]:
    nbytes = size(known_bytes(left))
    people = {holder.pid: holder for entry in left for holder in living_holders(entry)}
    if not people:
        raise NoSuchProcess(
            f"pid {pid} has ended, and the driver still lists {nbytes} of it; who holds that cannot be seen",
            hint=f"look with full rights: {AS_ROOT}" if ledger.host.uid else "`vram why` tells more",
        )
    # A pid that was given by name counts as consent; whose it was is gone, so its holders must be certain.
    if all(entry.confidence == "fact" and entry.sharing != "one" for entry in left):
        return tuple(people)
    foreign = ledger.host.uid != 0 and any(each.user != ledger.host.user for each in people.values())
    command = f"{SUDO_VRAM if foreign else 'vram'} kill {' '.join(map(str, people))}"
    raise NoSuchProcess(
        f"pid {pid} has ended; its {nbytes} are likely held by pid {', '.join(map(str, people))}",
        hint=f"to end these: {command}",
    )
