"""VR102 Inherited files: killing the process alone will not free its memory.

What it detects
---------------
An early warning. A living process is charged with GPU memory, and another living process, usually
its forked child, has the same driver files open, or an allocation that it exported. Nothing is
wrong yet, but if the charged process exits first, the other one still holds the memory.

Why it happens
--------------
A fork copies every open descriptor, the driver's too; an exported handle is one more descriptor
on the memory. The memory is freed when the last copy closes. A worker that exits with its parent
does no harm; one that outlives it turns this warning into VR101 or VR103.

How to confirm
--------------
Both processes list the same device files:

    sudo ls -l /proc/PARENT_PID/fd /proc/CHILD_PID/fd | grep -E '/dev/nvidia|dmabuf'

Remedies and their risk
-----------------------
- When you kill the process, kill its children too. Unsaved work is lost, as with any kill.
- Let the program stop its workers itself: close the data loader or the pool first. No risk.
- To prevent it, start workers with "spawn" or "forkserver", or before CUDA is first used.

Source
------
Measured on an H200, driver 580.159: after the parent was killed the sleeping child kept its
4 GiB and its context; closing the inherited descriptors in the child freed them.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import finding_about
from vram.ledger.holds import find_holds
from vram.ledger.processes import identity
from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import GpuLedger, Holder, Ledger
from vram.units import size

CODE = "VR102"


def judge(ledger: Ledger) -> Iterator[Finding]:
    inheriting = _inheriting(ledger)
    for hold in find_holds(ledger):
        children = _children(inheriting, hold) if hold.what == "process" and hold.known_bytes else ()
        if children:
            yield _finding(ledger, hold, hold.holders[0], children)
    for gpu in ledger.gpus:
        for each in gpu.open_only:
            if each.holder.alive and each.exported_bytes:
                yield _exported(gpu, each.holder, each.exported_bytes)


def _inheriting(ledger: Ledger) -> dict[tuple[int, int], list[Holder]]:
    """Living processes that hold the files of another one, by their GPU and by that one's pid."""
    found: dict[tuple[int, int], list[Holder]] = {}
    for gpu in ledger.gpus:
        for each in gpu.open_only:
            if each.inherited_from is not None and each.holder.alive:
                found.setdefault((gpu.index, each.inherited_from), []).append(each.holder)
    return found


def _children(inheriting: dict[tuple[int, int], list[Holder]], hold: Hold) -> tuple[Holder, ...]:
    """Living processes that hold the files of the holder."""
    parent = hold.holders[0]
    theirs = (each for gpu in hold.gpus for each in inheriting.get((gpu, parent.pid), ()))
    return tuple({identity(each): each for each in theirs}.values())


def _finding(ledger: Ledger, hold: Hold, parent: Holder, children: tuple[Holder, ...]) -> Finding:
    close = "Let the program close its own workers (data loader, pool) before it exits."
    others = f"pid {children[0].pid} exits" if len(children) == 1 else f"{len(children)} others exit"
    return finding_about(
        hold,
        code=CODE,
        title=f"{size(hold.known_bytes)} of pid {parent.pid} is freed only after {others} too",
        cause=(
            f"{words.processes(children)} inherited the open device files of {words.process(parent)}."
            f" If pid {parent.pid} exits first, its {size(hold.known_bytes)} stays in use."
        ),
        pids=(parent.pid, *(child.pid for child in children)),
        evidence=(*hold.evidence, *_held(children)),
        remedies=remedies.ordered(
            (
                remedies.for_processes([parent], step="change", text=close),
                *remedies.end(ledger.host, (parent, *children), certain=hold.certain),
            )
        ),
        # Every data loader with workers does this: it is worth knowing, and nothing is wrong.
        severity="info",
    )


def _exported(gpu: GpuLedger, importer: Holder, exported: int) -> Finding:
    # The sizes are what a mapping or fdinfo said; no allocations are larger than their GPU.
    nbytes = exported if gpu.total_bytes is None else min(exported, gpu.total_bytes)
    text = "Close the handle before, or together with, the process that allocated the memory."
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} stays in use until pid {importer.pid} closes an exported handle",
        nbytes=nbytes,
        cause=(
            f"{words.process(importer)} has an exported handle open on {size(nbytes)} of another process's"
            " memory. When that process exits, the memory stays in use."
        ),
        gpus=(gpu.index,),
        pids=(importer.pid,),
        evidence=words.evidence((f"pid {importer.pid} has {size(exported)} of exported memory open",)),
        remedies=(remedies.for_processes([importer], step="change", text=text),),
        # Processes that share memory on purpose do this all the time.
        severity="info",
    )


def _held(children: tuple[Holder, ...]) -> list[str]:
    return [
        f"pid {child.pid} has {child.descriptors} descriptors on device files"
        for child in children
        if child.descriptors
    ]
