"""May a program sleep, and what would wake it? Nothing is touched."""

from __future__ import annotations

from collections.abc import Sequence

from vram.errors import VramError
from vram.host.local.waits import LocalWaits
from vram.host.ports import Host
from vram.model.parking import GpuShare
from vram.model.plan import Target
from vram.model.sleeping import SleepCheck, SleepOptions
from vram.reclaim import identity
from vram.reclaim.preflight import ParkOptions, read_driver, require_parkable
from vram.sleeping import moves


def check(host: Host, pids: Sequence[int], options: SleepOptions) -> SleepCheck:
    """What is known of the program of these processes. Raises where one of them must not be touched."""
    targets = [identity.identify(host, pid) for pid in pids]
    handles = [moves.open_process(target.process.pid, target.process.started_at) for target in targets]
    try:
        waits = tuple(LocalWaits().read(handle) for handle in handles)
        report = read_driver(host)
        shares = tuple(share for pid in pids for share in report.shares(pid))
        refusal = None
        try:
            require_all(host, targets)
            moves.require_may_sleep(waits)
            moves.observe(host, handles)
            moves.require_resting_gpus(report, pids)
        except VramError as error:
            refusal = str(error)
    finally:
        for handle in handles:
            handle.close()
    return SleepCheck(
        targets=tuple(targets),
        shares=shares,
        waits=waits,
        options=options,
        memory_left=host.limits.read(pids[0]).memory_left,
        refusal=refusal,
    )


def require_all(host: Host, targets: Sequence[Target]) -> tuple[GpuShare, ...]:
    """Raise where one of these cannot be parked together with the others."""
    report = read_driver(host)
    found: list[GpuShare] = []
    for target in targets:
        taken = sum(share.nbytes for share in found)
        found += require_parkable(
            host, report, target, ParkOptions(taken_before=taken, together=len(targets))
        )
    return tuple(found)
