"""MPS: which server opened the GPU for whom.

The driver lists clients as such and does not say whose. A server serves the user that it runs
as, or, where one server serves several users, everybody: so the client's own user's server is
taken, and where there is but one, that one.
"""

from __future__ import annotations

from msgspec.structs import replace

from vram.ledger.holders import holder
from vram.ledger.sightings import GpuSighting, Sightings
from vram.model.ledger import Entry, OpenOnly
from vram.model.process import ProcessFacts
from vram.protected import is_mps_server

_SERVER = "nvidia-cuda-mps-server"


def with_servers(
    seen: Sightings, gpu: GpuSighting, entries: list[Entry], open_only: list[OpenOnly]
) -> tuple[list[Entry], list[OpenOnly]]:
    """Name the server of every MPS client; one that is charged nothing stands by."""
    servers = _servers(seen, gpu)
    by_user: dict[int | None, list[int]] = {}
    for pid, uid in servers.items():
        by_user.setdefault(uid, []).append(pid)
    placed = [replace(entry, mps_server=_server_of(seen, entry, servers, by_user)) for entry in entries]
    named = {entry.holder.pid for entry in entries if entry.holder}
    named |= {each.holder.pid for each in open_only}
    used = sorted({entry.mps_server for entry in placed if entry.mps_server is not None} - named)
    return placed, [*open_only, *(OpenOnly(holder=holder(seen, seen.processes[pid][0])) for pid in used)]


def _servers(seen: Sightings, gpu: GpuSighting) -> dict[int, int | None]:
    """Living servers on the GPU, by pid, and the user that each runs as."""
    minor = gpu.facts.minor if gpu.facts else None
    here = gpu.listed | seen.opened(minor).keys()
    return {
        pid: facts.uid
        for pid, (_, facts) in seen.processes.items()
        if pid in here and not facts.is_dead and _is_server(facts)
    }


def _is_server(facts: ProcessFacts) -> bool:
    # Others may not read where its program lies. Its own word only decides where it is shown.
    if facts.executable is None:
        return bool(facts.argv) and facts.argv[0].rpartition("/")[2] == _SERVER
    return is_mps_server(facts)


def _server_of(
    seen: Sightings, entry: Entry, servers: dict[int, int | None], by_user: dict[int | None, list[int]]
) -> int | None:
    client = entry.holder
    if client is None or "mps" not in client.lists or client.pid in servers:
        return None
    known = seen.processes.get(client.pid)
    same_user = by_user.get(known[1].uid) if known else None
    fitting = same_user or servers
    return next(iter(fitting)) if len(fitting) == 1 else None
