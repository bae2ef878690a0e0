"""VR303 MPS clients: processes use the GPU through the MPS server.

What it detects
---------------
The GPU is shared through MPS: the server process is charged, or MPS clients are listed.

Why it happens
--------------
MPS lets many processes share one scheduling resource. Clients talk to the server, which opens the
GPU for them, so part of what clients use is charged to the server, and a client may have no device
files open itself. The server stays after its last client has exited, with a context of its own,
until MPS is told to quit.

How to confirm
--------------
Ask the control daemon for its servers and their clients:

    echo get_server_list | nvidia-cuda-mps-control
    echo "get_client_list SERVER_PID" | nvidia-cuda-mps-control

Remedies and their risk
-----------------------
- Find the client that holds the memory, and ask its owner or let it finish; `vram trim` releases
  its unused cached memory. No risk.
- Do not kill the server: every client on the GPU fails with it. vram never does.
- Killing a client while the GPU runs its work can leave the server and the other clients in an
  undefined state. If you must, let the control daemon end its work first (terminate_client).
  Parking is not possible under MPS.
- The administrator can tell a server without clients to quit, through the control daemon. New
  clients start another one.

Source
------
Described in NVIDIA's documentation of the Multi-Process Service; not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.diagnosis.held import finding_about
from vram.ledger.holds import find_holds
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Holder, Ledger
from vram.protected import is_mps_server
from vram.units import counted, size

CODE = "VR303"


def judge(ledger: Ledger) -> Iterator[Finding]:
    found = [hold for hold in find_holds(ledger, empty=True) if hold.what == "process" and _through_mps(hold)]
    if found:
        yield _finding(sorted(found, key=lambda hold: -hold.known_bytes))


def _through_mps(hold: Hold) -> bool:
    return is_mps_server(hold.holders[0]) or "mps" in hold.holders[0].lists


def _finding(holds: list[Hold]) -> Finding:
    holders = [hold.holders[0] for hold in holds]
    servers = [holder for holder in holders if is_mps_server(holder)]
    clients = [holder for holder in holders if not is_mps_server(holder)]
    nbytes = sum(hold.known_bytes for hold in holds)
    return finding_about(
        *holds,
        code=CODE,
        title=f"{size(nbytes)} in use through MPS by {counted(len(clients), 'listed client')}"
        if clients
        else f"{size(nbytes)} held by an MPS server without listed clients",
        cause=_cause(clients),
        nbytes=nbytes,
        pids=[holder.pid for holder in (*servers, *clients)],
        evidence=(line for hold in holds for line in hold.evidence),
        remedies=_remedies([server.pid for server in servers], bool(clients)),
        severity="info",
    )


def _cause(clients: list[Holder]) -> str:
    if not clients:
        return (
            "The MPS server has the GPU open and no client is listed. It holds its own context until MPS is"
            " told to quit."
        )
    return (
        "Processes share this GPU through the MPS server; memory charged to the server belongs to its"
        f" clients. Listed clients: {words.processes(clients)}."
    )


def _remedies(servers: list[int], has_clients: bool) -> tuple[Remedy, ...]:
    if servers and not has_clients:
        text = "Tell MPS to quit if it is not needed: the server exits, and its context is freed."
        return (
            Remedy(
                step="end",
                target="mps",
                text=text,
                command="echo quit | nvidia-cuda-mps-control",
                harm="affects-others",
            ),
        )
    ask = f"get_client_list {servers[0]}" if servers else "get_server_list"
    return (
        Remedy(
            step="look",
            target="mps",
            text="List the MPS clients, then find out which of them can release memory.",
            command=f'echo "{ask}" | nvidia-cuda-mps-control',
        ),
        Remedy(step="keep", target="mps", text="Do not kill the server: every client fails with it."),
    )
