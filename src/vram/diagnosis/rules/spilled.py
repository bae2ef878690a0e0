"""VR601 Spilled into host memory: what does not fit the GPU runs from host memory, slowly.

What it detects
---------------
Under WSL2, Windows counts host memory that processes use for the GPU: 256 MiB or more. If the GPU
is nearly full (nine tenths), this is most likely memory that did not fit; pinned memory and copy
buffers are counted there too, and Windows does not report them separately. If the GPU has room,
most of it is pinned memory and buffers, and the finding is for information only.

Why it happens
--------------
Since version 536.40 NVIDIA's Windows driver does not fail an allocation that does not fit the GPU:
it uses host memory instead, which the GPU accesses over PCIe. Programs that used to fail with an
out-of-memory error become many times slower, and neither nvidia-smi nor the program's framework
reports it. Linux programs in WSL2 use the same driver.

How to confirm
--------------
In Windows' Task Manager, "Shared GPU memory" of the GPU grows with the program. The same from here:

    vram why --json

Remedies and their risk
-----------------------
- Release caches first: `vram trim PID` for each process. Spilled memory does not always move
  back by itself; restart the program to bring it back to the GPU.
- Use less memory: a smaller batch or model. No risk.
- Turn the fallback off for the program: NVIDIA Control Panel, Manage 3D settings, "CUDA - Sysmem
  Fallback Policy", "Prefer No Sysmem Fallback" (from driver 546.01 on). Then it fails instead.
- Close Windows programs that hold device memory (VR602).

Source
------
NVIDIA's support answer 5490 names both versions and the setting. That non-local usage is what is
resident in host memory: System Informer, pull request 2971. Not measured on hardware by vram.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vram.diagnosis import remedies, words
from vram.ledger.holds import in_ledger_order, on_each_gpu
from vram.ledger.processes import in_use
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, known_bytes
from vram.model.observation import HostFacts
from vram.units import MIB, size

CODE = "VR601"

_MIN_BYTES = 256 * MIB
_NEARLY_FULL = 0.9


def judge(ledger: Ledger) -> Iterator[Finding]:
    if all(gpu.windows is None for gpu in ledger.gpus):
        return
    for gpu, holds in on_each_gpu(ledger, lambda entry: True, empty=True):
        nbytes = gpu.windows.host_bytes if gpu.windows else None
        if nbytes is not None and nbytes >= _MIN_BYTES and gpu.total_bytes:
            yield _finding(ledger.host, gpu, nbytes, [part.entry for part in in_ledger_order(holds)])


def _finding(host: HostFacts, gpu: GpuLedger, nbytes: int, held: Sequence[Entry]) -> Finding:
    total = gpu.total_bytes or 0
    full = total - known_bytes(gpu.of_kind("free")) >= _NEARLY_FULL * total
    used = [(entry.holder, entry) for entry in held if in_use(entry) and entry.holder]
    cause = (
        f"GPU {gpu.index} is nearly full, and Windows holds {size(nbytes)} for it in host memory. Some of it"
        " probably did not fit the GPU, which makes programs many times slower; the rest is pinned memory."
        if full
        else f"Windows holds {size(nbytes)} in host memory for GPU {gpu.index}. The GPU still has room, so"
        " this is usually pinned memory and copy buffers."
    )
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} of GPU {gpu.index} {'likely spilled into' if full else 'is in'} host memory",
        nbytes=nbytes,
        cause=cause,
        gpus=(gpu.index,),
        pids=tuple(holder.pid for holder, _ in used),
        evidence=words.evidence(_shares(gpu, held)),
        remedies=remedies.ordered(_remedies(host, used, f"gpu {gpu.index}")) if full else (),
        severity="warning" if full else "info",
    )


def _shares(gpu: GpuLedger, held: Sequence[Entry]) -> Iterator[str]:
    side = gpu.windows
    if side is not None and side.guest_host_bytes:
        yield f"Windows counts {size(side.guest_host_bytes)} of it for the virtual machine of WSL2"
    for entry in held:
        if entry.kind == "windows" and entry.windows and (entry.windows.host_bytes or 0) >= _MIN_BYTES:
            name = words.shown(entry.windows.name or "name unknown")
            yield f"Windows pid {entry.windows.pid} ({name}) has {size(entry.windows.host_bytes or 0)} of it"


def _remedies(host: HostFacts, used: Sequence[tuple[Holder, Entry]], target: str) -> Iterator[Remedy]:
    for holder, entry in used:
        yield from remedies.trim_or_park(host, holder, certain=entry.confidence == "fact")
    less = "Use less memory: a smaller batch, a smaller model, or fewer programs at once."
    yield Remedy(step="ask", target=target, text=less)
    policy = (
        "Let programs fail instead of slowing down: in Windows, NVIDIA Control Panel, Manage 3D settings,"
        " CUDA - Sysmem Fallback Policy, Prefer No Sysmem Fallback."
    )
    yield Remedy(step="set", target=target, text=policy, harm="interrupts")
